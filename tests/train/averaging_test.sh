#!/usr/bin/env bash
# Periodic averaging through the program: refused configurations, signals and limits between averages, evaluations,
# averages per pass, memory as planned, the report and a study of the method.
# shellcheck disable=SC2015  # what follows || ends the script
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1
fail() {
  echo "FAILED: $*"
  cat out err
  exit 1
}
model=(--data.path data --model.layers 2 --model.width 48 --model.heads 4 --model.sequence 33 --model.dropout 0.1
  --train.batch 8 --train.micro_batch 2 --train.peak none --data_parallel.method average)
run() {  # run folder, further flags; the exit code in $code
  local folder=$1
  shift
  code=0
  timeout 100 "$TRIREME_MPIEXEC" -n 2 "$TRIREME" train "${model[@]}" --train.output "$folder" --train.evaluate_at_end=false \
    "$@" >out 2>err || code=$?
}
steps() { cat "$1"/attempts/*/metrics.jsonl | grep '"type": *"step"' | sed -E 's/"(seconds|tokens_per_second|seal)": ?[^,}]*,?//g'; }
number() { tr -d ' \n' <"$1/attempts/0001/summary.json" | grep -o "\"$2\":[0-9.]*" | head -n 1 | cut -d: -f2; }
refuses() { # words, flags...
  local words=$1
  shift
  run refused "$@"
  [ "$code" -ne 0 ] && [ "$(grep -c '^trireme: error: ' err)" -eq 1 ] && grep -q -e "$words" err || fail "not refused: $words"
  [ ! -e refused ] || fail "$words: something was written"
}
refuses 'parallel.zero = 1: must be 0 with data_parallel.method = average.*use 0' --parallel.zero 1
refuses 'parallel.servers = 1: data_parallel.method = average has no servers' --parallel.servers 1
refuses "numerics.virtual_data = 8: must divide a worker's 4 sequences.*use 4, or a train.batch of 16" --numerics.reproducible true
refuses 'data_parallel.gradients = bf16: must be fp32 with data_parallel.method = average' --data_parallel.gradients bf16
refuses 'average.every = 0: must be at least 1' --average.every 0

# What is due every third step happens at the next average; the last average is at the last step.
run straight --train.steps 14 --average.every 4 --train.evaluate_every 3 --checkpoint.every 5 --checkpoint.keep 9 \
  --train.check placement --train.log_every 1
[ "$code" -eq 0 ] || fail "straight: exit code $code"
[ "$(steps straight | wc -l)" -eq 14 ] || fail "not a line for each step"
[ "$(grep -o '^step [0-9]*  validation' out | tr -dc '0-9\n' | paste -sd ' ')" = "4 8 12" ] || fail "evaluations"
[ "$(cd straight && echo step-*)" = "step-00000008 step-00000012 step-00000014" ] || fail "checkpoints: $(ls straight)"
[ "$(number straight count)" = 4 ] || fail "averages"
grep -q '^averages: 4 over 2 workers in 14 steps, each 0\.[0-9]* MB of a rank at least' out || fail "no line of averages"

# A signal between averages: the run ends at the next one and resumes from there unchanged.
"$TRIREME_MPIEXEC" -n 2 "$TRIREME" train "${model[@]}" --train.output signal --train.steps 4000 --average.every 7 \
  --average.outer nesterov --optim.schedule constant --train.evaluate_at_end=false --checkpoint.at_end=false \
  >out 2>err &
launcher=$!
for _ in $(seq 600); do
  [ -s signal/attempts/0001/metrics.jsonl ] && break
  sleep 0.1
done
kill -USR1 "$launcher"
code=0
wait "$launcher" || code=$?
[ "$code" -eq 75 ] || fail "signal: exit code $code"
step=$(sed -n 's/^stopped at step \([0-9]*\) of 4000: signal SIGUSR1; saved.*/\1/p' out)
[ -n "$step" ] && [ $((step % 7)) -eq 0 ] || fail "signal: stopped at step '$step'"
further=(--average.every 7 --average.outer nesterov --optim.schedule constant --train.steps $((step + 9)))
run signal "${further[@]}"
run whole "${further[@]}"
diff <(steps whole) <(steps signal) >diff.out || fail "signal: $(head -n 4 diff.out)"
cmp "whole/step-$(printf %08d $((step + 9)))/rank-00001.h5" "signal/step-$(printf %08d $((step + 9)))/rank-00001.h5"

# One worker with bad steps in a row ends the run at the next average.
run bad --train.steps 20 --average.every 5 --train.inject nan@6/1,nan@7/1,nan@8/1 --checkpoint.every 5
[ "$code" -eq 1 ] && grep -q 'error: step 10: the last of 3 steps in a row .*bad/step-00000005' err || fail "bad: $code"
[ "$(grep -c '"skipped": *"not finite (by 1 of 2 workers)"' bad/attempts/0001/metrics.jsonl)" -eq 3 ] || fail "bad: record"

# Averages per pass: a pass is (tokens − 1) / 33 windows, of which a step takes 8.
samples=$(tr -d ' \n' <straight/attempts/0001/run.json | grep -o '"train_samples":[0-9]*' | cut -d: -f2)
run pass --train.steps 40 --average.per_epoch 50
expected=$(awk -v w="$samples" 'BEGIN { for (s = 1; s <= 40; ++s) { a = int(8 * s * 50 / w); n += (a > b) || s == 40; b = a } print n }')
[ "$(number pass count)" = "$expected" ] && [ "$expected" -gt 5 ] && [ "$expected" -lt 35 ] ||
  fail "per_epoch: $(number pass count) averages, expected $expected"

# Memory as planned, by `plan` too. Without bf16 products a run in bf16 computes in fp32, and a plan is of bf16.
narrow=fp32
if grep -Eq '^ *bf16 products *(AMX|AVX512_BF16)' <("$TRIREME" info); then narrow=bf16; fi
for options in "" "--average.outer nesterov --average.optimizer_state average" "--precision.compute $narrow --average.outer nesterov" \
  "--checkpoint.async true --checkpoint.every 4"; do
  rm -rf memory
  # shellcheck disable=SC2086
  run memory --train.steps 8 --average.every 4 $options
  [ "$code" -eq 0 ] && ! grep -q 'no figure of merit' out && grep -q '^Figure of Merit (FOM): [0-9]' out || fail "memory: $options"
  # shellcheck disable=SC2086
  "$TRIREME" plan --ranks 2 "${model[@]}" $options >planned 2>err || fail "plan: $options"
  planned=$(awk '/^total/ { print $3 }' planned) measured=$(awk '/^total/ { last = $5 } END { print last }' out)
  [ -n "$planned" ] && [ "$planned" = "$measured" ] || fail "planned $planned MiB, measured $measured: $options"
done

# The report treats the method as part of the configuration, and a study can vary it.
"$TRIREME" report straight --shared-cores --json report.json >out 2>err || fail "report"
grep -q '"method": *"average"' report.json || fail "report: no method"
if command -v python3 >/dev/null; then
  printf 'data\naverage4 --data_parallel.method average --average.every 4\n' >layouts
  python3 -B "$SOURCE/jobs/scaling-study" --mode strong --ranks 1,2 --batch 8 --steps 8 --repeats 1 --layouts layouts \
    --launcher local --shared-cores --output study -- "${model[@]:0:10}" --train.peak none >out 2>err || fail "study"
  [ "$(grep -c '"state": "done"' study/index.json)" -eq 4 ] || fail "study: points"
  grep -q 'data 2, average' study/report.json && grep -q 'average4 ' out || fail "study: the method is not reported"
fi
echo ok
