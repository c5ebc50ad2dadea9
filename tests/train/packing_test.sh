#!/usr/bin/env bash
# Whole documents in sequences: the bits of one rank in every layout and after a restart in the middle of an epoch, with
# and without what the checkpoint knows of earlier groups; padding is counted; a blend packs each source.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$out"
fail() {
  echo "FAILED: $*"
  tail -n 30 text errors
  exit 1
}
awk 'BEGIN { srand(5); for (i = 0; i < 900; ++i) { n = 1 + int(-6 * log(1 - rand())); if (i % 50 == 0) n = 40
  for (j = 0; j < n; ++j) printf "%s ", substr("oar sea keel prow tide rope hull ", 1 + 5 * int(6 * rand()), 5); print i } }' > text.txt
"$TRIREME" prepare --input text.txt --output data --documents line > text 2> errors || fail "prepare"

# train RANKS OUTPUT OPTIONS...
train() {
  local ranks=$1 output=$2
  shift 2
  "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" train --train.output "$output" --model.preset tiny --model.width 32 \
    --model.layers 2 --model.heads 2 --model.sequence 128 --train.batch 8 --train.steps 60 --train.micro_batch 1 \
    --data.path data --data.packing documents --data.document_mask true --numerics.reproducible true \
    --numerics.virtual_data 8 --numerics.virtual_tensor 2 --optim.learning_rate 0.01 --train.peak none \
    --train.quiet true --train.evaluate_samples 2 "$@" > text 2> errors
}
losses() { grep -h '"type":"step"' "$1"/attempts/*/metrics.jsonl | grep -o '"\(gradient_norm\|loss\|step\)":[^,]*'; }
train 1 one --train.quiet false || fail "one rank"
grep -q '^padding: [1-9][0-9]* of 61440 tokens, [0-9.]* %' text || fail "no line about padding"
padding=$(grep -o '"padding": *[0-9]*' one/attempts/0001/summary.json | head -n 1)
awk -v n="${padding##* }" 'BEGIN { exit !(n > 0 && n < 0.03 * 61440) }' || fail "padding: $padding"
for layout in "2 --parallel.tensor 2" "2 --parallel.pipeline 2" "4 --parallel.zero 3" "2 --parallel.zero 1"; do
  rm -rf other
  train ${layout%% *} other ${layout#* } || fail "$layout"
  cmp <(losses one) <(losses other) || fail "$layout: other bits"
  [ "$(grep -o '"padding": *[0-9]*' other/attempts/0001/summary.json | head -n 1)" = "$padding" ] || fail "$layout: padding"
done

# Stopped in the second epoch and continued on other ranks.
train 2 cut --train.stop_after 37 || fail "the first steps"
grep -q '"packed"' cut/step-*/manifest.json || fail "the checkpoint has no cursor"
cp -r cut other_groups
train 4 cut || fail "the last steps"
cmp <(losses one) <(losses cut) || fail "stopped and continued: other bits"
train 1 other_groups --train.seed 7 || fail "another seed"
if cmp -s <(losses one) <(losses other_groups); then fail "another seed: the same samples"; fi

# Without a mask documents follow one another; without shuffling the first is the text's.
train 1 plain --data.document_mask false --train.steps 3 || fail "without a mask"
"$TRIREME" train --dry-run --samples 2 --ranks 2 --model.preset tiny --model.sequence 128 --train.batch 4 \
  --data.path "0.5 data, 0.5 $out/data2" --data.packing documents > text 2> errors && fail "a blend of nothing"
cp -r data data2
"$TRIREME" train --dry-run --samples 2 --ranks 2 --model.preset tiny --model.sequence 128 --train.batch 4 \
  --data.path "0.5 data, 0.5 data2" --data.packing documents --data.shuffle false > text 2> errors || fail "a blend"
grep -q '^rank  *sample  source  *its sample  *first token  *pieces  *padding' text || fail "table of samples"
train 2 blended --data.path "0.5 data, 0.5 data2" --train.steps 4 || fail "a blend"
if train 1 refused --data.packing best > text 2> errors; then fail "not refused"; fi
grep -q '^trireme: error: --data.packing = best: must be one of windows, documents' errors || fail "refusal"
