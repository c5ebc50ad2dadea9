#!/usr/bin/env bash
# train --dry-run --ranks: a job of many ranks is checked on one, and what would fail there is refused in one line.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() {
  echo "FAILED: $*"
  cat "$out/text" "$out/errors"
  exit 1
}
yes 'Words follow one another in a text that is long enough to be learned from.' | head -n 400 > "$out/text.txt" || true
"$TRIREME" prepare --input "$out/text.txt" --output "$out/data" > "$out/text" 2>&1
dry() {
  "$TRIREME" train --dry-run --data.path "$out/data" --model.preset small --train.output "$out/run" "$@" \
    > "$out/text" 2> "$out/errors"
}
for layout in "--parallel.tensor 4 --parallel.pipeline 2 --parallel.zero 1" \
  "--parallel.pipeline 4 --parallel.schedule zero-bubble" "--parallel.zero 3 --device.type cuda" \
  "--parallel.tensor 2 --parallel.sequence true --numerics.reproducible true --numerics.virtual_data 16"; do
  # shellcheck disable=SC2086
  dry --ranks 32 --train.batch 64 --train.micro_batch 1 $layout || fail "$layout"
  grep -q '^# programs: of 32 ranks in [0-9]* kinds*; every message has its receiver' "$out/text" || fail "$layout: programs"
  grep -q '^# stash' "$out/text" || fail "$layout: memory"
done
[ ! -e "$out/run" ] || fail "a dry run writes"
# What it prints is the configuration still.
grep -v '^#' "$out/text" > "$out/again.toml"
"$TRIREME" train --dry-run --config "$out/again.toml" --ranks 32 > "$out/twice" 2> "$out/errors" || fail "its own TOML"
grep -q '^# programs: of 32 ranks' "$out/twice" || fail "its own TOML"
# As many ranks as a large machine has, on one.
dry --ranks 65536 --train.batch 65536 --train.micro_batch 1 --parallel.tensor 4 --parallel.zero 1 || fail "65,536 ranks"
dry --ranks 8 --data_parallel.method average || fail "workers that average"
grep -q '^# programs: not checked' "$out/text" || fail "workers that average"

refused() {
  local want=$1
  shift
  if dry "$@"; then fail "not refused: $*"; fi
  [ "$(wc -l < "$out/errors")" -eq 1 ] || fail "more than a line: $*"
  grep -q "^trireme: error: .*$want" "$out/errors" || fail "not '$want': $*"
}
refused 'parallel.tensor = 3' --ranks 32 --parallel.tensor 3
refused 'train.batch = 8' --ranks 32 --train.batch 8
refused 'ranks' --ranks 0 --train.batch 8
if "$TRIREME" train --ranks 8 --data.path "$out/data" > "$out/text" 2> "$out/errors"; then fail "--ranks alone"; fi
grep -q 'error: train: --ranks belongs to --dry-run' "$out/errors" || fail "--ranks alone"

# A dry run begins where the run would, and refuses what it would refuse.
flags=(--data.path "$out/data" --model.preset tiny --model.width 32 --model.heads 2 --model.layers 1 --model.sequence 32
  --train.peak none --train.batch 2)
train() { "$TRIREME" train "${flags[@]}" "$@" > "$out/text" 2> "$out/errors"; }
samples() { grep -oE '^0 +[0-9]+' "$out/text" | grep -oE '[0-9]+$' | tr '\n' ' '; }
train --train.output "$out/first" --train.steps 10 || fail "a run"
train --dry-run --train.output "$out/second" --resume "$out/first" --train.batch 4 --train.steps 12 --samples 11 || fail "--samples after --resume"
[ "$(samples)" = "20 21 22 23 " ] || fail "--samples after --resume: $(samples)"
train --dry-run --train.output "$out/first" --train.steps 12 --samples 12 || fail "--samples of a run that goes on"
[ "$(samples)" = "22 23 " ] || fail "--samples of a run that goes on: $(samples)"
for wrong in "--train.output $out/second --resume $out/first --samples 3" "--train.output $out/second --resume $out/none" \
  "--train.output $out/first --resume never" "--train.output $out/first --model.layers 2" \
  "--train.output $out/first --train.steps 5 --samples 3"; do
  # shellcheck disable=SC2086
  if train --train.steps 12 --dry-run $wrong; then fail "not refused: $wrong"; fi
  [ "$(grep -c '^trireme: error: ' "$out/errors")" -eq 1 ] || fail "not one line: $wrong"
done
