#!/usr/bin/env bash
# One stage of the proof on a machine with a GPU: gpu_proof.sh correctness|layouts|speed|profile.
# Programs are taken from PATH (trireme, trireme_test_cuda, nccl_cuda, layouts_cuda, trireme_bench_steps): start it
# after `source BUNDLE/env` (scripts/gpu-bundle.sh), or with build/cuda's folders in PATH.
# Each step is a process with its own time limit; none stops the others. When all have run, those that failed are repeated
# alone and, if they fail again, without parts of the GPU libraries, one after another (TRIREME_CUDA_WITHOUT); the first
# of these also with CUDA_LAUNCH_BLOCKING and under compute-sanitizer. Random data has the seed TRIREME_TEST_SEED.
# Written to OUT (./gpu-proof): steps.jsonl, a line per step or repetition as it ends; table.txt; and logs.tar.gz, with
# their output and measurements. Ends 30 s before SECONDS_IN_ALL (600). TOGETHER steps run at a time (6 of correctness,
# 1 of layouts; those that are timed alone).
# STEP_SECONDS lowers the limits of all steps, for rehearsals.
# Exits 0 if every step passed, 1 if one failed or was left out, 77 if there is no device.
set -uo pipefail
stage=${1-}
case $stage in correctness|layouts|speed|profile) ;; *) echo "gpu_proof.sh: ${stage:-no stage}: name correctness, layouts, speed or profile" >&2; exit 2 ;; esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(realpath -m "${OUT:-gpu-proof}")
mkdir -p "$out"
work=$(mktemp -d "$out/work.XXXXXX")
logs=$work/logs
mkdir "$logs"
deadline=$((SECONDS + ${SECONDS_IN_ALL:-600} - 30))
launch=${MPIRUN:-mpirun}
parts=(cudnn gelu bias row_sum split timing cublaslt)
: >"$out/steps.jsonl"

export TRIREME_TEST_SEED=${TRIREME_TEST_SEED:-$RANDOM}

no_device='no CUDA device|sees no device'
# The outcome of a process that ended with code $1 and wrote log $2. Where there is a device, one that finds none failed.
outcome_of() {
  if [ "$1" = 124 ] || [ "$1" = 137 ]; then echo "time limit"
  elif [ "$1" = 0 ] && ! grep -qE "$no_device" "$2"; then echo passed
  else echo failed; fi
}

enough_time() { [ $((deadline - SECONDS)) -ge 10 ]; }

# Runs a command as $1 for at most $2 seconds, or what is left; "@" in its arguments becomes $1. Sets code and took.
run_limited() {
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  local words=("${@//@/$name}")
  [ "$limit" -le $((deadline - SECONDS)) ] || limit=$((deadline - SECONDS))
  [ "$limit" -le "${STEP_SECONDS:-$limit}" ] || limit=$STEP_SECONDS
  printf '$ %s\n' "${words[*]}" >"$logs/$name.log"
  timeout --kill-after=10 "$limit" "${words[@]}" >>"$logs/$name.log" 2>&1 </dev/null
  code=$?
  took=$((SECONDS - begin))
}

record() {  # step, outcome, seconds, code
  printf '{"stage": "%s", "step": "%s", "outcome": "%s", "seconds": %d, "code": %d}\n' "$stage" "$@" |
    tee -a "$out/steps.jsonl"
}

# Failed steps, in order: names, with their limits and commands in the next two. Steps run in processes of their own, so
# each failure is a file until all have run.
failed=()
declare -A limits commands
mkdir "$work/failures"
steps=0
# step NAME SECONDS COMMAND...: must pass. With MAY_FAIL=yes a failure is noted, and not repeated. Returns when fewer than
# `together` steps are running.
step() {
  steps=$((steps + 1))
  run_step "$(printf %03d $steps)" "$@" &
  while [ "$(jobs -rp | wc -l)" -ge "$together" ]; do wait -n; done
}
run_step() {  # number, as step
  local number=$1 name=$2 limit=$3 outcome
  shift 3
  if [ -n "$absent" ]; then record "$name" "no device" 0 77; return; fi
  if ! enough_time; then record "$name" "no time left" 0 0; return; fi
  run_limited "$name" "$limit" "$@"
  outcome=$(outcome_of "$code" "$logs/$name.log")
  if [ "$outcome" != passed ] && [ "${MAY_FAIL-}" = yes ]; then
    outcome+=" (allowed)"
  elif [ "$outcome" != passed ]; then
    printf '%s\n' "$name" "$limit" "$(printf '%q ' "$@")" >"$work/failures/$number"
  fi
  record "$name" "$outcome" "$took" "$code"
}

# repeat NAME AS TIMES WORD...: runs a failed step again as NAME.AS, after WORD..., in TIMES its limit; whether it passes.
repeat() {
  local name=$1 as=$2 times=$3 command outcome
  shift 3
  enough_time || return 1
  eval "command=(${commands[$name]})"
  run_limited "$name.$as" $((times * limits[$name])) "$@" "${command[@]}"
  outcome=$(outcome_of "$code" "$logs/$name.$as.log")
  record "$name.$as" "$outcome (repeated)" "$took" "$code"
  [ "$outcome" = passed ]
}

repeat_failed() {
  local name part file
  for file in "$work"/failures/*; do
    [ -e "$file" ] || continue
    { read -r name; read -r limits["$name"]; read -r commands["$name"]; } <"$file"
    failed+=("$name")
  done
  local still=()
  for name in "${failed[@]}"; do
    repeat "$name" alone 1 env || still+=("$name")
  done
  failed=("${still[@]}")
  for name in "${failed[@]}"; do
    for part in "${parts[@]}"; do
      if repeat "$name" "without-$part" 1 env TRIREME_CUDA_WITHOUT="$part"; then break; fi
    done
  done
  for name in "${failed[@]:0:1}"; do
    repeat "$name" blocking 1 env CUDA_LAUNCH_BLOCKING=1
    if command -v compute-sanitizer >/dev/null; then
      repeat "$name" sanitizer 4 compute-sanitizer --target-processes all --error-exitcode 3
    fi
  done
}

correctness() {
  step info 60 trireme info
  local suite
  for suite in CudaDevice Elementwise Norm Product Attention Libraries Activation ColumnSum Embedding Rotary Dropout \
    Loss Squares Optimizer; do
    step "suite.$suite" 90 trireme_test_cuda --gtest_filter="$suite*"
  done
  step nccl.one-rank 90 "$launch" -n 1 nccl_cuda
  # NCCL refuses two ranks on one GPU, unless it takes them for two machines.
  MAY_FAIL=yes step nccl.two-ranks-one-gpu 60 "$launch" -n 1 env NCCL_HOSTID=a nccl_cuda : -n 1 env NCCL_HOSTID=b nccl_cuda
  cat "$here"/../docs/*.md >"$work/text.txt"
  step prepare 60 trireme prepare --input "$work/text.txt" --output "$work/@.data"
  wait
  local train=(train --data.path "$work/prepare.data" --model.preset tiny --device cuda --train.steps 20 --train.quiet
    --train.evaluate_samples 0 --checkpoint.resume never)
  step train.fp32 60 trireme "${train[@]}" --train.output "$work/@.run"
  step train.bf16 60 trireme "${train[@]}" --train.output "$work/@.run" --precision.compute bf16
  step train.graphs 60 trireme "${train[@]}" --train.output "$work/@.run" --precision.compute bf16 --device.graphs true
  step train.fp16 60 trireme "${train[@]}" --train.output "$work/@.run" --precision.compute fp16
  step train.mpi 90 "$launch" -n 4 trireme "${train[@]}" --train.output "$work/@.run" --parallel.tensor 2 --parallel.zero 1
  step train.mpi-graphs 90 "$launch" -n 2 trireme "${train[@]}" --train.output "$work/@.run" --parallel.tensor 2 \
    --precision.compute bf16 --device.graphs true
}

layouts() {
  local part
  for part in LossesOfTwentySteps Reproducible LossesInBf16 Fast Graphs Offloaded; do
    step "layouts.$part" 200 "$launch" -n 8 layouts_cuda --gtest_filter="CudaLayouts.$part*"
  done
}

speed() {
  local model name
  local models=(gpt2:32 gpt2-xl:8 llama-1b:4:4096)
  for model in "${models[@]}"; do
    name=${model%%:*}
    step "steps.$name" 150 trireme_bench_steps --results "$logs/@.json" cuda bf16 "$model"
  done
  # In PyTorch's own environment: the bundle's libraries are not for it.
  for model in "${models[@]}"; do
    name=${model%%:*}
    MAY_FAIL=yes step "torch.$name" 120 env -u LD_LIBRARY_PATH -u OPAL_PREFIX "${PYTHON:-python3}" \
      "$here/peers/torch_steps.py" "$logs/steps.$name.json" --seconds 4 --json "$logs/@.json"
  done
}

profile() {
  local suite
  for suite in Attention Norm Loss Optimizer Embedding; do
    step "memcheck.$suite" 120 compute-sanitizer --error-exitcode 3 trireme_test_cuda --gtest_filter="$suite*"
  done
  step racecheck.Attention 120 compute-sanitizer --tool racecheck --error-exitcode 3 trireme_test_cuda --gtest_filter='Attention*'
  MAY_FAIL=yes step ncu.gpt2 180 ncu --clock-control none --section SpeedOfLight --launch-count 400 --csv \
    trireme_bench_steps --steps 1 cuda bf16 gpt2:32
}

# Without a device every step reports that at once.
absent=""
case $stage in
  correctness) together=${TOGETHER:-6} ;;
  layouts) together=${TOGETHER:-1} ;;
  *) together=1 ;;
esac
run_limited probe 60 trireme_test_cuda --gtest_filter=CudaDevice.RefusesInvalidIndices
if [ "$code" = 77 ] || grep -qE "$no_device" "$logs/probe.log"; then absent=yes; fi
case $together in *[!0-9]*|0*) echo "gpu_proof.sh: TOGETHER=$together: name how many steps run at a time, 1 or more" >&2; exit 2 ;; esac
"$stage"
wait
lost=$((steps - $(wc -l <"$out/steps.jsonl")))
[ "$lost" = 0 ] || echo "gpu_proof.sh: $lost of $steps steps left no line in $out/steps.jsonl" >&2
repeat_failed

# Logs at their last 1 MiB each, so that the archive stays below 16 MiB; of each run its record.
find "$logs" -name '*.log' -size +1024k -exec sh -c 'tail -c 1048576 "$1" >"$1.end" && mv "$1.end" "$1"' sh {} \;
for run in "$work"/*.run; do
  [ ! -d "$run/attempts" ] || cp -r "$run/attempts" "$logs/$(basename "$run")"
done
{
  printf '%-36s %-22s %8s\n' step outcome seconds
  sed -E 's/.*"step": "([^"]*)", "outcome": "([^"]*)", "seconds": ([0-9]*),.*/\1\t\2\t\3/' "$out/steps.jsonl" |
    while IFS=$'\t' read -r name outcome seconds; do printf '%-36s %-22s %8s\n' "$name" "$outcome" "$seconds"; done
} | tee "$out/table.txt"
tar -C "$work" -czf "$out/logs.tar.gz" logs && rm -rf "$work"
if [ -n "$absent" ]; then exit 77; fi
[ "$lost" = 0 ] && ! grep -qE '"outcome": "(failed|time limit|no time left)"' "$out/steps.jsonl"
