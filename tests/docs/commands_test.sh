#!/usr/bin/env bash
# Every command of README.md and docs/getting-started.md runs as written and prints the output shown there. The
# environment makes models small. A command that cannot run in a test is listed below with its replacement check. train
# and plan accept the configurations in examples/.
#
# Fenced blocks: `sh` holds commands; `console` holds commands after "$ " and their output; `toml` whose first line is
# "# NAME.toml" is written to that file; `text` and `python` hold no commands. In shown output a number matches any
# number and … any text.
# shellcheck disable=SC2317  # the checks are called by name
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
problem() {
  printf 'FAILED: %s\n' "$*"
  echo >>"$work/failures"
}

# Commands that do not run here, and their replacement checks.
cat >"$work/instead" <<'LIST'
make demo|demo
make test|make_target
make build|make_target
data/bible-kjv.sh book.txt|script data/bible-kjv.sh
module load gcc openmpi hdf5 onednn|modules
cmake --preset release -DTRIREME_TESTS=OFF -DTRIREME_BENCH=OFF && cmake --build --preset release|presets
srun --mpi=pmix -n 64 build/release/trireme train --config examples/gpt2-124m.toml --data.path fineweb|planned 64
sbatch -N 4 --ntasks-per-node 16 -c 8 jobs/slurm.sh --config examples/gpt2-124m.toml --data.path fineweb|planned 64
LIST

# The command is in $command.
make_target() { make -C "$SOURCE" -n "${command#make }" >"$work/recipe" 2>&1 && [ -s "$work/recipe" ]; }
script() { bash -n "$SOURCE/$1"; }
modules() {
  local name
  for name in ${command#module load }; do
    tr -d ' ' <"$SOURCE/docs/install.md" | grep -i "^|.*$name" >"$work/requirement" || return
  done
}
presets() { [ "$(grep -c '"name": *"release"' "$SOURCE/CMakePresets.json")" -eq 2 ]; }
# plan checks the arguments of a job for any number of ranks.
planned() { # ranks
  local words
  read -r -a words <<<"${command#* --config}"
  [ -d fineweb ] || zeros 50257 fineweb || return
  (
    unset "${!TRIREME_MODEL_@}"
    "$TRIREME" plan --ranks "$1" --config "${words[@]}"
  )
}
# A dataset of any vocabulary.
zeros() { # vocabulary, folder
  [ -e zeros.bin ] || head -c 2000000 /dev/zero >zeros.bin
  "$TRIREME" prepare --input zeros.bin --input-format nanogpt --vocabulary "$1" --end-of-document none --output "$2"
}
# The steps of make demo after building, with few steps.
demo() {
  make_target || return
  CORPUS=$PWD/book.txt DEMO=$work/demo STEPS=25 MPIRUN=$PWD/bin/mpirun "$SOURCE/scripts/demo.sh" "$TRIREME" 2>&1 |
    sed "s|$work/||g"
}

# A copy of the repository's root, with a text of 30,000 words.
make_root() {
  local name
  mkdir -p "$1/build" "$1/bin"
  for name in data examples jobs scripts; do ln -s "$SOURCE/$name" "$1/$name"; done
  ln -s "$(dirname "$TRIREME")" "$1/build/release"
  ln -s "$(command -v "${TRIREME_MPIEXEC:-mpirun}")" "$1/bin/mpirun"
  awk 'BEGIN {
    count = split("and the king of his house said unto them go out to see what is in this land", word, " ")
    for (line = 1; line <= 3000; ++line) {
      for (i = 1; i <= 10; ++i) {
        state = (state * 1103 + 12345) % 65536
        printf "%s%s", word[1 + state % count], i < 10 ? " " : ".\n"
      }
    }
  }' >"$1/book.txt"
}

# Writes each command of a document to FOLDER/LINE.command and the output shown below it to FOLDER/LINE.shown.
split_document() { # document, folder
  awk -v out="$2" -v document="${1##*/}" '
    function complain(text) { printf "%s:%d: %s\n", document, NR, text >(out "/complaints") }
    function begin(text) { at = sprintf("%s/%04d", out, NR); printf "%s", text >(at ".command") }
    # Appends a line of a command; one that ends in a backslash is continued.
    function add(text) {
      continued = sub(/ *\\$/, "", text)
      printf "%s", text >(at ".command")
    }
    /^```/ {
      if (file != "") print "END" >(at ".command")
      kind = inside ? "" : substr($0, 4)
      inside = !inside
      if (inside && kind !~ /^(sh|console|toml|text|python)$/) complain("a code block of kind \"" kind "\"")
      at = file = ""
      next
    }
    !inside && /^(    |\t)/ { complain("an indented code block; use a fence") }
    kind == "toml" && at == "" && /^# [a-z-]+\.toml$/ { file = $2; begin("cat >" file " <<\"END\"\n") }
    file != "" { print >(at ".command") }
    kind == "text" && /^\$ / { complain("a command in a text block") }
    kind != "sh" && kind != "console" { next }
    continued { sub(/^ */, " "); add($0); next }
    kind == "sh" && /^ *(#|$)/ { next }
    kind == "sh" || /^\$ / { begin(""); sub(/^\$ /, ""); sub(/ +# .*/, ""); add($0); next }
    at == "" { complain("output without a command"); next }
    { print >(at ".shown") }
    END { if (inside) complain("a code block without an end") }
  ' "$1"
  [ ! -s "$2/complaints" ] || problem "$(cat "$2/complaints")"
}

# Each shown line is in the output.
compare() { # shown, output, place
  local line pattern missing=0
  while IFS= read -r line; do
    [ "$line" != … ] || continue
    pattern=$(LC_ALL=C sed -E -e 's/[][\\.^$*+?(){}|]/\\&/g' -e 's/[0-9]([0-9,:e-]|\\[.+])*/[0-9.,:e+-]+/g' \
      -e 's/-{4,}/-+/g' -e 's/ [kM]?B( |$)/ [kM]?B\1/g' -e 's/ *… */.*/g' -e 's/ +/ +/g' <<<"$line")
    if ! LC_ALL=C grep -aqE -- "^ *$pattern *\$" "$2"; then
      problem "$3: the output has no line like: $line"
      missing=1
    fi
  done <"$1"
  [ "$missing" -eq 0 ] || { echo "the output:"; head -n 60 "$2"; }
}

run_document() { # document
  local document=$1 folder=$work/${1##*/} part command check code place
  mkdir "$folder" "$folder.root"
  split_document "$SOURCE/$document" "$folder"
  make_root "$folder.root"
  cd "$folder.root" || return
  export PATH=$PWD/bin:$PATH
  for part in "$folder"/*.command; do
    command=$(cat "$part")
    place="$document:$((10#$(basename "$part" .command)))"
    printf '%s: %s\n' "$place" "${command%%$'\n'*}"
    check=$(awk -F'|' -v command="$command" '$1 == command { print $2 }' "$work/instead")
    code=0
    if [ -n "$check" ]; then
      echo "$command" >>"$work/listed"
      $check >"$work/output" 2>&1 || code=$?
    else
      echo "$place" >>"$work/ran"
      eval "$command" >"$work/output" 2>&1 </dev/null || code=$?
    fi
    [ "$code" -eq 0 ] || problem "$place: exit code $code: $command: $(tail -n 3 "$work/output")"
    if [ "${check:-demo}" = demo ] && [ -s "${part%.command}.shown" ]; then
      compare "${part%.command}.shown" "$work/output" "$place"
    fi
  done
}

# Trainings take seconds; values in the command take precedence.
export TRIREME_MODEL_LAYERS=1 TRIREME_MODEL_WIDTH=32 TRIREME_MODEL_SEQUENCE=32 TRIREME_TRAIN_BATCH=4
for document in README.md docs/getting-started.md; do
  (run_document "$document")
done
unset "${!TRIREME_MODEL_@}" "${!TRIREME_TRAIN_@}"
ran=$(wc -l <"$work/ran")
[ "$ran" -ge 15 ] || problem "only $ran commands were found"
while IFS='|' read -r command check; do
  grep -qxF -- "$command" "$work/listed" || problem "listed, but in no document: $command"
done <"$work/instead"

# examples/: the commands in a configuration's first lines are accepted, for the ranks they name.
cd "$work" || exit 1
"$TRIREME" prepare --help >help
for file in "$SOURCE"/examples/*.toml; do
  name=${file##*/}
  vocabulary=$(sed -n 's/^vocabulary = \([0-9]*\).*/\1/p' "$file")
  zeros "$vocabulary" "$name.data" >log 2>&1 || problem "$name: prepare: $(tail -n 1 log)"
  ranks=$(sed -n 's/^# .* -n \([0-9]*\) .*trireme train .*/\1/p' "$file")
  grep -q "^#     .*trireme train --config examples/$name --data.path " "$file" || problem "$name: has no command to train"
  while read -r flag; do
    grep -q -- "^  $flag " help || problem "$name: prepare has no $flag"
  done < <(grep '^#     trireme prepare ' "$file" | grep -oE -- ' --[a-z-]+')
  read -r -a options <<<"$(sed -n 's/^#     .*trireme train --config [^ ]* --data.path [^ ]* *//p' "$file")"
  "$TRIREME" plan --ranks "$ranks" --config "$file" "${options[@]}" >log 2>&1 || problem "$name: plan: $(tail -n 1 log)"
  "$TRIREME" train --config "$file" --data.path "$name.data" --parallel.tensor 1 --parallel.pipeline 1 --dry-run >log 2>&1 ||
    problem "$name: train --dry-run: $(tail -n 1 log)"
done

lines=$(wc -l <"$SOURCE/README.md")
[ "$lines" -le 100 ] || problem "README.md has $lines lines, above 100"
for document in README.md docs/getting-started.md; do
  wide=$(LC_ALL=C awk -v name="$document" '
    /^```/ { inside = !inside }
    !inside && !/^\|/ { text = $0; gsub(/[\200-\277]/, "", text); if (length(text) > 100) print name ":" NR }' "$SOURCE/$document")
  [ -z "$wide" ] || problem "lines over 100 columns: $wide"
done

failures=$(wc -l 2>/dev/null <"$work/failures" || echo 0)
[ "$failures" -eq 0 ] && echo "$ran commands ran, $(wc -l <"$work/listed") were checked otherwise"
exit "$((failures > 0))"
