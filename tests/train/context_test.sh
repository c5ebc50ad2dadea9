#!/usr/bin/env bash
# Context parallelism in the program: the bits of one rank in reproducible mode, over a restart in another layout too;
# the same loss in fast mode; evaluations that count each token once; one line for what is wrong.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$out"
fail() {
  echo "FAILED: $*"
  tail -n 30 text errors
  exit 1
}
yes "Words of this text follow one another and are long enough to be learned from." | head -n 400 | nl > text.txt || true
"$TRIREME" prepare --input text.txt --output data --documents line > text 2> errors || fail "prepare"

# train RANKS OUTPUT OPTIONS...
train() {
  local ranks=$1 output=$2
  shift 2
  "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" train --train.output "$output" --model.preset tiny --model.width 32 \
    --model.layers 2 --model.heads 4 --model.kv_heads 2 --model.norm rmsnorm --model.position rotary \
    --model.activation swiglu --model.bias false --model.sequence 64 --train.batch 4 --train.steps 4 \
    --train.micro_batch 1 --data.path data --data.document_mask true --train.peak none --train.quiet true \
    --train.evaluate_every 2 --train.evaluate_samples 6 "$@" > text 2> errors
}
reproducible="--numerics.reproducible true --numerics.virtual_data 4 --numerics.virtual_tensor 2 --numerics.virtual_context 4"
losses() { cat "$1"/attempts/*/metrics.jsonl | grep -o '"\(gradient_norm\|loss\|step\|tokens\)":[^,]*' | sort -u; }
train 1 one $reproducible --checkpoint.every 2 || fail "one rank"
for layout in "2 --parallel.context 2" "4 --parallel.context 4" "4 --parallel.context 4 --context.exchange ring" "4 --parallel.context 2 --parallel.tensor 2 --parallel.sequence true" \
  "4 --parallel.context 2 --parallel.zero 3" "4 --parallel.context 2 --parallel.pipeline 2 --parallel.recompute full"; do
  rm -rf other
  train ${layout%% *} other $reproducible ${layout#* } || fail "$layout"
  cmp <(losses one) <(losses other) || fail "$layout: other bits"
done
# Memory as predicted, with messages by MPI, whose sums take scratch.
rm -rf other
train 2 other $reproducible --parallel.context 2 --comm.tensor mpi --train.quiet false || fail "messages by MPI"
grep -q 'Figure of Merit (FOM): [0-9]' text || fail "memory is not as predicted"
# Stopped, and continued in another layout.
train 2 cut $reproducible --parallel.context 2 --train.stop_after 2 || fail "the first two steps"
train 4 cut $reproducible --parallel.context 4 || fail "the last two"
cmp <(losses one) <(losses cut) || fail "stopped and continued: other bits"

# Fast mode: the loss to five digits, and as many tokens evaluated.
evaluated() { grep '"type":"evaluation"' "$1"/attempts/0001/metrics.jsonl | tail -n 1 | grep -o "\"$2\":[^,]*" | cut -d: -f2; }
train 1 fast || fail "fast, one rank"
for context in 2 4; do
  train $context fast$context --parallel.context $context || fail "fast, context $context"
  awk -v a="$(evaluated fast loss)" -v b="$(evaluated fast$context loss)" 'BEGIN { exit !((a - b) ^ 2 < 1e-10 * a * a) }' ||
    fail "context $context: loss $(evaluated fast$context loss), one rank $(evaluated fast loss)"
  [ "$(evaluated fast tokens)" = "$(evaluated fast$context tokens)" ] || fail "context $context: tokens evaluated"
done
grep -q '"context": *4' fast4/attempts/0001/run.json || fail "the record has no context degree"
"$TRIREME" report fast4 > text 2> errors || true  # more ranks than cores make it invalid
grep -q '|     4 |   1   4   1   1 |\|^INVALID fast4' text || fail "report"

# What is wrong is named in one line.
refused() {
  local ranks=$1 want=$2
  shift 2
  if train "$ranks" refused "$@"; then fail "not refused: $*"; fi
  [ "$(grep -c '^trireme: error' errors)" -eq 1 ] || fail "not one line: $*"
  grep -q "^trireme: error: .*$want" errors || fail "not '$want': $*"
  [ ! -e refused ] || fail "writes: $*"
}
refused 3 'parallel.context = 2: must divide the number of ranks, 3' --parallel.context 2
refused 2 'model.sequence = 66: must divide by 2 x parallel.context, 4; use 68' --parallel.context 2 --model.sequence 66
refused 2 'model.attention_dropout = 0.1: must be 0 with parallel.context = 2' --parallel.context 2 --model.attention_dropout 0.1
refused 2 'parallel.context = 2: must divide numerics.virtual_context = 1' --parallel.context 2 --numerics.reproducible true --numerics.virtual_data 4
refused 2 'parallel.context = 2: must be 1 with data_parallel.method = average' --parallel.context 2 --data_parallel.method average
if "$TRIREME_MPIEXEC" -n 2 "$TRIREME" generate --checkpoint one --parallel.context 2 --tokens 3 --prompt W > text 2> errors; then
  fail "generate by context ranks"
fi
grep -q '^trireme: error: parallel.context = 2: must be 1 for generate' errors || fail "generate: message"
"$TRIREME" generate --checkpoint one $reproducible --tokens 3 --prompt W > text 2> errors || fail "generate in reproducible mode"
