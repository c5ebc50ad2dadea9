#!/usr/bin/env bash
# Runs every benchmark program in a folder, each on as many threads as the machine has cores:
# bench.sh BUILD/bench [Google Benchmark flags].
set -euo pipefail
folder=$1
shift
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} OMP_PROC_BIND=${OMP_PROC_BIND:-true}
if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
ran=0
for program in "$folder"/*_bench; do
  [ -x "$program" ] || continue
  echo "== $(basename "$program")"
  "$program" "$@"
  ran=1
done
[ "$ran" -eq 1 ] || { echo "bench.sh: no benchmark programs in $folder" >&2; exit 1; }
