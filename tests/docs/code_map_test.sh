#!/usr/bin/env bash
# Each row of the tables "what | file | function or type" in docs/code-map.md names a file of the tree and names that
# are words of it; of `Class::member` both parts. The check is first tried on rows that are wrong.
set -euo pipefail
cd "${SOURCE:-$(dirname "$0")/../..}"
page=docs/code-map.md

# The rows of those tables on standard input.
rows() {
  awk '/^\| what \| file \| function or type \|$/ { table = 1; next } !/^\|/ { table = 0 } table && !/^\|-/'
}

# What is wrong with the rows on standard input.
faults() {
  local row what file names name part
  while IFS= read -r row; do
    IFS='|' read -r _ what file names _ <<<"$row"
    file=$(tr -d '` ' <<<"$file")
    # shellcheck disable=SC2016
    names=$(grep -o '`[^`]*`' <<<"$names" | tr -d '`' || true)
    [ -n "$names" ] || echo "$what: the last column names nothing"
    if [ ! -f "$file" ]; then
      echo "$what: there is no file $file"
      continue
    fi
    while IFS= read -r name; do
      for part in ${name//::/ }; do
        grep -qwF -- "$part" "$file" || echo "$what: $file has no $part"
      done
    done <<<"$names"
  done
}

# shellcheck disable=SC2016
planted='| what | file | function or type |
|---|---|---|
| right | `src/train/trainer.cpp` | `Trainer::step` |
| file | `src/train/coach.cpp` | `Trainer` |
| part | `src/train/trainer.cpp` | `Trainer::step`, `Coach::step` |
| member | `src/train/trainer.cpp` | `Trainer::stop_earl` |
| none | `src/train/trainer.cpp` | Trainer |

| what | else |
|---|---|
| other | table |'
expected=' file : there is no file src/train/coach.cpp
 part : src/train/trainer.cpp has no Coach
 member : src/train/trainer.cpp has no stop_earl
 none : the last column names nothing'
found=$(rows <<<"$planted" | faults)
[ "$found" = "$expected" ] || { printf 'wrong rows are not found:\n%s\n' "$found"; exit 1; }

count=$(rows <"$page" | wc -l)
[ "$count" -ge 70 ] || { echo "only $count rows in $page"; exit 1; }
wrong=$(rows <"$page" | faults)
if [ -n "$wrong" ]; then
  echo "$page:"
  echo "$wrong"
  exit 1
fi
echo "$count rows name what is there"
