#!/usr/bin/env bash
# A dataset with prompts that are not learned: the bits are those of one rank in every layout, the loss is that of the
# answers alone, a step without any target changes nothing but the step's number.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$out"
fail() {
  echo "FAILED: $*"
  tail -n 30 text errors
  exit 1
}
# Prompts of random digits, which cannot be learned, and answers that can.
awk 'BEGIN { srand(7); for (i = 0; i < 600; ++i) {
  printf "{\"question\": \""; for (j = 0; j < 24; ++j) printf "%d", int(10 * rand()); print "\", \"answer\": \" the sea\"}" } }' > chats.jsonl
prepare() { "$TRIREME" prepare --input chats.jsonl --documents jsonl:answer "$@" > text 2> errors || fail "prepare $*"; }
prepare --output answers --prompt question
# " the sea" and its end are nine tokens, and nine documents in ten are trained on.
grep -qx 'learned  4,860 tokens' text || fail "prepare does not say what is learned"
sed 's/"question": "\([0-9]*\)", "answer": "/"answer": "\1/' chats.jsonl > whole.jsonl
"$TRIREME" prepare --input whole.jsonl --documents jsonl:answer --output whole > text 2> errors || fail "prepare whole"
"$TRIREME" inspect answers --verify > text 2> errors || fail "inspect"
grep -q "loss weights  *0 for tokens of prompts" text || fail "inspect says nothing of loss weights"

# train RANKS OUTPUT OPTIONS...
train() {
  local ranks=$1 output=$2
  shift 2
  "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" train --train.output "$output" --model.preset tiny \
    --model.width 32 --model.layers 2 --model.heads 2 --model.sequence 64 --train.batch 8 --train.steps 40 \
    --train.micro_batch 1 --data.path answers --numerics.reproducible true --numerics.virtual_data 8 \
    --numerics.virtual_tensor 2 --optim.learning_rate 0.01 --train.peak none --train.quiet true \
    --train.evaluate_every 20 "$@" > text 2> errors
}
losses() { grep -o '"\(gradient_norm\|loss\|step\)":[^,]*' "$1"/attempts/0001/metrics.jsonl; }
last() { grep '"type":"evaluation"' "$1"/attempts/0001/metrics.jsonl | tail -n 1 | grep -o "\"$2\":[^,]*" | cut -d: -f2; }
train 1 one || fail "one rank"
for layout in "--parallel.tensor 2" "--parallel.pipeline 2" "--parallel.zero 3" "--data.document_mask true"; do
  rm -rf other
  train 2 other $layout || fail "$layout"
  [[ $layout == *mask* ]] && continue
  cmp <(losses one) <(losses other) || fail "$layout: other bits"
done
train 1 digits --data.path whole || fail "without loss weights"
# Answers become certain; digits never fall below ln 10 for 24 of 33 tokens.
awk -v a="$(last one loss)" -v b="$(last digits loss)" 'BEGIN { exit !(a < 0.5 && b > 1.5) }' ||
  fail "loss $(last one loss) of answers, $(last digits loss) of all"
# 9 of 33 tokens are targets.
awk -v a="$(last one tokens)" -v b="$(last digits tokens)" 'BEGIN { exit !(a / b > 0.25 && a / b < 0.3) }' ||
  fail "$(last one tokens) and $(last digits tokens) targets"

sed 's/ the sea//' chats.jsonl > silent.jsonl
"$TRIREME" prepare --input silent.jsonl --documents jsonl:answer --prompt question --end-of-document none --output silent > text 2> errors || fail "prepare silent"
grep -q '^note: no token is learned: ' text || fail "a dataset without answers is not noted"

# One answer behind a prompt of 19 windows: most steps have no target.
awk 'BEGIN { printf "{\"question\": \""; for (i = 0; i < 1213; ++i) printf "%d", i % 7; print "\", \"answer\": \"yes\"}" }' > chats.jsonl
prepare --output empty --prompt question --valid-fraction 0
train 1 rare --data.path empty --data.shuffle false --train.batch 1 --numerics.virtual_data 1 --optim.weight_decay 0 || fail "steps without targets"
grep -q '"loss":0.0,' rare/attempts/0001/metrics.jsonl || fail "no step without a target"
grep -q '"loss":[1-9]' rare/attempts/0001/metrics.jsonl || fail "no step with one"
if grep -q 'nan' rare/attempts/0001/metrics.jsonl; then fail "a loss is not a number"; fi
