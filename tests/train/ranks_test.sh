#!/usr/bin/env bash
# The same global batch on 1, 2 and 4 ranks: the losses of 20 steps agree within 1e-5, and memory is as predicted.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1
for preset in "gelu --model.norm layernorm --model.position learned" \
              "swiglu --model.norm rmsnorm --model.position rotary --model.bias false --model.kv_heads 2 --model.tied false"; do
  for ranks in 1 2 4; do
    rm -rf "run$ranks"
    "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" train --data.path data --train.output "run$ranks" --model.layers 2 \
      --model.width 48 --model.heads 4 --model.sequence 33 --model.activation $preset --train.batch 8 \
      --train.steps 20 --train.peak none --train.log_every 10 --optim.warmup_steps 5 >"out$ranks"
    grep -o '"loss": *[0-9.]*' "run$ranks/attempts/0001/metrics.jsonl" | head -20 | tr -dc '0-9.\n' >"losses$ranks"
    [ "$(wc -l <"losses$ranks")" -eq 20 ]
    grep -q '^Figure of Merit (FOM): [0-9.]* tokens/s' "out$ranks"
    if grep -n 'differs by' "out$ranks"; then
      cat "out$ranks"
      exit 1
    fi
  done
  for ranks in 2 4; do
    paste losses1 "losses$ranks" | awk -v ranks="$ranks" '{
      e = ($1 - $2) / $1; if (e < 0) e = -e; if (e > worst) worst = e
    } END { printf "%d ranks: largest relative difference %.2g\n", ranks, worst; exit !(worst <= 1e-5) }'
  done
done
