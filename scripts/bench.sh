#!/usr/bin/env bash
# bench.sh BUILD [Google Benchmark flags]: single operations, also on tensors larger than the caches; whole steps
# with each operation's roofline; and whole steps compared with the matrix-product peak and
# PyTorch. Figures also as JSON in BUILD/bench. Environment: ROUNDS of each comparison and CASES of whole steps, as
# bench/compare.py describes them; TYPES of the steps beside PyTorch.
set -euo pipefail
build=$1
shift
here=$(cd "$(dirname "$0")/.." && pwd)
IFS=, read -r -a cases <<<"${CASES:-small:12,gpt2:4:1024}"
# shellcheck source=jobs/common.sh
source "$here/jobs/common.sh"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(trireme_nproc)} OMP_PROC_BIND=${OMP_PROC_BIND:-true}
trireme_allow_local 2
for program in "$build"/bench/{ops,progress}_bench; do
  [ -x "$program" ] || { echo "bench.sh: $program is not built; make bench builds it" >&2; exit 1; }
  echo "== $(basename "$program")"
  "$program" --benchmark_out="$program.json" --benchmark_out_format=json "$@"
done
echo '== operations beyond the caches'
"$build/bench/memory_bench" --results "$build/bench/memory_bench.json" ${ROUNDS:+--rounds "$ROUNDS"}
echo '== collectives of two ranks by messages and through shared memory'
OMP_NUM_THREADS=1 OMP_PROC_BIND=false "${TRIREME_MPIEXEC:-mpirun}" -n 2 "$build/bench/collectives_bench" ${ROUNDS:+"$ROUNDS"}
echo '== whole steps, operation by operation'
"$build/bench/trireme_bench_steps" cpu fp32 "${cases[@]}"
echo '== whole steps beside the peak and PyTorch'
"${PYTHON:-python3}" "$here/bench/compare.py" "$build/bench/trireme_bench_steps" --json "$build/bench/compare.json" \
  --mpiexec "${TRIREME_MPIEXEC:-mpirun}" --rounds "${ROUNDS:-3}" ${TYPES:+--types "$TYPES"} --cases "$(IFS=, && echo "${cases[*]}")"
