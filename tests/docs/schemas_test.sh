#!/usr/bin/env bash
# Every JSON file of a run follows docs/schemas, for each data-parallel method.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
schemas=$SOURCE/docs/schemas
check() { python3 -B "$SOURCE/tests/docs/validate.py" "$schemas/$1.json" "${@:2}"; }

printf 'the quick brown fox jumps over the lazy dog\n%.0s' {1..400} >text.txt
"$TRIREME" prepare --input text.txt --output data >/dev/null 2>&1
check dataset data/dataset.json

# train RANKS NAME FLAGS...: two steps of a tiny model, with a checkpoint.
train() {
  "$TRIREME_MPIEXEC" -n "$1" "$TRIREME" train --model.layers 1 --model.width 16 --model.heads 2 --model.sequence 16 \
    --data.path data --train.output "$2" --train.steps 2 --train.batch 4 --train.micro_batch 1 --train.peak none "${@:3}" \
    >"$2.log" 2>&1 || { cat "$2.log"; exit 1; }
}
train 2 reduced --trace
train 2 averaged --data_parallel.method average --average.every 1
train 3 served --data_parallel.method server --parallel.servers 1
train 3 asynchronous --data_parallel.method async-server --parallel.servers 1
"$TRIREME" prepare --input text.txt --output other >/dev/null 2>&1
train 2 blended --data.path "1 data, 2 other"
train 2 packed --data.path "1 data, 2 other" --data.packing documents
train 2 reduced --train.steps 3 --optim.learning_rate 1e-4 --train.stop_after 1  # resumed, changed
grep -q '"changed"' reduced/attempts/0002/metrics.jsonl
tr -d '\n ' < reduced/attempts/0001/run.json | grep -q '"backends":{"data":"shared",.*"world":"mpi"}'
check run ./*/attempts/*/run.json
check summary ./*/attempts/*/summary.json
check metrics ./*/attempts/*/metrics.jsonl
check mllog ./*/attempts/0001/mllog.txt
check trace reduced/attempts/0001/trace.json
check checkpoint ./*/step-00000002/manifest.json

# The HDF5 files: docs/formats.md names their attributes and datasets.
if command -v h5dump >/dev/null; then
  h5dump -H data/train-00000.h5 >shard.txt
  h5dump -H reduced/step-00000002/rank-00000.h5 >piece.txt
  for word in 'ATTRIBUTE "format"' 'ATTRIBUTE "version"' 'DATASET "tokens"' 'DATASET "document_ends"'; do
    grep -qF "$word" shard.txt || { echo "a shard has no $word"; exit 1; }
  done
  for word in 'ATTRIBUTE "format"' 'ATTRIBUTE "version"' 'ATTRIBUTE "step"' 'ATTRIBUTE "type"' 'ATTRIBUTE "global_shape"' 'ATTRIBUTE "global_offset"'; do
    grep -qF "$word" piece.txt || { echo "a file of a checkpoint has no $word"; exit 1; }
  done
fi

# A renamed key is detected.
sed 's/"steps_of_attempt"/"steps_of_start"/' reduced/attempts/0001/summary.json >renamed.json
if check summary renamed.json >seen.txt; then echo "a renamed key of summary.json was not detected"; exit 1; fi
grep -q 'lacks steps_of_attempt' seen.txt
echo "all files follow their schemas"
