#!/usr/bin/env bash
# Formatting and static analysis of every source: lint.sh BUILD_FOLDER [FILE...]. The folder holds
# compile_commands.json. Headers are analyzed through the sources that include them. A file that was
# found clean is not analyzed again while its preprocessed text, comments included, the rules
# and the analyzer are unchanged: BUILD_FOLDER/lint/ has a stamp for each such text.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
bash tests/structure/format_test.sh
commands=$build/compile_commands.json
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  # What this build leaves out (the sanitizers' own sources) has no command to analyze it with.
  compiled=$(sed -n "s|^ *\"file\": \"$PWD/\(.*\)\",*\$|\1|p" "$commands" | LC_ALL=C sort -u)
  mapfile -t files < <(find src tests bench examples -name '*.cpp' | LC_ALL=C sort | comm -12 - <(echo "$compiled"))
  find src tests bench examples -name '*.cpp' | LC_ALL=C sort | comm -23 - <(echo "$compiled") |
    sed 's/^/not in this build, not analyzed: /'
fi
marks=$build/lint
mkdir -p "$marks"
# clang-tidy cannot read the compiler's precompiled headers: it sees what each source includes itself.
sed 's| -Winvalid-pch -include [^ ]*cmake_pch.hxx||g; s| -fpch-preprocess||g' "$build/compile_commands.json" >"$marks/compile_commands.json"
commands=$marks/compile_commands.json
rules=$({ clang-tidy --version; cat .clang-tidy tests/.clang-tidy bench/.clang-tidy; } | sha256sum | cut -c1-64)

analyze() {
  local file=$1 command text mark
  # The line before the file's own is its command as a JSON string, with escaped quotes.
  command=$(grep -F -B1 "\"file\": \"$PWD/$file\"" "$commands" | sed -n 's/^ *"command": "\(.*\)",$/\1/p' | head -n 1 | sed 's/\\\(.\)/\1/g; s/ -o [^ ]* -c / -w -E -C -P /')
  if ! text=$(bash -c "${command:?has no command in $commands}" | sha256sum | cut -c1-64); then
    echo "failed: $file: cannot be preprocessed"
    return 1
  fi
  mark=$marks/$(printf '%s %s %s\n' "$rules" "$file" "$text" | sha256sum | cut -c1-64)
  [ ! -e "$mark" ] || return 0
  echo "clang-tidy $file"
  # On standard error clang-tidy only counts warnings in system headers.
  if ! clang-tidy --quiet -p "$marks" "$file" 2>/dev/null; then
    echo "failed: $file"
    return 1
  fi
  touch "$mark"
}
export -f analyze
export build commands marks rules
echo "clang-tidy: ${#files[@]} files"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "${LINT_JOBS:-2}" bash -c 'set -euo pipefail; analyze "$1"' lint
echo "clang-tidy: no findings"
