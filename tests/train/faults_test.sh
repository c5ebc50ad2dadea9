#!/usr/bin/env bash
# Faults in training: skipped steps, damaged replicas, signals, time limits and failing saves.
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
run() {  # run folder, further flags; the exit code in $code
  local folder=$1
  shift
  code=0
  timeout 100 "$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --data.path data --train.output "$folder" --model.layers 2 --model.width 48 \
    --model.heads 4 --model.sequence 33 --model.dropout 0.1 --train.batch 8 --train.micro_batch 2 --train.peak none \
    --train.evaluate_at_end=false "$@" >out 2>err || code=$?
}
errors() { grep -c '^trireme: error: ' err || true; }
steps() { cat "$1"/attempts/*/metrics.jsonl | grep '"type": *"step"' | sed -E 's/"(seconds|tokens_per_second|seal)": ?[^,}]*,?//g'; }

# A NaN on one rank: both ranks skip the update and continue.
for layout in "" "--parallel.zero 3" "--parallel.tensor 2" "--parallel.pipeline 2"; do
  rm -rf nan
  run nan --train.steps 8 --train.inject nan@5/1 --train.check placement $layout
  [ "$code" -eq 0 ] || fail "nan ($layout): exit code $code"
  [ "$(grep -c '"skipped": *"not finite"' nan/attempts/0001/metrics.jsonl)" -eq 1 ] || fail "nan ($layout): not skipped once"
  [ "$(grep '"skipped"' nan/attempts/0001/metrics.jsonl | grep -c '"step": *5,')" -eq 1 ] || fail "nan ($layout): not step 5"
  grep -q 'step *5/8 .*SKIPPED: not finite' out || fail "nan ($layout): not shown"
  # A non-finite norm of gradients that only one rank holds, with a finite loss.
  rm -rf inf
  run inf --train.steps 8 --train.inject inf@5/1 --train.check placement $layout
  [ "$code" -eq 0 ] || fail "inf ($layout): exit code $code"
  grep '"skipped": *"not finite"' inf/attempts/0001/metrics.jsonl | grep '"step": *5,' >skipped || fail "inf ($layout): not step 5"
  grep -q '"loss": *[0-9]' skipped && grep -qE '"gradient_norm": *("inf"|"nan"|null)' skipped || fail "inf ($layout): $(cat skipped)"
  [ "$(grep -c '"skipped"' inf/attempts/0001/metrics.jsonl)" -eq 1 ] || fail "inf ($layout): not skipped once"
done
# A skipped step changes nothing: the weights stay those of the step before.
run before --train.steps 8 --train.stop_after 4
run before --train.steps 8 --train.stop_after 1 --train.inject inf@5/1
pieces() { grep '"xxh3"' "before/step-0000000$1/manifest.json"; }
[ "$(pieces 4 | wc -l)" -gt 50 ] && diff <(pieces 4) <(pieces 5) || fail "a skipped update changed something"
# Too many in a row: the run ends and names the checkpoint to return to.
run row --train.steps 8 --train.inject nan@5,nan@6/1,nan@7 --checkpoint.every 2 --train.skip_limit 3
[ "$code" -eq 1 ] && [ "$(errors)" -eq 1 ] || fail "three in a row: exit code $code"
# No step was sound after those of steps 4 and 6.
grep -q 'error: step 7: the last of 3 steps in a row .*good checkpoint is row/step-00000002' err && [ -d row/step-00000002 ] || fail "three in a row: message"
# A sound step between them resets the count.
run apart --train.steps 8 --train.inject nan@4,nan@5,nan@7,nan@8 --train.skip_limit 3
[ "$code" -eq 0 ] || fail "two and two: exit code $code"

# An outlier is skipped, and a run resumed in the middle remembers the steps before it.
run spike --train.steps 40 --train.inject spike@38/1 --train.outlier 6
[ "$code" -eq 0 ] && grep -q '"step": *38,' <(grep '"skipped": *"outlier"' spike/attempts/0001/metrics.jsonl) || fail "spike"
run halves --train.steps 40 --train.inject spike@38/1 --train.outlier 6 --train.stop_after 36
run halves --train.steps 40 --train.inject spike@38/1 --train.outlier 6
diff <(steps spike) <(steps halves) || fail "spike: the resumed run differs"

# A flipped bit in one replica's weights is found at the next check.
for seed in 1 2 3; do
  rm -rf flip
  run flip --train.steps 9 --train.inject flip@4/1 --train.check placement --train.check_every 3 --train.seed $seed
  [ "$code" -eq 1 ] && [ "$(errors)" -eq 1 ] || fail "flip, seed $seed: exit code $code"
  flipped=$(sed -nE 's/^injected after step 4: rank 1: bit [0-9]+ of element [0-9]+ of ([^ ]+).*/\1/p' err)
  [ -n "$flipped" ] || fail "flip, seed $seed: the injected flip is not reported"
  grep -q 'error: step 6: replicas of .* differ on the data axis between ranks 0 and 1' err || fail "flip, seed $seed: message"
  echo "flip, seed $seed: $flipped: $(grep -o 'replicas of [^ ]*' err)"
done

# No checkpoint is saved of damage between two checks.
rm -rf flip
run flip --train.steps 9 --train.inject flip@4/1 --train.check placement --train.check_every 9 --checkpoint.every 5
[ "$code" -eq 1 ] && grep -q 'error: step 5: replicas of .* differ' err && [ ! -e flip/step-00000005 ] || fail "flip: saved"

# Signals: saved at the end of the step, exit code 75; the resumed run matches the uninterrupted one. SIGUSR1
# INTERRUPTIONS times, to each rank in turn, the other two signals once.
signaled=2400  # steps
! grep -q __asan_init "$TRIREME" || signaled=600
run straight --train.steps $signaled --train.quiet
[ "$code" -eq 0 ] || fail "straight run"
rank_of_ours() {  # rank: its process, once it is there
  for _ in $(seq 400); do
    for p in $(pgrep -f "$TRIREME train .*--train.output stopped" || true); do
      [ "$(readlink "/proc/$p/cwd")" = "$work" ] &&
        grep -qzE "^(OMPI_COMM_WORLD_RANK|PMI_RANK)=$1\$" "/proc/$p/environ" 2>/dev/null && echo "$p" && return
    done
    sleep 0.02
  done
}
times=0
interruptions=$((${INTERRUPTIONS:-20} + 2))
for attempt in $(seq $interruptions); do
  code=0
  timeout 100 "$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --data.path data --train.output stopped --model.layers 2 --model.width 48 \
    --model.heads 4 --model.sequence 33 --model.dropout 0.1 --train.batch 8 --train.micro_batch 2 --train.peak none \
    --train.evaluate_at_end=false --train.steps $signaled --train.progress log --train.log_every 1 >out 2>err &
  job=$!
  victim=$(rank_of_ours $((attempt % 2)))
  for _ in $(seq 800); do
    grep -q '^step ' out && break
    sleep 0.01
  done
  sleep "0.0$((RANDOM % 10))"
  signal=USR1
  [ "$attempt" -gt 1 ] || signal=USR2
  [ "$attempt" -ne 2 ] || signal=TERM
  [ -z "$victim" ] || kill "-$signal" "$victim" 2>/dev/null || true
  wait $job || code=$?
  if [ "$code" -eq 0 ]; then
    grep -q "^step *$signaled/$signaled" out || fail "signal: exit code 0 before the end"
    break  # it ended before the signal
  fi
  [ "$code" -eq 75 ] || fail "signal: exit code $code"
  grep -q "stopped at step .*signal SIG$signal" out || fail "signal: not reported"
  at=$(sed -nE 's/^stopped at step ([0-9]+) .*/\1/p' out)
  [ -e "$(printf 'stopped/step-%08d/manifest.json' "$at")" ] || fail "signal: no checkpoint of step $at"
  times=$((times + 1))
done
[ "$times" -eq $interruptions ] || fail "only $times signals came in time"
run stopped --train.steps $signaled --train.quiet
[ "$code" -eq 0 ] || fail "after $times signals: exit code $code"
diff <(steps straight) <(steps stopped) || fail "after $times signals the run differs"
last=$(printf 'step-%08d' $signaled)
for file in straight/$last/*.h5; do cmp "$file" "stopped/$last/$(basename "$file")"; done
echo "$times times stopped by a signal, identical"

# A time limit does the same, by the run's clock or by Slurm's.
run limit --train.steps 1000000 --train.time_limit 2 --train.time_margin 0 --train.quiet
[ "$code" -eq 75 ] || fail "time limit: exit code $code"
[ -d "$(echo limit/step-*)" ] || fail "time limit: nothing saved"
SLURM_JOB_END_TIME=$(($(date +%s) + 30)) run slurm --train.steps 1000000 --train.time_margin 27 --train.quiet
[ "$code" -eq 75 ] || fail "end of a Slurm job: exit code $code"
run unknown --train.steps 1 --train.signals KILL
[ "$code" -eq 1 ] && [ ! -e unknown ] || fail "unknown signal: exit code $code"

# A save that fails before the end is reported and survived, unless configured otherwise.
mkdir disk
if mount -t tmpfs -o size=600k tmpfs disk 2>/dev/null; then
  trap 'umount "$work/disk"; rm -rf "$work"' EXIT
  for async in false true; do
    rm -rf disk/*
    run disk/full --train.steps 6 --checkpoint.every 2 --checkpoint.at_end=false --checkpoint.async=$async
    [ "$code" -eq 1 ] && [ "$(errors)" -eq 1 ] && grep -q 'error: the last save failed: .*No space' err ||
      fail "failed save, async $async: exit code $code"
    [ "$(grep -c '^trireme: warning: checkpoint not saved: .*No space' err)" -eq 3 ] || fail "failed save, async $async: no warnings"
    [ "$(grep -c 'not saved: .*; training continues$' err)" -eq 2 ] || fail "failed save, async $async: training continues after its end"
    [ "$(grep -c '"save failed"' disk/full/attempts/0001/metrics.jsonl)" -eq 3 ] || fail "failed save, async $async: not in the record"
    [ -z "$(ls -d disk/full/step-* 2>/dev/null)" ] || fail "failed save, async $async: something was left"
  done
  rm -rf disk/*
  run disk/strict --train.steps 6 --checkpoint.every 2 --checkpoint.on_failure stop
  [ "$code" -eq 1 ] && [ "$(errors)" -eq 1 ] || fail "failed save, strict: exit code $code"
else
  echo "no tmpfs can be mounted here: saves that fail are left to the checkpoint module's tests"
fi
echo ok
