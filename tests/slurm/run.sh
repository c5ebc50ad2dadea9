#!/usr/bin/env bash
# The job scripts under a real Slurm of four nodes (cluster.sh): run.sh TRIREME [CASE...]. Needs root. Cases: binding,
# unconnected, template, signal, crash, async-kill, link, search, search-slow, study; default: all. Takes about 35 minutes.
# shellcheck disable=SC2015  # what follows || ends the script
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(realpath "$1")
shift
cases=("$@")
[ $# -gt 0 ] || cases=(binding unconnected template signal crash async-kill link search search-slow study)
if [ "$(id -u)" -ne 0 ]; then
  echo "skipped: a cluster of network namespaces needs root"
  exit 0
fi
cluster=$source/tests/slurm/cluster.sh
SLURM_CONF=$("$cluster" conf)
export SLURM_CONF OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive
export OMPI_MCA_rmaps_base_oversubscribe=1 PYTHONDONTWRITEBYTECODE=1
unset SLURM_JOB_ID OMP_NUM_THREADS TRIREME_RANKS TRIREME_THREADS
up=no
work=$(mktemp -d /var/tmp/trireme-slurm.XXXXXX)  # nodes have a /tmp of their own
export TRIREME_CLUSTER_OWNER=$work
# Leaves another checkout's cluster running.
stop_cluster() { [ "$("$cluster" owner)" != "$work" ] || "$cluster" down; }
trap 'stop_cluster; rm -rf "$work"' EXIT
trap 'exit 143' TERM INT HUP
cd "$work"
cp "$binary" trireme
cp -r "$source/jobs" .
export TRIREME=$work/trireme

fail() {
  echo "FAILED: $*"
  tail -n 40 ./*.out 2>/dev/null || true
  exit 1
}
start_cluster() { # nodes, cores
  stop_cluster
  "$cluster" up "$@" || fail "no cluster"
}
# 120,576 parameters; reproducible, so that every layout and every interruption gives the same bits.
for i in $(seq 4000); do echo "line $i of a text to learn from"; done >text
./trireme prepare --input text --output data >/dev/null 2>&1
model=(--data.path "$work/data" --model.layers 2 --model.width 64 --model.heads 4 --model.sequence 64 --model.dropout 0.1
  --train.batch 16 --train.peak none --train.evaluate_at_end false --train.log_every 1 --numerics.reproducible true)

field() { scontrol show job -o "$1" | sed -n "s/.* $2=\([^ ]*\).*/\1/p"; }
# Waits until a command succeeds, at most that many seconds.
await() { # seconds, what for, command...
  local end=$(($(date +%s) + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$(date +%s)" -lt "$end" ] || fail "waited in vain for $what"
    sleep 0.5
  done
}
# Slurm delays a requeued job by two minutes.
hasten() { [ "$(field "$1" Reason)" != BeginTime ] || scontrol update "jobid=$1" StartTime=now; }
ended() {
  hasten "$1"
  case $(field "$1" JobState) in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | OUT_OF_MEMORY) ;; *) return 1 ;; esac
}
finish() { # job: it must end well
  await 900 "the end of job $1" ended "$1"
  [ "$(field "$1" JobState)" = COMPLETED ] || fail "job $1: $(field "$1" JobState)"
}
made_step() { grep -c "^step *$2/" "$1" >/dev/null 2>&1; }

# The bytes of a run's last checkpoint in one layout: one rank loads and saves it.
canonical() { # run folder
  mkdir -p canonical
  ./trireme train "${model[@]}" --train.steps "$steps" --checkpoint.resume "$1" --train.output "canonical/$1" >canonical.out 2>&1
  cat canonical/"$1"/step-*/*.h5 | sha256sum
}
losses() { cat "$1"/attempts/*/metrics.jsonl | grep '"type":"step"' | sed -E 's/"(seconds|tokens_per_second|seal)":[^,}]*,?//g' | sort -u; }
compare() { # run folder: with the uninterrupted run of one rank
  if [ ! -d "one-$steps" ]; then
    ./trireme train "${model[@]}" --train.steps "$steps" --train.output "one-$steps" --train.log_every 1000 >one.out 2>&1 || fail "one rank"
  fi
  [ "$(losses "one-$steps" | wc -l)" -eq "$steps" ] || fail "the reference has no $steps steps"
  diff <(losses "one-$steps") <(losses "$1") >diff.out || fail "$1: losses differ from those of one rank"
  [ "$(canonical "one-$steps")" = "$(canonical "$1")" ] || fail "$1: weights differ from those of one rank"
}

case_binding() {
  if [ "$(nproc)" -lt 2 ]; then
    echo "binding: skipped on one core"
    return
  fi
  local cores
  cores=$(nproc)
  start_cluster 2 "$cores"
  TRIREME=$(command -v grep) sbatch --wait --output=binding.out --nodes=2 --ntasks-per-node=1 --cpus-per-task="$cores" \
    --wrap "jobs/launch.sh Cpus_allowed: /proc/self/status" >submit.out || fail "binding: the job failed"
  # All of a rank's cores, on both nodes: without SRUN_CPUS_PER_TASK it would be one.
  local mask
  mask=$(printf '%x' $(((1 << cores) - 1)))
  [ "$(grep -cE "^Cpus_allowed:\s+0*$mask\$" binding.out)" -eq 2 ] || fail "binding: not all $cores cores"
  TRIREME=$(command -v grep) sbatch --wait --output=binding2.out --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 \
    --wrap "jobs/launch.sh Cpus_allowed_list: /proc/self/status" >submit.out || fail "binding: the job failed"
  [ "$(grep '^Cpus_allowed_list' binding2.out | sort -u | wc -l)" -eq 2 ] || fail "binding: two ranks on the same core"
  echo "binding: ranks have the cores that the job asks for, and no two the same"
}

case_unconnected() {
  local code=0
  srun --mpi=none --nodes=2 --ntasks=4 ./trireme train "${model[@]}" --train.steps 1 --train.output none >none.out 2>&1 || code=$?
  [ "$code" -ne 0 ] || fail "unconnected: it ran"
  [ "$(grep -c '^trireme: error: ' none.out)" -eq 1 ] || fail "unconnected: not exactly one error"
  grep -c '^trireme: error: launcher: SLURM_STEP_NUM_TASKS = 4.*use srun --mpi=pmix' none.out >/dev/null || fail "unconnected: the remedy is not named"
  [ ! -e none ] || fail "unconnected: something was written"
  echo "unconnected: $(grep '^trireme: error: ' none.out)"
}

case_template() {
  steps=12
  local tasks id
  for tasks in 1 2; do
    id=$(sbatch --parsable --nodes=4 --ntasks-per-node=$tasks --time=10 --output="template$tasks.out" jobs/slurm.sh \
      "${model[@]}" --train.steps $steps --train.output "four-by-$tasks")
    finish "$id"
    compare "four-by-$tasks"
  done
  echo "template: 4 x 1 and 4 x 2 tasks end with the weights of one rank"
}

# Slow links make steps long on any machine: 0.6 s each at 10 Mbit/s.
case_signal() {
  steps=140
  "$cluster" rate 10mbit
  local id
  id=$(sbatch --parsable --nodes=4 --ntasks-per-node=1 --time=2 --signal=USR1@60 --output=signal.out jobs/slurm.sh \
    "${model[@]}" --train.steps $steps --train.output signal)
  finish "$id"
  "$cluster" rate off
  local stops
  stops=$(grep -c '^stopped at step .*: signal SIGUSR1; saved' signal.out)
  [ "$stops" -ge 1 ] || fail "signal: Slurm's signal stopped nothing"
  [ "$(grep -c "goes back to the queue" signal.out)" -eq "$stops" ] || fail "signal: not requeued each time"
  [ "$(grep -c '^resumed from ' signal.out)" -eq "$stops" ] || fail "signal: not resumed each time"
  [ "$(field "$id" Restarts)" -eq "$stops" ] || fail "signal: Slurm restarted it $(field "$id" Restarts) times"
  [ "$(losses signal | wc -l)" -eq $steps ] || fail "signal: steps are missing or were made twice unlike"
  compare signal
  echo "signal: stopped $stops times ahead of its limit ($(sed -n 's/^stopped at \(step [0-9]*\) .*/\1/p' signal.out | paste -sd, )), requeued, resumed: the weights of the run that was not"
}

case_crash() {
  steps=60
  "$cluster" rate 10mbit
  local id
  id=$(sbatch --parsable --nodes=4 --ntasks-per-node=1 --time=10 --output=crash.out jobs/slurm.sh \
    "${model[@]}" --train.steps $steps --train.output crash --checkpoint.every 10)
  await 300 "step 25" made_step crash.out 25
  "$cluster" kill 3
  await 120 "Slurm to miss node 3" sh -c 'sinfo -h -n node3 -o %T | grep -c down >/dev/null'
  "$cluster" revive 3
  "$cluster" rate off
  finish "$id"
  [ "$(field "$id" Restarts)" -ge 1 ] || fail "crash: Slurm did not restart it"
  grep -cE '^resumed from .*step-000000[2-5]0: step' crash.out >/dev/null || fail "crash: not resumed from a checkpoint"
  compare crash
  echo "crash: node 3 killed after step 25, $(sed -n 's/^\(resumed\) from .*: \(step .*\)/\1 at \2/p' crash.out), the weights of the run that was not"
}

# One of three workers dies, on its own node: the others make all steps, and report the loss.
async_worker() { # the process of rank 1
  local process
  for process in $(pgrep -f -- 'trireme train .*--train.output async-kill'); do
    grep -qzx SLURM_PROCID=1 "/proc/$process/environ" 2>/dev/null && echo "$process" && return
  done
  return 1
}
case_async-kill() {
  local code=0 job
  SLURM_KILL_BAD_EXIT=0 timeout 300 srun --mpi=pmix --kill-on-bad-exit=0 --nodes=4 --ntasks=4 ./trireme train \
    --data.path "$work/data" --model.layers 2 --model.width 64 --model.heads 4 --model.sequence 64 --train.batch 12 \
    --train.peak none --train.log_every 1 --train.steps 300 --train.output async-kill --train.inject slow@3/0 \
    --data_parallel.method async-server --parallel.servers 1 --server.max_staleness 3 --server.heartbeat 5 \
    --server.tolerate_failures >async-kill.out 2>&1 &
  job=$!
  await 120 "step 5" made_step async-kill.out 5
  kill -9 "$(async_worker)" || fail "async-kill: no process to kill"
  wait "$job" || code=$?
  [ "$code" -ne 124 ] || fail "async-kill: hangs"
  grep -Eq '^trireme: warning: worker rank 1 is lost: .*; 2 workers continue' async-kill.out || fail "async-kill: the dead worker is not reported"
  grep -q '^lost: worker rank 1: ' async-kill.out || fail "async-kill: not in the closing table"
  grep -q '"lost_workers":{"1":' <(tr -d ' \n' <async-kill/attempts/0001/summary.json) || fail "async-kill: not in the record"
  made_step async-kill.out 300 && [ -e async-kill/step-00000300/manifest.json ] || fail "async-kill: not all steps"
  echo "async-kill: $(sed -n 's/^trireme: warning: \(worker rank 1 is lost.*\)/\1/p' async-kill.out); srun's exit code $code"
}

# The recorded communication, against the counters of the nodes' interfaces.
measure() { # rate, name, tasks per node, steps, flags...
  local rate=$1 name=$2 tasks=$3 steps=$4 id
  shift 4
  "$cluster" rate "$rate"
  "$cluster" sent >before
  id=$(sbatch --parsable --nodes=4 --ntasks-per-node="$tasks" --time=10 --output="$name.out" jobs/slurm.sh \
    --data.path "$work/data" --model.heads 4 --model.sequence 64 --train.peak none --train.evaluate_at_end false \
    --checkpoint.at_end false --train.steps "$steps" --train.output "$name" "$@")
  finish "$id"
  "$cluster" sent >after
  "$cluster" rate off
  python3 -B "$source/tests/slurm/compare_traffic.py" --rate "$rate" --tasks "$tasks" --before before --after after \
    "${judge[@]}" "$name"
}
# Two nodes that exchange 2 MiB each send them at the same time: with headers in 0.179 s at 100 Mbit/s, not twice as long.
duplex() {
  "$cluster" rate 100mbit
  srun --mpi=pmix --nodes=2 --ntasks-per-node=1 --time=2 "$TRIREME" bench collectives --operations all_gather --begin 4194304 \
    --end 4194304 --iterations 5 --warmup 1 --json duplex.json >duplex.out 2>&1 || return 1
  "$cluster" rate off
  python3 -B - <<'PYTHON'
import json
took = json.load(open("duplex.json"))["benchmarks"][0]["real_time"] / 1e6
print(f"100 Mbit/s: two nodes exchange 2 MiB each in {took:.3f} s")
assert 0.16 < took < 0.25, took
PYTHON
}
case_link() {
  local judge=() large=(--model.layers 4 --model.width 256) small=(--model.layers 2 --model.width 64 --train.batch 16)
  duplex || duplex || fail "link: nodes take turns"
  measure 1gbit fast 1 15 "${large[@]}" --train.batch 64 || fail "link: 1 Gbit/s"
  measure 100mbit slow 1 8 "${large[@]}" --train.batch 4 || fail "link: 100 Mbit/s"
  # One axis across nodes at a time, so that the counters match its bytes.
  local stages=(--parallel.pipeline 4 --train.batch 32 --train.micro_batch 8) tensor=(--parallel.tensor 4 --train.batch 8)
  measure 1gbit stages 1 6 "${large[@]}" "${stages[@]}" || fail "link: stages at 1 Gbit/s"
  measure 100mbit slow-stages 1 6 "${large[@]}" "${stages[@]}" || fail "link: stages at 100 Mbit/s"
  measure 1gbit tensor 1 6 "${large[@]}" "${tensor[@]}" || fail "link: tensor groups across nodes at 1 Gbit/s"
  measure 100mbit slow-tensor 1 4 "${large[@]}" "${tensor[@]}" || fail "link: tensor groups across nodes at 100 Mbit/s"
  judge=(--inside tensor)
  measure 1gbit inside 2 15 "${large[@]}" --train.batch 8 --parallel.tensor 2 || fail "link: tensor groups inside nodes"
  # Half a second of link per step. Other programs can delay the ranks: one retry.
  judge=(--bound)
  measure 10mbit bound 1 20 "${small[@]}" || measure 10mbit again 1 20 "${small[@]}" || fail "link: 10 Mbit/s"
}

# The layouts that the planner ranks first are the fastest, on links whose rates were measured.
rank_layouts() {  # RATE BATCH
  local rate=$1 batch=$2 ranking launch="srun --mpi=pmix --kill-on-bad-exit=1 --nodes=4 --ntasks-per-node=2 --time=20"
  local small=(--model.vocabulary 256 --model.layers 8 --model.width 256 --model.heads 8 --model.sequence 128 --train.batch "$batch")
  "$cluster" rate "$rate"
  $launch "$TRIREME" bench machine --output "measured-$rate.toml" --types fp32 --parallel.threads 1 --warmup 0 --iterations 1 \
    >"machine-$rate.out" 2>&1 || fail "search: bench machine at $rate"
  {
    printf 'name = "%s"\nranks_per_node = 2\n[device]\ntype = "cpu"\nmemory_gib = 24.0\noperation_us = 200\n' "$rate"
    printf '[products]\nfp32_tflops = 0.05\nefficiency = 0.8\nrows_half = 24\n[memory]\ngb_per_s = 5.0\n'
    # Ranks that wait are not slowed by messages, and operations take what the formulas say.
    sed -n '/^\[links\]/,${/^\[operations\]/q; /^slowdown/d; /^stretch/d; p}' "measured-$rate.toml"
  } >"$rate.toml"
  # Other programs can delay some layouts: one retry.
  ranking=(python3 -B "$source/tests/slurm/rank_layouts.py" --launch "$launch" --machine "$rate.toml" --ranks 8 "$TRIREME" "${small[@]}")
  "${ranking[@]}" || "${ranking[@]}" || fail "search: at $rate"
  "$cluster" rate off
}
# At the lower rate tensor groups across nodes would take minutes for a step of the larger batch.
case_search() { rank_layouts 1gbit 64; }
case_search-slow() { rank_layouts 100mbit 16; }

case_study() {
  local code=0
  printf 'data\npipeline2 --parallel.pipeline 2\nbroken --train.inject nan@1,nan@2,nan@3 --train.skip_limit 2\n' >layouts
  local study=(jobs/scaling-study --mode strong --ranks '2,4' --batch 16 --steps 6 --repeats 1 --layouts layouts --launcher slurm
    --submit-option=--time=5 --output study)
  local flags=(--data.path "$work/data" --model.layers 2 --model.width 64 --model.heads 4 --model.sequence 64 --train.peak none)
  "${study[@]}" --no-wait -- "${flags[@]}" >study.out 2>&1 || fail "study: submission"
  [ "$(grep -c '"job": ' study/index.json)" -eq 6 ] || fail "study: not 6 points submitted"
  cp study/index.json submitted.json
  TRIREME_POLL_SECONDS=1 "${study[@]}" -- "${flags[@]}" >study2.out 2>&1 || code=$?
  [ "$code" -eq 1 ] && [ "$(grep -c '"state": "done"' study/index.json)" -eq 4 ] && [ "$(grep -c '"state": "failed"' study/index.json)" -eq 2 ] ||
    fail "study: exit code $code"
  diff <(grep '"job": ' submitted.json) <(grep '"job": ' study/index.json) >diff.out || fail "study: points were submitted twice"
  # Inside an allocation the points are its job steps.
  code=0
  TRIREME_JOBS=$work/jobs sbatch --wait --nodes=4 --ntasks-per-node=1 --time=10 --output=inside.out --wrap "jobs/scaling-study --mode weak \
    --ranks 1,4 --batch 4 --steps 4 --repeats 1 --layouts layouts --output steps -- ${flags[*]}" >submit.out || code=$?
  [ "$code" -eq 1 ] && [ "$(grep -c '"state": "done"' steps/index.json)" -eq 3 ] || fail "study inside an allocation: exit code $code"
  echo "study: as 6 jobs, and as the steps of one job"
}

for each in "${cases[@]}"; do
  declare -F "case_$each" >/dev/null || fail "$each is no case"
  [ "$each" = binding ] || [ "$up" = four ] || { start_cluster 4 && up=four; }
  "case_$each"
  [ "$each" != binding ] || up=two
done
echo ok
