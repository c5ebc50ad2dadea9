#!/usr/bin/env bash
# mpich.sh OPENMPI_BUILD MPICH_BUILD: two ranks under MPICH train to the bits of two under Open MPI, and each build resumes
# the other's checkpoint. Run by `make test-mpich`.
set -euo pipefail
declare -A program=([openmpi]=$(realpath "$1") [mpich]=$(realpath "$2"))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMP_NUM_THREADS=1

seq 1 20000 >text
"${program[mpich]}" prepare --input text --output data >/dev/null
train() { # library, run folder, options
  local library=$1 run=$2
  shift 2
  timeout 300 "mpiexec.$library" -n 2 "${program[$library]}" train --data.path data --model.preset nano --train.batch 8 \
    --parallel.zero 1 --train.peak none --train.quiet --checkpoint.every 5 --train.output "$run" "$@"
}
losses() { sed -n 's/.*"loss":\([^,}]*\).*/\1/p' "$1"/attempts/*/metrics.jsonl; }

for library in openmpi mpich; do
  grep -qi "${library/openmpi/open mpi}" <("${program[$library]}" info) || { echo "${program[$library]} is no build of $library"; exit 1; }
  train "$library" "$library" --train.steps 5 >/dev/null
done
train mpich openmpi --train.steps 10 >/dev/null
train openmpi mpich --train.steps 10 >/dev/null
[ "$(losses openmpi | wc -l)" -ge 10 ] || { echo "steps are missing"; exit 1; }
diff <(losses openmpi) <(losses mpich) || { echo "losses differ"; exit 1; }
for library in openmpi mpich; do
  "${program[$library]}" export --checkpoint "$library" --output "$library.out" >/dev/null
done
cmp openmpi.out/model.safetensors mpich.out/model.safetensors || { echo "weights differ"; exit 1; }
echo "MPICH and Open MPI: the same losses and weights, and each resumes the other's checkpoint"
