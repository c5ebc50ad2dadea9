#!/usr/bin/env bash
# The data-parallel methods on four workers of one machine, each in a network namespace of its own (tests/slurm/cluster.sh;
# needs root and Slurm), over links of a given rate: validation loss against time and against bytes.
#
#   methods.sh TRIREME CORPUS.txt OUTPUT [METHOD...]
#
# METHODs are names of the table below; all by default. One that the program refuses is skipped with its error. Finished
# runs in OUTPUT are kept. Environment: RATE (100mbit; off: no limit), STEPS (400), EVERY (20: steps between
# evaluations), SLOW (none; 5: the fourth worker is that many times slower), MODEL (flags of the model and of the batch).
# Ends with bench/chart_methods.py's table and OUTPUT/methods.svg.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
binary=$(realpath "$1") corpus=$(realpath "$2")
mkdir -p "$3"
output=$(realpath "$3")
shift 3
rate=${RATE:-100mbit} steps=${STEPS:-400} every=${EVERY:-20} slow=${SLOW:-none}
read -ra model <<<"${MODEL:---model.preset tiny --train.batch 32}"

# Name, ranks of a node, flags. Servers are the world's last ranks: with two ranks a node, dealt out in turn, each node
# has a worker and a server, whose messages to each other use no link.
table() {
  cat <<'METHODS'
allreduce    1
average      1 --data_parallel.method average --average.every 16
diloco       1 --data_parallel.method average --average.every 16 --average.outer nesterov
server       2 --data_parallel.method server --parallel.servers 4
async-server 2 --data_parallel.method async-server --parallel.servers 4
async-far    2 --data_parallel.method async-server --parallel.servers 4 --server.max_staleness 64
METHODS
}

cluster=$source/tests/slurm/cluster.sh
SLURM_CONF=$("$cluster" conf)
export SLURM_CONF OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TRIREME_CLUSTER_OWNER=$output
unset SLURM_JOB_ID
trap '[ "$("$cluster" owner)" != "$output" ] || "$cluster" down' EXIT
fail() {
  echo "methods.sh: $*" >&2
  exit 1
}
case $output in /tmp/* | /dev/shm/*) fail "$output: nodes have a /tmp and a /dev/shm of their own; name another folder" ;; esac

[ -d "$output/data" ] || "$binary" prepare --input "$corpus" --output "$output/data" >"$output/prepare.log" 2>&1 ||
  fail "$(tail -n 1 "$output/prepare.log")"
cp "$binary" "$output/trireme"
cd "$output"
"$cluster" up 4 || fail "no cluster"
"$cluster" rate "$rate"

run() { # name, ranks of a node, flags...
  local name=$1 each=$2 folder=$1 before
  shift 2
  local flags=("${model[@]}" --data.path "$output/data" --train.peak none --checkpoint.at_end false "$@")
  if [ "$slow" != none ]; then
    folder=$name-slow
    flags+=(--train.inject "slow@$slow/3")
  fi
  if [ -s "$folder/attempts/0001/summary.json" ]; then return 0; fi
  rm -rf "$folder"
  if ! ./trireme plan --ranks $((4 * each)) "${flags[@]}" >plan.log 2>&1; then
    echo "$folder: left out: $(tail -n 1 plan.log)"
    return 0
  fi
  before=$("$cluster" sent | awk '{ sum += $2 } END { printf "%.0f", sum }')
  local try
  for try in 1 2 3; do # a start may crash inside the MPI library (docs/cluster.md)
    rm -rf "$folder"
    if srun --mpi=pmix --nodes=4 --ntasks=$((4 * each)) --ntasks-per-node="$each" --distribution=cyclic --kill-on-bad-exit=1 \
      ./trireme train "${flags[@]}" --train.steps "$steps" --train.evaluate_every "$every" --train.evaluate_samples 256 \
      --optim.warmup_steps $((steps / 10)) --train.output "$folder" --train.log_every "$every" >"$folder.log" 2>&1; then
      break
    fi
    if [ -s "$folder/attempts/0001/metrics.jsonl" ] || grep -q '^trireme: error: ' "$folder.log" || [ "$try" -eq 3 ]; then
      echo "$folder: left out: $(grep -m 1 'error: ' "$folder.log" || tail -n 1 "$folder.log")"
      rm -rf "$folder"
      return 0
    fi
  done
  "$cluster" sent | awk -v before="$before" '{ sum += $2 } END { printf "%.0f\n", (sum - before) / NR }' >"$folder/sent-by-a-node"
  echo "$folder: $(sed -n 's/^Figure of Merit/figure of merit/p' "$folder.log")"
}

while read -r name each flags; do
  wanted=$#
  for method in "$@"; do [ "$method" != "$name" ] || wanted=0; done
  [ "$wanted" -eq 0 ] || continue
  # shellcheck disable=SC2086  # words
  run "$name" "$each" $flags </dev/null
done < <(table)
suffix=
[ "$slow" = none ] || suffix=-slow
folders=()
while read -r name _; do
  [ ! -s "$name$suffix/attempts/0001/summary.json" ] || folders+=("$name$suffix")
done < <(table)
[ "${#folders[@]}" -gt 0 ] || fail "no method ran"
python3 -B "$source/bench/chart_methods.py" --title "four workers, links of $rate" "${folders[@]}" "methods$suffix.svg"
