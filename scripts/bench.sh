#!/usr/bin/env bash
# bench.sh BUILD [Google Benchmark flags]: single operations, also on tensors larger than the caches; whole steps
# with each operation's roofline; and whole steps compared with the matrix-product peak and
# PyTorch. Figures also as JSON in BUILD/bench. ROUNDS, TYPES and CASES reach bench/compare.py.
set -euo pipefail
build=$1
shift
here=$(cd "$(dirname "$0")/.." && pwd)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} OMP_PROC_BIND=${OMP_PROC_BIND:-true}
if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
for program in "$build"/bench/{ops,progress}_bench; do
  [ -x "$program" ] || { echo "bench.sh: $program is not built; make bench builds it" >&2; exit 1; }
  echo "== $(basename "$program")"
  "$program" --benchmark_out="$program.json" --benchmark_out_format=json "$@"
done
echo '== operations beyond the caches'
"$build/bench/memory_bench" --results "$build/bench/memory_bench.json"
echo '== collectives of two ranks by messages and through shared memory'
OMP_NUM_THREADS=1 OMP_PROC_BIND=false "${TRIREME_MPIEXEC:-mpirun}" -n 2 "$build/bench/collectives_bench"
echo '== whole steps, operation by operation'
"$build/bench/trireme_bench_steps" cpu fp32 small:12 gpt2:4:1024
echo '== whole steps beside the peak and PyTorch'
"${PYTHON:-python3}" "$here/bench/compare.py" "$build/bench/trireme_bench_steps" --json "$build/bench/compare.json" \
  --rounds "${ROUNDS:-3}" ${TYPES:+--types "$TYPES"} ${CASES:+--cases "$CASES"}
