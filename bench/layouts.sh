#!/usr/bin/env bash
# One model in several layouts on the ranks of this machine: speed, memory and communication of each,
# from the closing summaries of short runs. layouts.sh TRIREME [RANKS]
set -euo pipefail
binary=$(realpath "$1")
ranks=${2:-2}
mpiexec=${TRIREME_MPIEXEC:-mpirun}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMP_NUM_THREADS=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq 1 200000 > text
"$binary" prepare --input text --output data > log 2>&1

row() {
  awk -v layout="$1" '
    /^total +\|/ && NF >= 5 { memory = $5 }  # of buffers: predicted, measured
    /^arena high-water/ { split($0, word, /[ ,]+/) }
    /^communication, / { sent += $4; axes = axes (axes == "" ? "" : ", ") $2 " " $4 }
    /^resident set/ { resident = $8 }
    /^Figure of Merit/ { speed = $5 }
    END { printf "| %s | %.0f | %.0f | %.0f | %s |\n", layout, speed, memory, resident, axes }' log
}

echo "| layout on $ranks ranks | tokens/s | buffers of a rank, MiB | resident, MiB | MB sent per step and rank |"
echo "|---|---|---|---|---|"
run() {
  local name=$1
  shift
  "$mpiexec" -n "$ranks" "$binary" train --data.path data --train.output "run-${name// /-}" \
    --model.layers 6 --model.width 384 --model.heads 6 --model.sequence 256 --train.batch 16 \
    --train.micro_batch 2 --train.steps 5 --train.peak none --train.evaluate_at_end false \
    --checkpoint.at_end false --train.progress log "$@" > log
  row "$name"
}
run "data"
run "data, zero 1" --parallel.zero 1
run "data, zero 2" --parallel.zero 2
run "data, zero 3" --parallel.zero 3
run "data, full recomputation" --parallel.recompute full
run "tensor" --parallel.tensor "$ranks"
run "tensor, sequence" --parallel.tensor "$ranks" --parallel.sequence true
run "pipeline, 1f1b" --parallel.pipeline "$ranks"
run "pipeline, gpipe" --parallel.pipeline "$ranks" --parallel.schedule gpipe
run "pipeline, interleaved" --parallel.pipeline "$ranks" --parallel.schedule interleaved \
  --parallel.virtual_stages 2
run "pipeline, zero-bubble" --parallel.pipeline "$ranks" --parallel.schedule zero-bubble
run "data, reproducible" --numerics.reproducible true
