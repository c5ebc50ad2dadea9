#!/usr/bin/env bash
# Every benchmark program ends and reports figures of a few small cases, collectives_bench those of collectives alone;
# bench_long.sh runs scripts/bench.sh whole.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
bench=$PROGRAMS/../bench
mpiexec=${TRIREME_MPIEXEC:-mpirun}
# LINES WORD COMMAND...: the command prints at least so many lines that begin with the word.
run() {
  local least=$1 word=$2 code=0
  shift 2
  timeout 45 "$@" >out 2>&1 || code=$?
  [ $code -eq 0 ] || { tail -20 out; echo "FAILED: $* exits with $code"; exit 1; }
  [ "$(grep -c "^$word" out)" -ge "$least" ] || { tail -20 out; echo "FAILED: $*: no $least lines of $word"; exit 1; }
}
run 2 BM_add/ "$bench/ops_bench" --benchmark_min_time=0.001 --benchmark_filter=BM_add/
run 1 BM_product/ "$bench/progress_bench" --benchmark_filter=outstanding:2/
run 2 'rms_norm  ' "$bench/memory_bench" --rounds 1 8
run 20 '| ' "$mpiexec" -n 2 "$bench/collectives_bench" 1 collectives
run 1 '  matmul  ' "$bench/trireme_bench_steps" --results one.json cpu fp32 tiny:2
run 1 '  matmul  ' "$mpiexec" -n 2 "$bench/trireme_bench_steps" --results two.json cpu fp32 tiny:1
python3 - <<'PYTHON'
import json
from math import log
one, two = (json.load(open(name))["cases"][0] for name in ("one.json", "two.json"))
assert (one["ranks"], two["ranks"]) == (1, 2), (one["ranks"], two["ranks"])
for each in one, two:
    assert each["step_seconds"] > 0 and len(each["all_step_seconds"]) >= 5 and each["groups"]["products"] > 0, each
    assert 0 < each["loss"] < 1.1 * log(256), each  # of a batch that is learned by heart
PYTHON
