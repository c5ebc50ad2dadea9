#!/usr/bin/env bash
# bf16 on CPUs through the program: losses against fp32, predicted memory, checkpoints between bf16 and fp32, and
# processors without bf16 products.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1

run() {  # ranks, run folder, type, further flags
  local ranks=$1 out=$2 type=$3
  shift 3
  "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" train --data.path data --train.output "$out" --device cpu \
    --precision.compute "$type" --model.layers 2 --model.width 48 --model.heads 4 --model.sequence 33 --train.batch 8 \
    --train.micro_batch 2 --train.steps 20 --train.peak none --train.log_every 10 --optim.warmup_steps 5 "$@"
}
losses() { cat "$1"/attempts/*/metrics.jsonl | grep '"type": *"step"' | grep -o '"loss": *[0-9.]*' | tr -dc '0-9.\n'; }
near() {  # two run folders: 20 losses each, within 1 %
  paste <(losses "$1") <(losses "$2") | awk -v what="$1 and $2" '{
    e = ($1 - $2) / $1; if (e < 0) e = -e; if (e > worst) worst = e
  } END { printf "%s: largest relative difference %.2g\n", what, worst; exit !(NR == 20 && worst <= 0.01) }'
}

run 1 wide fp32 >out-wide
if grep -Eq '^ *bf16 products *(AMX|AVX512_BF16)' <("$TRIREME" info); then
  run 1 narrow bf16 >out-narrow
  near wide narrow
  if cmp -s <(losses wide) <(losses narrow); then
    echo "bf16 gave fp32's losses"
    exit 1
  fi
  for layout in "--parallel.zero 1" "--parallel.tensor 2" "--parallel.tensor 2 --numerics.reproducible true" "--parallel.pipeline 2"; do
    rm -rf ranks2
    run 2 ranks2 bf16 $layout >out-ranks2
    near wide ranks2
    cat out-ranks2 >>out-narrow
  done
  # Where chunks of rows are in flight, and where a vocabulary tile is longer than what a product sums at once.
  run 2 chunks bf16 --parallel.tensor 2 --model.width 512 --model.sequence 1000 --train.batch 3 --train.micro_batch 3 --train.steps 1 >>out-narrow
  run 1 tiles bf16 --numerics.reproducible true --model.width 128 --model.vocabulary 50257 --model.sequence 128 --train.micro_batch 8 --train.steps 1 >>out-narrow
  # Where the products that measure the peak take more than the run's, and calls of several sequences a set.
  run 1 peak bf16 --numerics.reproducible true --numerics.virtual_data 4 --model.layers 2 --model.width 96 --model.heads 3 --model.sequence 64 --train.batch 24 --train.micro_batch 12 --train.steps 1 --train.peak measured --parallel.threads 2 >>out-narrow
  # Where sums for biases of a call take most.
  run 1 sums bf16 --numerics.reproducible true --numerics.virtual_tensor 1 --numerics.virtual_data 2 --model.layers 1 --model.width 4 --model.heads 1 --model.hidden 65536 --model.sequence 512 --train.batch 2 --train.micro_batch 2 --train.steps 1 --parallel.threads 2 >>out-narrow
  if grep -n 'differs by' out-narrow; then
    cat out-narrow
    exit 1
  fi

  # Checkpoints hold the masters: resumed bf16 matches uninterrupted bf16, and the types resume from each other.
  run 1 halves bf16 --train.stop_after 10 >/dev/null
  cp -r halves to-wide
  run 1 halves bf16 >/dev/null
  diff <(losses narrow) <(losses halves)
  run 1 to-wide fp32 >/dev/null
  near wide to-wide
  run 1 to-narrow fp32 --train.stop_after 10 >/dev/null
  run 1 to-narrow bf16 >/dev/null
  near wide to-narrow
  cmp <(losses wide | head -10) <(losses to-narrow | head -10)
  [ "$(losses wide | tail -1)" != "$(losses to-narrow | tail -1)" ]

  # Stochastic rounding: other but close weights; resumed runs match uninterrupted ones, even after a skipped step.
  drawn=(bf16 --precision.rounding stochastic --train.inject nan@8)
  run 1 drawn "${drawn[@]}" --train.steps 12 >out-drawn
  grep -q '"skipped"' drawn/attempts/0001/metrics.jsonl
  run 1 drawn-halves "${drawn[@]}" --train.steps 12 --train.stop_after 8 >/dev/null
  run 1 drawn-halves "${drawn[@]}" --train.steps 12 >/dev/null
  diff <(losses drawn) <(losses drawn-halves)
  run 1 drawn-twenty bf16 --precision.rounding stochastic >/dev/null
  near wide drawn-twenty
  [ "$(losses narrow | tail -1)" != "$(losses drawn-twenty | tail -1)" ]
else
  echo "skipped: this processor has no AVX512_BF16; runs in bf16 are runs in fp32 here"
fi

# Stochastic rounding is for bf16 only.
if run 1 refused fp32 --precision.rounding stochastic >out-refused 2>&1; then exit 1; fi
[ "$(grep -c '^trireme: error: precision.rounding = stochastic: .*precision.compute = fp32.*use nearest' out-refused)" -eq 1 ]

# Without the instructions: one warning, and fp32 bit for bit, as recorded.
export ONEDNN_MAX_CPU_ISA=AVX2
run 1 without-wide fp32 >out-without-wide
run 1 without bf16 >/dev/null 2>err-without
[ "$(grep -c '^trireme: warning: precision.compute = bf16: .*computes in fp32' err-without)" -eq 1 ]
if grep '^warning' out-without-wide; then exit 1; fi
diff <(losses without-wide) <(losses without)
grep -q '"compute": *"fp32"' without/attempts/0001/run.json
"$TRIREME" info | grep '^ *bf16 products *widened'
# A checkpoint of bf16 is evaluated in fp32 there, with a warning.
if [ -d narrow ]; then
  "$TRIREME" evaluate --checkpoint narrow >/dev/null 2>err-evaluated
  grep -q '^trireme: warning: the checkpoint was trained in bf16, which .* does not compute in; fp32 is used' err-evaluated
fi
