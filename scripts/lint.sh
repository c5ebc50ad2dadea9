#!/usr/bin/env bash
# Formatting and static analysis of every source: lint.sh BUILD_FOLDER [FILE...]. The folder holds
# compile_commands.json. Headers are analysed through the sources that include them.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
bash tests/structure/format_test.sh
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  # What this build leaves out (the sanitizers' own sources) has no command to analyse it with.
  compiled=$(sed -n "s|^ *\"file\": \"$PWD/\(.*\)\",*\$|\1|p" "$build/compile_commands.json" | LC_ALL=C sort -u)
  mapfile -t files < <(find src tests bench -name '*.cpp' | LC_ALL=C sort | comm -12 - <(echo "$compiled"))
  find src tests bench -name '*.cpp' | LC_ALL=C sort | comm -23 - <(echo "$compiled") |
    sed 's/^/not in this build, not analysed: /'
fi
echo "clang-tidy: ${#files[@]} files"
# What clang-tidy prints on standard error is a count of warnings in system headers.
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "${LINT_JOBS:-2}" sh -c 'clang-tidy --quiet -p "$0" "$1" 2>/dev/null || { echo "failed: $1"; exit 1; }' "$build"
echo "clang-tidy: no findings"
