#!/usr/bin/env bash
# trireme bench machine writes a file that plan reads, with what it measured alone; trireme bench step takes as long as
# plan predicts, with the bytes of the traces, on more ranks than cores.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpiexec=${TRIREME_MPIEXEC:-mpirun}
cd "$work"
fail() {
  echo "FAILED: $1"
  cat out err 2>/dev/null | tail -40
  exit 1
}
model=(--model.vocabulary 256 --model.layers 4 --model.width 128 --model.heads 4 --model.sequence 64)
"$mpiexec" -n 2 "$TRIREME" bench machine --output machine.toml --json machine.json --types fp32 --parallel.threads 1 \
  --warmup 0 --iterations 1 >out 2>err || fail "bench machine"
for row in attention/fp32 attention_backward/fp32 memory optimizer products/fp32 collectives/node; do
  grep -q "^ *$row  *[0-9]" out || fail "no row of $row"
done
grep -q '^# source: .* on 1 node of 2 ranks, 1 thread each; links.network is not measured$' out || fail "its source"
python3 - <<'PYTHON' || fail "the figures"
import json
found = json.load(open("machine.json"))["benchmarks"]
products = [each for each in found if each["name"].startswith("products/fp32/")]
assert len(products) > 30 and all(each["real_time"] > 0 and each["share"] >= 0 for each in products), len(products)
# The fit follows the times, whatever they are on a busy machine: within a factor of 3 in most cases.
near = [each for each in products if 1 / 3 < each["fitted_us"] / each["real_time"] < 3]
assert len(near) > 0.6 * len(products), (len(near), len(products))
PYTHON
"$TRIREME" plan --ranks 2 --machine machine.toml "${model[@]}" --train.batch 8 >out 2>err || fail "a plan by that file"
grep -q '^step on machine.toml: [0-9.e-]* s; ' out || fail "its step"
if "$TRIREME" plan --ranks 4 --machine machine.toml "${model[@]}" --train.batch 8 >out 2>err; then fail "two nodes"; fi
grep -q '^trireme: error: machine .*links.network.gb_per_s is missing' err || fail "the link that is not known"

# Three thousandths of a TFLOP/s: what 8 ranks compute takes much longer than messages on two cores.
cat >slow.toml <<'TOML'
name = "slow"
ranks_per_node = 64
[device]
type = "cpu"
memory_gib = 24.0
operation_us = 200
[products]
fp32_tflops = 0.003
efficiency = 0.8
rows_half = 24
[memory]
gb_per_s = 2.0
[links.node]
latency_us = 20
gb_per_s = 2
TOML
step() {
  "$mpiexec" -n 8 "$TRIREME" bench step --machine slow.toml "${model[@]}" --train.batch 16 --train.micro_batch 2 \
    --warmup 1 --iterations 2 --json step.json "$@" >out 2>err || fail "bench step $*"
  [ "$(tail -n 1 out)" = '# wrong results: 0' ] || fail "other bytes than traced: $*"
  # On a machine with other work a step takes longer; never much less than its computation.
  python3 - <<'PYTHON' || fail "its time: $*"
import json
step = json.load(open("step.json"))["benchmarks"][0]
assert 0.97 < step["median_us"] / step["predicted_us"] < 1.5, step
PYTHON
}
step --parallel.pipeline 4 --parallel.zero 1
step --parallel.pipeline 2 --parallel.tensor 2 --parallel.virtual_stages 2 --parallel.schedule interleaved
refused() {
  if "$TRIREME" bench "${@:2}" >out 2>err; then fail "accepted: ${*:2}"; fi
  [ "$(grep -c '^trireme: error: ' err)" -eq 1 ] && grep -q -- "$1" err || fail "$1"
}
refused 'waits as CPUs do' step --machine "$SOURCE/data/machines/h100-sxm.toml" "${model[@]}"
refused '--output is required' machine
refused 'does not use it' machine --output other.toml --train.batch 4
[ ! -e other.toml ] || fail "a file of what was refused"
