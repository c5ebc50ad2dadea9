#!/usr/bin/env bash
# Asynchronous parameter servers: every sample once, staleness bounded and recorded, slow workers, killed workers,
# checkpoints, refused configurations. KILLS=20 async_test.sh kills that many workers at random, over shared memory and
# TCP in turn.
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
model=(--model.layers 2 --model.width 60 --model.heads 3 --model.sequence 33)
run() {  # ranks, run folder, further flags; the exit code in $code
  local ranks=$1 folder=$2
  shift 2
  code=0
  timeout 120 "$TRIREME_MPIEXEC" ${options:-} -n "$ranks" "$TRIREME" train --data.path data --train.output "$folder" \
    "${model[@]}" --train.batch 12 --train.micro_batch 2 --train.peak none "$@" >out 2>err || code=$?
}
serve() {  # ranks, run folder, further flags: two servers
  run "$1" "$2" --data_parallel.method async-server --parallel.servers 2 --server.max_staleness 3 "${@:3}"
}
ran() { [ "$code" -eq 0 ] || fail "$*: exit code $code"; }
refused() {  # pattern of the one error line
  [ "$code" -ne 0 ] || fail "not refused: $1"
  [ "$(grep -c 'trireme: error' err)" -eq 1 ] || fail "not one line: $1"
  grep -q "$1" err || fail "the error lacks: $1"
}
# check RUN STEPS WORKERS EXPRESSION: Python over summary s, metrics m (steps), run r
check() {
  python3 -B - "$@" <<'PYTHON' || fail "$1: $4"
import glob, json, re, sys
folder, steps, workers, expression = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
last = sorted(glob.glob(folder + "/attempts/*"))[-1]
s = json.load(open(last + "/summary.json"))
r = json.load(open(last + "/run.json"))
lines = [json.loads(line) for line in open(last + "/metrics.jsonl")]
m = [line for line in lines if line["type"] == "step"]
assert [line["step"] for line in m] == list(range(r["first_step"] + 1, steps + 1)), [line["step"] for line in m]
assert m[-1]["tokens"] == steps * 12 * 33
st = s["staleness"]
assert st["updates"] == sum(st["histogram"]), st
assert st["most"] == len(st["histogram"]) - 1 <= st["bound"] == (workers - 1) * 7, st
w = [rank for rank in s["ranks"] if "server" not in rank]
events = [line["event"] + ": " + line["text"] for line in lines if line["type"] == "event"]
psi = 4 * r["parameters"]
value = eval(expression)
assert value, (value, st, [rank["tickets"] for rank in w], events)
PYTHON
}

# A sound run: all updates are made, losses fall, bytes are one gradient out and one model in, memory is as predicted.
serve 5 sound --train.steps 40 --optim.warmup_steps 4
ran sound
check sound 40 3 'st["updates"] == 120 and sum(k["tickets"] for k in w) == 120'
check sound 40 3 'm[-1]["loss"] < m[0]["loss"] - 0.8 and s["validation_loss"] < 4.6'
check sound 40 3 'all(abs(k["communication"]["servers"]["bytes_per_step"] - psi) < 0.02 * psi for k in w)'
# The model is pulled once more for the evaluation.
check sound 40 3 'all(abs(k["communication"]["servers"]["received_per_step"] - psi) < 0.1 * psi for k in w)'
grep -q 'Figure of Merit (FOM): [0-9]' out || fail "memory is not as predicted"
grep -q 'staleness of 120 updates' out || fail "no histogram in the closing table"

# Another program reads the same weights.
"$TRIREME" evaluate --checkpoint sound >out 2>err || fail evaluate
python3 -B - <<'PYTHON' || fail "evaluation on servers and on one rank differ"
import json, re
ours = json.load(open("sound/attempts/0001/summary.json"))["validation_loss"]
theirs = float(re.search(r"loss ([0-9.]+)", open("out").read()).group(1))
assert abs(ours - theirs) < 1e-4, (ours, theirs)
PYTHON

# In two starts with different numbers of workers and servers; then by all-reduce from the same checkpoint.
serve 5 twice --train.steps 40 --train.stop_after 10
ran "first start"
run 3 twice --data_parallel.method async-server --parallel.servers 1 --server.max_staleness 3 --train.steps 40 \
  --train.stop_after 20
ran "second start"
check twice 30 2 'r["first_step"] == 10 and s["steps_of_attempt"] == 20'
run 2 twice --train.steps 40
ran "third start, by all-reduce"
grep -q 'resumed from .*step-00000030: step 30' out || fail "all-reduce does not resume from there"

# All workers pause for a checkpoint by time too.
serve 5 timed --train.steps 60 --checkpoint.every_minutes 0.0005 --checkpoint.keep 100
ran timed
[ "$(grep -c '^saved timed/step-' out)" -ge 3 ] || fail "timed: $(grep '^saved' out)"

# A damaged checkpoint is passed over with a report; it stays until the run saves that step again.
serve 5 damaged --train.steps 20 --checkpoint.every 10
ran damaged
file=$(ls damaged/step-00000020/*.h5 | head -n 1)
at=$(($(stat -c %s "$file") / 2))
byte=$(od -An -tu1 -j"$at" -N1 "$file")
printf "$(printf '\\%03o' $((byte ^ 255)))" | dd of="$file" bs=1 seek="$at" conv=notrunc status=none  # always changes the byte
serve 5 damaged --train.steps 20 --train.seed 3
ran "past the damaged"
grep -q "^trireme: warning: passed over: $file: " err || fail "damaged: not reported"
grep -q '^resumed from damaged/step-00000010: step 10' out || fail "damaged: not from the older one"
grep -q '^note: train.seed = 3, and 1 before' out || fail "damaged: the changed seed is not reported"
check damaged 20 3 'r["first_step"] == 10 and s["steps_of_attempt"] == 10'
rm damaged/step-00000020/manifest.json
serve 5 damaged --train.steps 10
ran "past the one without a manifest"
grep -q "^trireme: warning: passed over: damaged/step-00000020" err || fail "damaged: what rank 0 passed over is not reported"
# A damaged checkpoint in another folder is not this run's, even with no step left.
serve 5 elsewhere --train.steps 10 --checkpoint.resume damaged/step-00000010
ran elsewhere
[ -e elsewhere/step-00000010/manifest.json ] || fail "elsewhere: no checkpoint of its own"

# A worker stuck in a step ends the job and is named with its last action; ranks that wait for it are not.
serve 5 stuck --train.steps 40 --train.watchdog 2 --train.inject slow@100000/1
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "stuck: exit code $code"
grep -q '^trireme: error: watchdog: rank 1 has not moved for 2' err || fail "stuck: not reported"
grep -Eq '^ +1 +1 +[0-9.]+  wait for gradients$' err || fail "stuck: its last action is not reported"
[ "$(grep -c 'trireme: error' err)" -eq 1 ] || fail "stuck: several ranks report"

# A staleness of 0 is the synchronous server.
for method in "server" "async-server --server.max_staleness 0"; do
  # shellcheck disable=SC2086
  run 3 "exact-${method%% *}" --train.steps 8 --numerics.reproducible --parallel.servers 1 --train.batch 8 \
    --data_parallel.method $method
  ran "$method"
  grep '"type": *"step"' "exact-${method%% *}"/attempts/0001/metrics.jsonl |
    sed -E 's/"(seconds|tokens_per_second|seal)": ?[^,}]*,?//g' >"steps-${method%% *}"
done
cmp steps-server steps-async-server || fail "max_staleness = 0 is not the synchronous server"

# A worker five times slower makes fewer updates; the others continue up to the staleness bound.
serve 5 slow --train.steps 40 --train.inject slow@5/1
ran slow
check slow 40 3 'w[1]["tickets"] < min(w[0]["tickets"], w[2]["tickets"]) and st["most"] > 2'

# A gradient that is not finite is not applied; too many in a row end the run.
serve 5 nan --train.steps 20 --train.inject nan@3/1 --train.peak 1000
ran nan
check nan 20 3 'st["updates"] == 59'
# The peak is that of all workers, and so is MFU.
check nan 20 3 'r["peak"]["operations_per_second"] == 3e12 and r["peak"]["kind"] == "nominal"'
# Two shares may end within microseconds: a speed above the peak has no MFU.
check nan 20 3 'all(abs(k["mfu"] * 3e12 / (k["tokens_per_second"] * r["flops_per_token"]) - 1) < 1e-9 for k in m if "mfu" in k)'
check nan 20 3 'all(k["tokens_per_second"] * r["flops_per_token"] > 3e12 for k in m if "mfu" not in k) and sum("mfu" in k for k in m) > 10'
grep -q '^MFU .* of the nominal fp32 peak of 3000.0 GFLOP/s' out || fail "nan: no MFU in the closing table"

# A signal: all ranks stop at a complete step, and it is saved.
"$TRIREME_MPIEXEC" -n 4 "$TRIREME" train --data.path data \
  --train.output signal "${model[@]}" --train.batch 12 --train.micro_batch 2 --train.peak none --train.steps 100000 \
  --data_parallel.method async-server --parallel.servers 2 --server.max_staleness 3 >out 2>err &
job=$!
for _ in {1..300}; do
  [ "$(cat signal/attempts/*/metrics.jsonl 2>/dev/null | wc -l)" -gt 5 ] && break
  sleep 0.1
done
kill -USR1 "$job"
code=0
wait "$job" || code=$?
[ "$code" -eq 75 ] || fail "signal: exit code $code"
compgen -G 'signal/step-*/manifest.json' >out || fail "signal: no checkpoint"

run 3 refused --data_parallel.method async-server --parallel.servers 1 --numerics.reproducible
refused 'numerics.reproducible = true: must be false'
run 3 refused --data_parallel.method async-server --parallel.servers 1 --server.tolerate_failures
refused 'server.tolerate_failures = true: mpirun ends the job when a rank dies; start it with mpirun --enable-recovery'
run 3 refused --data_parallel.method server --parallel.servers 1 --server.tolerate_failures
refused 'server.tolerate_failures = true: is for data_parallel.method = async-server'
[ ! -e refused ] || fail "a refused run left a folder"

grep -q 'Open MPI\|OpenRTE\|open-mpi' <("$TRIREME_MPIEXEC" --version 2>&1) || exit 0
# mpirun's exit code is then always 0.
options=--enable-recovery
run 3 refused --data_parallel.method async-server --parallel.servers 1 --server.tolerate_failures \
  --server.heartbeat 4 --train.watchdog 4
code=1 refused 'train.watchdog = 4: must be 0 or above server.heartbeat with server.tolerate_failures'
# The process of rank $2 of run $1.
process_of() {
  local process
  for process in $(pgrep -f -- "--train.output $1 "); do
    # Not a pipe: grep exits at the first match and kills its writer.
    grep -qzx "OMPI_COMM_WORLD_RANK=$2" "/proc/$process/environ" 2>/dev/null &&
      grep -qzxF "$TRIREME" "/proc/$process/cmdline" 2>/dev/null && echo "$process" && return
  done
}
# killed FOLDER RANK FLAGS…: the rank is killed at random once steps are made; over $transport
killed() {
  local folder=$1 rank=$2 signal=${signal:-KILL}
  shift 2
  timeout 160 "$TRIREME_MPIEXEC" --enable-recovery ${transport:-} -n 5 "$TRIREME" train --data.path data \
    --train.output "$folder" "${model[@]}" --train.batch 12 --train.micro_batch 1 --train.peak none \
    --data_parallel.method async-server --parallel.servers "${servers:-1}" --server.max_staleness 3 --server.heartbeat 4 "$@" \
    >out 2>err &
  job=$!
  for _ in {1..600}; do
    [ "$(cat "$folder"/attempts/*/metrics.jsonl 2>/dev/null | wc -l)" -gt 3 ] && break
    sleep 0.05
  done
  sleep "0.$((RANDOM % 10))"
  kill "-$signal" "$(process_of "$folder" "$rank")" || fail "$folder: no process to kill: $(pgrep -af -- "--train.output $folder ")"
  code=0
  wait "$job" || code=$?
  [ "$code" -ne 124 ] || fail "$folder: hangs"
}

# A rank that dies during startup ends the job, even where a later death would not.
work=$(pwd -P)
if ! grep -q 'lib[at]san' <(ldd "$TRIREME"); then  # a sanitizer must be the only preloaded library
  export LD_PRELOAD=$PROGRAMS/libtrireme_file_faults.so
  for fault in "kill 1 $work/data/ 4" "kill 20 $work/data/ 0" "kill 30 $work/data/ 1"; do
    rank=${fault##* }
    TRIREME_FILE_FAULT=$fault serve 5 early --train.steps 40 --server.heartbeat 2 --server.tolerate_failures
    [ "$code" -ne 124 ] || fail "early: rank $rank: hangs"
    grep -q "trireme: error: rank $rank is lost while the job starts: silent for 2" err || fail "early: rank $rank: not reported"
    [ "$(grep -c 'trireme: error' err)" -eq 1 ] || fail "early: more than one error"
    [ ! -e early/attempts ] || fail "early: left a record"
  done
  # A worker with its own error reports it; the others continue.
  TRIREME_FILE_FAULT="io_error 5 $work/data/train 1" serve 5 torn --train.steps 40 --server.heartbeat 2 \
    --server.tolerate_failures
  unset LD_PRELOAD
  ran torn
  check torn 40 3 "list(s['lost_workers']) == ['1'] and len(w) == 2"
  grep -q '^trireme: error: rank 1: data/train-00000.h5: cannot read at byte [0-9]*: ' err || fail "torn: not reported"
  [ "$(grep -c 'trireme: error' err)" -eq 1 ] || fail "torn: more than one error"
fi

# The watchdog ends a worker that is stuck or stopped, and the others continue without it.
serve 5 stuck-alone --train.steps 40 --train.watchdog 4 --train.inject slow@100000/1 --server.heartbeat 2 \
  --server.tolerate_failures
ran stuck-alone
check stuck-alone 40 3 "list(s['lost_workers']) == ['1'] and len(w) == 2"
grep -q '^trireme: warning: watchdog: rank 1 has not moved for 4' err || fail "stuck-alone: not reported"
if grep -q 'trireme: error' err; then fail "stuck-alone: an error"; fi

for ((i = 1; i <= ${KILLS:-2}; ++i)); do
  rank=$((RANDOM % 4))
  transport= why='silent for '
  # Over TCP a message to it may fail before its silence is detected.
  [ $((i % 2)) -eq 1 ] || transport='--mca btl self,tcp' why='silent for |MPI_'
  rm -rf killed
  killed killed "$rank" --train.steps 250 --server.tolerate_failures --train.inject slow@2/0
  ran "killed: rank $rank"
  check killed 250 4 "list(s['lost_workers']) == ['$rank'] and len(w) == 3"
  check killed 250 4 "any(re.match('lost: worker rank $rank is lost: ($why)', e) for e in events)"
  check killed 250 4 "st['updates'] == 1000"
  compgen -G 'killed/step-00000250/manifest.json' >/dev/null || fail "killed: no checkpoint"
  grep -Eq "warning: worker rank $rank is lost: ($why).*; 3 workers continue" err || fail "killed: not reported"
  echo "kill $i${transport:+ over TCP}: rank $rank, the others went on"
done
transport=
signal=STOP killed stopped 2 --train.steps 250 --train.watchdog 6 --server.tolerate_failures
ran stopped
check stopped 250 4 "list(s['lost_workers']) == ['2'] and len(w) == 3"
grep -q '^trireme: warning: watchdog: rank 2 has not moved for' err || fail "stopped: not reported"
# A signal to any rank ends the run in order.
for rank in 1 4; do
  signal=TERM servers=2 killed "asked-$rank" "$rank" --train.steps 100000
  compgen -G "asked-$rank/step-*/manifest.json" >/dev/null || fail "asked-$rank: no checkpoint"
  grep -q '^stopped at step .*: signal SIGTERM; saved: ' out || fail "asked-$rank: not reported"
done
# Where a worker may not die, its death ends the run: the first server reports it and the other servers end too.
for servers in 1 2; do
  rm -rf fatal
  killed fatal 1 --train.steps 100000
  grep -q "trireme: error: rank $((5 - servers)): worker rank 1 is lost: silent for 4" err || fail "fatal: not reported"
  [ "$(grep -c 'trireme: error' err)" -eq 1 ] || fail "fatal: more than one error"
  grep -q '"failed"' fatal/attempts/0001/metrics.jsonl || fail "fatal: not in the record"
done
