#!/usr/bin/env bash
# Starting again: a finished run, other settings, another layout, damaged checkpoints, signals at any time; warnings of a
# quiet run; datasets without a split; faults that name no rank or step.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
fail() {
  echo "FAILED: $*"
  cat out err
  exit 1
}
awk 'BEGIN { for (i = 0; i < 4000; ++i) printf "%s ", i * 7919 % 1009 }' >text
"$TRIREME" prepare --input text --output data >out 2>err
arguments=(--data.path data --model.layers 2 --model.width 32 --model.heads 2 --model.sequence 32 --train.batch 4 --train.peak none)
run() { # ranks, run folder, further flags; the exit code in $code
  local ranks=$1 folder=$2
  shift 2
  code=0
  timeout 100 "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" train "${arguments[@]}" --train.output "$folder" "$@" >out 2>err || code=$?
}
valid() { "$TRIREME" report "$1" --shared-cores >report 2>&1 && ! grep -q INVALID report || fail "$1: $(cat report)"; }

# A finished run has nothing left to do: it says so, does not evaluate again, and stays valid.
run 1 done --train.steps 8
[ "$code" -eq 0 ] || fail "first start: $code"
run 1 done --train.steps 8
[ "$code" -eq 0 ] && grep -q '^already at step 8 of 8; raise train.steps to continue$' out || fail "finished: $code"
! grep -q 'validation loss\|differs\|changed since' out || fail "finished: evaluates, or something differs"
valid done
run 1 done --train.steps 8 --train.evaluate_at_end=true
grep -q '^step 8  validation loss' out || fail "finished: no evaluation where it was asked for"
# The same start moves it to another layout.
run 2 moved --train.steps 8 --resume done/step-00000008
[ "$code" -eq 0 ] && [ -e moved/step-00000008/manifest.json ] || fail "moved: $code"
valid moved

for method in server async-server; do # two of five ranks are servers
  flags=(--data_parallel.method "$method" --parallel.servers 2 --train.batch 6 --train.steps 8)
  run 5 "$method" "${flags[@]}"
  [ "$code" -eq 0 ] || fail "$method: $code"
  run 5 "$method" "${flags[@]}"
  [ "$code" -eq 0 ] && grep -q '^already at step 8 of 8' out || fail "$method, finished: $code"
  valid "$method"
done

# A run that ends before its first save in the background has no copy for it, and is valid.
run 2 unsaved --train.steps 8 --checkpoint.async --checkpoint.every 100
[ "$code" -eq 0 ] && grep -q '^Figure of Merit (FOM): [1-9]' out || fail "no background save: $code"
valid unsaved

# Settings that differ from the checkpoint's are printed and recorded.
run 1 done --train.steps 12 --optim.learning_rate 5e-4
grep -q '^note: changed since the checkpoint: optim.learning_rate 0.001 → 0.0005$' out || fail "learning rate: not printed"
grep -q '^note: changed since the checkpoint: train.steps 8 → 12$' out || fail "steps: not printed"
grep -q '"changed".*train.steps 8 → 12' done/attempts/*/metrics.jsonl || fail "steps: not recorded"
[ "$(grep -c '^note: changed' out)" -eq 2 ] || fail "more was changed than two settings"

# A quiet run warns. With all checkpoints damaged it does not begin anew unless that is asked for, and keeps them.
printf x >>done/step-00000012/manifest.json
run 1 done --train.steps 16 --train.stop_after 1 --train.quiet
[ "$code" -eq 0 ] && [ ! -s out ] && grep -q '^trireme: warning: passed over: done/step-00000012/manifest.json: ' err || fail "quiet: $code"
for manifest in done/step-*/manifest.json; do printf x >>"$manifest"; done
before=$(find done -name 'step-*' | sort)
run 2 done --train.steps 16
[ "$code" -eq 1 ] && [ "$(grep -c '^trireme: error: ' err)" -eq 1 ] && grep -q 'no checkpoint of done is whole' err || fail "all damaged: $code"
[ "$(find done -name 'step-*' | sort)" = "$before" ] || fail "all damaged: something was changed"
run 1 done --train.steps 9 --resume never
[ "$code" -eq 0 ] && [ -e done/step-00000009/manifest.json ] && [ -e done/step-00000009.damaged/manifest.json ] || fail "never: $code"

# Signals before training begins, and the second SIGINT.
signaled() { # signal; the program in $program
  kill "-$1" "$program"
  code=0
  wait "$program" || code=$?
}
await() { # pattern, file
  for ((i = 0; i < 2000; ++i)); do
    if grep -q "$1" "$2" 2>/dev/null; then return; fi
    sleep 0.005
  done
  fail "$2 never has $1"
}
start() {
  rm -rf signals out err  # await must not see those of the run before
  "$TRIREME" train "${arguments[@]}" --train.output signals --train.steps 1000000 --checkpoint.at_end=true "$@" >out 2>err &
  program=$!
}
for signal in TERM USR1 USR2; do
  start
  # USR1 is held back: the first thing that the program does (bash holds back others before it starts it).
  await 'SigBlk:.*[2367abef][0-9a-f][0-9a-f]$' "/proc/$program/status"
  signaled "$signal"
  [ "$code" -eq 75 ] && grep -q "signal SIG$signal; saved" out || fail "early $signal: $code"
done
start --train.signals TERM
await ' 10/1000000 ' out
signaled USR1
[ "$code" -eq 138 ] || fail "a signal that is not watched: $code"
start
await ' 10/1000000 ' out
signaled INT
[ "$code" -eq 75 ] && [ -n "$(ls -d signals/step-*)" ] || fail "INT: $code"
start --train.inject slow@100000 --train.watchdog 0  # no step ends
await . signals/attempts/0001/run.json
sleep 0.5
kill -INT "$program"
sleep 0.5
kill -0 "$program" || fail "the first SIGINT ended the run at once"
signaled INT
[ "$code" -eq 130 ] || fail "second INT: $code"

# Datasets with one split.
"$TRIREME" prepare --input text --output all --valid-fraction 0 >out 2>err
arguments[1]=all
run 2 unsplit --train.steps 3 --train.evaluate_every 1
[ "$code" -eq 0 ] && grep -q '^no evaluation: the validation split has 0 tokens' out || fail "without validation: $code"
"$TRIREME" prepare --input text --output test --valid-fraction 1 >out 2>err || fail "a test set"
"$TRIREME" evaluate --checkpoint unsplit --data.path test >out 2>err || fail "evaluation of a test set"
arguments[1]=test
run 2 untrained --train.steps 3
[ "$code" -eq 1 ] && grep -q 'test has 0 tokens to train on' err || fail "training on a test set: $code"

# Faults that are not in the run; one of a rank that is not on the last stage.
arguments[1]=data
run 2 no --train.steps 6 --train.inject nan@7
grep -q 'train.inject = nan@7: there is no step 7; use a step from 1 to train.steps = 6' err || fail "step 7"
run 2 no --train.steps 6 --train.inject nan@3/2
grep -q 'train.inject = nan@3/2: there is no rank 2; use a rank from 0 to 1' err || fail "rank 2"
for rank in 0 1; do
  run 2 pipeline --train.steps 4 --train.inject "nan@3/$rank" --parallel.pipeline 2 --checkpoint.at_end=false
  grep -q '^step 3/4  loss nan  norm nan ' out || fail "pipeline: the gradient of step 3 is finite"
  rm -rf pipeline
done
echo "restarts: as they should be"
