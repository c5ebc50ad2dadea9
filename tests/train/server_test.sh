#!/usr/bin/env bash
# Parameter servers through the program: bit for bit the all-reduce run; checkpoints that move between the two;
# predicted bytes and memory; skipped steps, signals, failing saves; refused configurations.
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
# Every server holds parameters: the model has about forty blocks of 4096 elements.
model=(--model.layers 2 --model.width 60 --model.heads 3 --model.sequence 33 --model.dropout 0.1)
run() {  # ranks, run folder, further flags; the exit code in $code
  local ranks=$1 folder=$2
  shift 2
  code=0
  timeout 100 "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" train --data.path data --train.output "$folder" "${model[@]}" \
    --train.batch 8 --train.micro_batch 2 --train.steps 20 --train.peak none --train.evaluate_at_end=false \
    --numerics.reproducible "$@" >out 2>err || code=$?
}
server() {  # workers, servers, run folder, further flags
  local workers=$1 servers=$2
  shift 2
  run $((workers + servers)) "$1" --data_parallel.method server --parallel.servers "$servers" --train.check placement "${@:2}"
}
ran() { [ "$code" -eq 0 ] || fail "$*: exit code $code"; }
steps() { cat "$1"/attempts/*/metrics.jsonl | grep '"type": *"step"' | sed -E 's/"(seconds|tokens_per_second|seal)": ?[^,}]*,?//g'; }
same() {  # two runs of 20 steps: their record and their last weights
  [ "$(steps "$1" | wc -l)" -eq 20 ] || fail "$1 has $(steps "$1" | wc -l) steps"
  diff <(steps "$1") <(steps "$2") >difference || { cat difference; fail "$2 is not $1"; }
  for folder in "$1" "$2"; do
    rm -rf "$folder.weights"
    "$TRIREME" export --checkpoint "$folder" --output "$folder.weights" >out 2>err || fail "export of $folder"
    (cd "$folder.weights" && cat ./*.safetensors) >"$folder.bytes"
  done
  cmp "$1.bytes" "$2.bytes" || fail "the last weights of $2 are not those of $1"
}

run 1 one
ran one
for job in "1 1" "2 1" "2 3" "4 2"; do
  rm -rf served
  server $job served --checkpoint.files "$([ "$job" = "2 3" ] && echo node || echo rank)"
  ran "servers ($job)"
  # Memory of workers and servers to the byte: otherwise there is no figure of merit.
  grep -q 'Figure of Merit (FOM): [0-9]' out || fail "servers ($job): memory is not as predicted"
  grep -q '^server optimizer  *| ' out || fail "servers ($job): no memory of servers"
  same one served
  echo "$job: identical"
done

# Measured bytes with four workers against theory: Ψ of gradients out, Ψ of weights in. Only servers hold optimizer
# state.
python3 - <<'PYTHON' || fail "bytes or memory"
import json
run = json.load(open("served/attempts/0001/run.json"))
summary = json.load(open("served/attempts/0001/summary.json"))
assert run["place"] == {"tensor": 1, "context": 1, "pipeline": 1, "data": 4, "servers": 2}, run["place"]
assert run["config"]["data_parallel"]["method"] == "server"
assert "optimizer" not in run["predicted_memory"] or run["predicted_memory"]["optimizer"] == 0
psi = 4 * run["parameters"]
workers = [rank for rank in summary["ranks"] if "server" not in rank]
servers = [rank for rank in summary["ranks"] if "server" in rank]
assert len(workers) == 4 and len(servers) == 2
for rank in workers:
    link = rank["communication"]["servers"]
    both = link["bytes_per_step"] + link["received_per_step"]
    assert abs(both - 2 * psi) < 0.05 * 2 * psi, (both, psi)
    assert link["least_bytes_per_step"] == psi
assert abs(sum(rank["communication"]["servers"]["bytes_per_step"] for rank in servers) - 4 * psi) < 0.05 * 4 * psi
held = sum(rank["memory"]["optimizer"]["measured"] for rank in servers)
assert abs(held - 2 * psi) < 0.02 * psi, (held, psi)
for rank in servers:
    for use, bytes in rank["memory"].items():
        assert bytes["predicted"] == bytes["measured"], (rank["rank"], use, bytes)
open("measured", "w").write(str(max(sum(use["measured"] for use in rank["memory"].values()) for rank in servers) / 2**20))
PYTHON
# Plans for nodes count all ranks, servers too.
for method in server async-server; do
  "$TRIREME" plan --ranks 3 --ranks-per-node 3 --data.path data "${model[@]}" --train.batch 8 --data_parallel.method "$method" \
    --parallel.servers 1 >plan.txt 2>&1 || fail "plan of $method on nodes: $(tail -n 1 plan.txt)"
done
"$TRIREME" plan --ranks 6 --data.path data "${model[@]}" --train.batch 8 --train.micro_batch 2 --numerics.reproducible \
  --data_parallel.method server --parallel.servers 2 >out 2>err || fail "plan"
grep -q '^stage .*server' out || fail "plan: no server"
grep '^total ' out | awk -v found="$(cat measured)" '{ d = $NF - found; exit !(d < 0.051 && d > -0.051) }' || fail "plan: $(cat measured) MiB"
# Reports read the record, even if ranks share cores.
"$TRIREME" report served >out 2>err || grep -q 'ranks share cores' out err || fail "report"

# Checkpoints move between methods and numbers of servers.
moves() {  # folder; then for each half "allreduce RANKS" or "WORKERS SERVERS"
  rm -rf "$1"
  local half
  for half in "$2" "$3"; do
    case $half in
      allreduce*) run "${half#allreduce }" "$1" --train.stop_after 10 ;;
      *) server $half "$1" --train.stop_after 10 ;;
    esac
    ran "$1: $half"
  done
  same one "$1"
  echo "$2, then $3: identical"
}
moves moved "2 1" "allreduce 2"
moves moved "allreduce 4" "2 2"
moves moved "1 3" "4 1"

# A step with a NaN is skipped without effect; too many in a row end the run, on servers too.
rm -rf nan1 nan2
run 2 nan1 --train.inject nan@5/1
ran nan1
server 2 2 nan2 --train.inject nan@5/1
ran nan2
[ "$(grep -c '"skipped": *"not finite"' nan2/attempts/0001/metrics.jsonl)" -eq 1 ] || fail "nan: not skipped once"
same nan1 nan2
server 2 1 row --train.inject nan@5,nan@6/1,nan@7 --checkpoint.every 2 --train.skip_limit 3
[ "$code" -eq 1 ] && [ "$(grep -c '^trireme: error: ' err)" -eq 1 ] || fail "three in a row: exit code $code"
# No step was sound after those of steps 4 and 6.
grep -q 'error: step 7: the last of 3 steps in a row .*good checkpoint is row/step-00000002' err && [ -d row/step-00000002 ] || fail "three in a row: message"

# Damaged weights on one worker are found.
server 2 1 flip --train.inject flip@3/1
[ "$code" -eq 1 ] && grep -q 'step 3: replicas of .* differ' err || fail "flip: exit code $code"

# Gradients in bf16: different bits, close values. Each contribution is off by at most 2⁻⁸, and so is the norm of a sum,
# relative to the sum of norms.
server 1 1 half --train.steps 1 --data_parallel.gradients bf16
ran "gradients in bf16"
python3 - <<'PYTHON' || fail "gradients in bf16"
import json
def first(folder):
    for line in open(folder + "/attempts/0001/metrics.jsonl"):
        step = json.loads(line)
        if step["type"] == "step":
            return step
one, half = first("one"), first("half")
assert one["loss"] == half["loss"]
assert 0 < abs(one["gradient_norm"] - half["gradient_norm"]) < 2**-8 * one["gradient_norm"], (one, half)
link = json.load(open("half/attempts/0001/summary.json"))["ranks"][0]["communication"]["servers"]
assert abs(link["bytes_per_step"] / link["received_per_step"] - 0.5) < 1e-3, link
PYTHON

# A signal to a worker or a server: saved at the end of the step, and the resumed run matches the uninterrupted one.
rank_of_ours() {  # rank: its process, once it is there
  for _ in $(seq 400); do
    for p in $(pgrep -f "$TRIREME train .*--train.output stopped" || true); do
      [ "$(readlink "/proc/$p/cwd")" = "$work" ] &&
        grep -qzE "^(OMPI_COMM_WORLD_RANK|PMI_RANK)=$1\$" "/proc/$p/environ" 2>/dev/null && echo "$p" && return
    done
    sleep 0.02
  done
}
for victim_rank in 1 2; do
  rm -rf stopped out
  server 2 1 stopped --train.steps 100000 --train.progress log --train.log_every 1 &
  job=$!
  victim=$(rank_of_ours $victim_rank)
  for _ in $(seq 2000); do
    grep -qs '^step ' out && break
    sleep 0.01
  done
  kill -USR1 "$victim"
  wait $job || true
  grep -q 'stopped at step .*signal SIGUSR1.*(exit code 75)' out || fail "signal to rank $victim_rank"
  at=$(sed -nE 's/^stopped at step ([0-9]+) .*/\1/p' out)
  [ -e "$(printf 'stopped/step-%08d/manifest.json' "$at")" ] || fail "signal: no checkpoint of step $at"
  rm -rf straight
  run 1 straight --train.steps 100000 --train.stop_after "$((at + 2))"
  server 2 1 stopped --train.steps 100000 --train.stop_after 2
  ran "after the signal"
  diff <(steps straight) <(steps stopped) || fail "after the signal the run differs"
done

# A save that fails at one server is reported, and training continues; a failing last save ends the run and its servers.
if ! grep -q 'lib[at]san' <(ldd "$TRIREME"); then  # a sanitizer must be the only preloaded library
  work=$(pwd -P)
  export LD_PRELOAD=$PROGRAMS/libtrireme_file_faults.so TRIREME_FILE_FAULT="io_error 4 $work/unsaved/step-00000010 3"
  server 2 2 unsaved --checkpoint.every 10
  unset LD_PRELOAD TRIREME_FILE_FAULT
  ran "a save that fails"
  grep -q 'warning: checkpoint not saved: rank 1: .*training continues' err || fail "a save that fails: not reported"
  same one unsaved
  export LD_PRELOAD=$PROGRAMS/libtrireme_file_faults.so TRIREME_FILE_FAULT="io_error 4 $work/last/step-00000020 3"
  server 2 2 last --checkpoint.every 10 --checkpoint.at_end=false --train.watchdog 30
  unset LD_PRELOAD TRIREME_FILE_FAULT
  [ "$code" -eq 1 ] && grep -q 'error: .*the last save failed: .*last/step-00000010$' err || fail "the last save fails: $code"
  export LD_PRELOAD=$PROGRAMS/libtrireme_file_faults.so TRIREME_FILE_FAULT="io_error 4 $work/unsaved/step-00000024 2"
  server 2 2 unsaved --train.steps 24
  unset LD_PRELOAD TRIREME_FILE_FAULT
  [ "$code" -eq 1 ] && [ "$(grep -c '^trireme: error: ' err)" -eq 1 ] || fail "the last save fails: exit code $code"
  grep -q 'error: checkpoint not saved: rank 0: ' err || fail "the last save fails: message"
fi

# Invalid combinations are refused with one line, before anything is written.
refused() {  # ranks, what the line holds, flags
  local ranks=$1 words=$2
  shift 2
  rm -rf no
  run "$ranks" no --data_parallel.method server "$@"
  [ "$code" -eq 1 ] && [ "$(grep -c '^trireme: error: ' err)" -eq 1 ] && [ ! -e no ] || fail "$*: exit code $code"
  grep -qF "$words" err || fail "$*: another message"
}
refused 2 'parallel.servers = 0: must be at least 1'
refused 2 'parallel.servers = 2: must leave a rank to train' --parallel.servers 2
refused 1 'parallel.servers = 1: must leave a rank to train' --parallel.servers 1
refused 3 'parallel.zero = 1: must be 0' --parallel.servers 1 --parallel.zero 1
refused 3 'parallel.tensor = 2: must be 1' --parallel.servers 1 --parallel.tensor 2
refused 3 'parallel.pipeline = 2: must be 1' --parallel.servers 1 --parallel.pipeline 2
# Servers need no GPU; workers do.
CUDA_VISIBLE_DEVICES='' refused 3 'sees no device' --parallel.servers 1 --device.type cuda
grep -q 'error: device.type = cuda: rank [01] sees no device (.*); use cpu, or give every worker a device$' err || fail "no GPU: message"
CUDA_VISIBLE_DEVICES='' refused 3 'sees no device' --parallel.servers 1 --device.type cuda --data_parallel.method async-server \
  --server.max_staleness 2 --numerics.reproducible=false
refused 3 'precision.compute = fp16: must be fp32 or bf16' --parallel.servers 1 --precision.compute fp16 \
  --data_parallel.method async-server --server.max_staleness 2 --numerics.reproducible=false
refused 3 'checkpoint.async = true: must be false' --parallel.servers 1 --checkpoint.async true --checkpoint.every 5
refused 3 'train.inject = inf@3: spike and inf' --parallel.servers 1 --train.inject inf@3
refused 4 'train.batch = 8: must divide by the data-parallel degree 3' --parallel.servers 1
"$TRIREME" plan --ranks 41 --data.path data --model.layers 1 --model.width 12 --model.heads 3 --model.sequence 33 \
  --train.batch 8 --data_parallel.method server --parallel.servers 40 >out 2>err && fail "servers that hold nothing"
grep -q 'parallel.servers = 40: leaves a server without parameters.*; use at most [0-9]*' err || fail "servers that hold nothing"
rm -rf no
run 2 no --parallel.servers 1
[ "$code" -eq 1 ] && grep -q 'parallel.servers = 1: is for data_parallel.method = server' err || fail "servers without a method"
echo "invalid combinations refused"
