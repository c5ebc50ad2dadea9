#!/usr/bin/env bash
# The replica check reports nothing in correct runs: ALARM_STEPS steps on four ranks, checked after each step.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1
steps=${ALARM_STEPS:-250}
gpt2="--model.width 16 --model.heads 2"
llama="--model.width 24 --model.heads 4 --model.kv_heads 1 --model.norm rmsnorm --model.position rotary --model.activation swiglu
  --model.bias false"
for layout in "$gpt2 --parallel.tensor 2 --parallel.sequence true" "$llama --parallel.zero 3 --zero.group 2" \
  "$gpt2 --parallel.pipeline 2 --parallel.zero 2" "$llama --parallel.tensor 2 --parallel.zero 1"; do
  rm -rf run
  "$TRIREME_MPIEXEC" -n 4 "$TRIREME" train --data.path data --train.output run --model.layers 2 --model.sequence 16 \
    --model.dropout 0.1 --train.batch 4 --train.micro_batch 1 --train.steps "$steps" --train.peak none --train.quiet \
    --train.evaluate_at_end=false --checkpoint.at_end=false --train.check placement $layout
  [ "$(grep -c '"type": *"step"' run/attempts/0001/metrics.jsonl)" -eq "$steps" ]
  echo $layout: "$steps steps, no alarm"
done
