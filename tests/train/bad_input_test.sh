#!/usr/bin/env bash
# User errors and faults: each ends with one line "trireme: error: …" from one of two ranks, a non-zero exit code and no
# partial output.
set -uo pipefail
folder=$(mktemp -d)
mounted=
cleanup() {
  [ -n "$mounted" ] && umount "$mounted"
  rm -rf "$folder"
}
trap cleanup EXIT
cd "$folder"
failures=0

# refused NAME PATTERN COMMAND...: the command fails with one line that matches PATTERN.
refused() {
  local name=$1 pattern=$2
  shift 2
  "$@" >out 2>err
  local code=$?
  local lines
  lines=$(grep -c '^trireme: error: ' err)
  if [ "$code" -eq 0 ] || [ "$code" -ge 124 ] || [ "$lines" -ne 1 ] || ! grep -qE "^trireme: error: .*$pattern" err; then
    echo "FAILED $name: exit $code, $lines error lines, wanted /$pattern/"
    cat out err
    failures=$((failures + 1))
  else
    echo "$name: $(grep '^trireme: error: ' err)"
  fi
}
two() { timeout 60 "$TRIREME_MPIEXEC" -n 2 "$TRIREME" "$@"; }
train() {  # dataset, flags
  local data=$1
  shift
  timeout 60 "$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --data.path "$data" --train.output run --model.layers 1 --model.width 16 \
    --model.heads 2 --model.sequence 16 --train.batch 4 --train.steps 3 --train.peak none --train.quiet "$@"
}


seq 1 60000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1 || exit 1

refused "missing dataset" "nowhere" train nowhere
mkdir empty
refused "empty dataset folder" "empty.*dataset.json" train empty
cp -r data truncated
truncate -s 20000 truncated/train-00000.h5
refused "truncated shard" "truncated/train-00000.h5: cannot open" train truncated
cp -r data short
: >short/dataset.json
refused "empty manifest" "dataset.json" train short
refused "heads that do not divide" "model.heads = 3: .*width.*nearest" train data --model.heads 3
refused "batch that does not divide" "train.batch = 5: .*nearest" train data --train.batch 5
refused "micro-batch that does not divide" "train.micro_batch = 3" train data --train.batch 8 --train.micro_batch 3
refused "vocabulary too small" "model.vocabulary = 100" train data --model.vocabulary 100
refused "window longer than the text" "model.sequence = 1000000.*use at most" train data --model.sequence 1000000
refused "missing checkpoint to resume" "checkpoint nowhere: .*name a run folder" train data --checkpoint.resume nowhere
if grep -q '^CUDA.*cuda:0' <(CUDA_VISIBLE_DEVICES= "$TRIREME" info); then
  echo "a GPU in spite of CUDA_VISIBLE_DEVICES: not asked for one"
else
  export CUDA_VISIBLE_DEVICES=
  refused "a GPU where there is none" "device.type = cuda: rank 0 sees no device .*use cpu" train data --device cuda
fi
refused "an optimizer offloaded from a CPU" "zero.offload = optimizer: on a CPU must be none: .*use none" train data --device cpu \
  --zero.offload optimizer
refused "fp16 on a CPU" "precision.compute = fp16: .*bf16" train data --device cpu --precision.compute fp16
printf '0F0,0B0,\n1F0,1X0\n' >wrong.csv
refused "fault in a schedule file" "wrong.csv:2:5: " train data --parallel.pipeline 2 --parallel.schedule file:wrong.csv
refused "virtual stages past all bounds" "parallel.virtual_stages = 4294967297: .*from 1 to 1024" train data \
  --parallel.pipeline 2 --parallel.virtual_stages 4294967297
refused "unknown key" "modle.layers.*model.layers" train data --modle.layers 3
refused "layout that does not fit" "parallel.data" train data --parallel.data 3
: >file
refused "unwritable output folder" "file" train data --train.output file/run
refused "unwritable prepare output" "file" "$TRIREME" prepare --input text --output file/data
refused "missing input" "no-such-text" "$TRIREME" prepare --input no-such-text --output new
refused "a name of two lines" "--name a.*: a dataset's name must be 1 to 255 printable bytes" "$TRIREME" prepare --input text --output new --name $'a\nb'
refused "an input named twice" "--input ./text: is named twice" "$TRIREME" prepare --input text ./text --output new
refused "empty input" "empty-text|holds no|empty" "$TRIREME" prepare --input file --output new
[ ! -e new ] || { echo "FAILED: prepare left something behind"; failures=$((failures + 1)); }
refused "checkpoint that is none" "nowhere" two evaluate --checkpoint nowhere
[ ! -e run ] || { echo "FAILED: refused runs left a folder"; find run; failures=$((failures + 1)); }

# One bit flipped in the middle of the tokens: the chunk's checksum reports the file and the position.
cp -r data corrupt
size=$(stat -c %s corrupt/train-00000.h5)
at=$((size / 2))
byte=$(od -An -tu1 -j "$at" -N 1 corrupt/train-00000.h5)
printf "$(printf '\\%03o' $((byte ^ 4)))" | dd of=corrupt/train-00000.h5 bs=1 seek="$at" conv=notrunc status=none
refused "corrupt shard" "corrupt/train-00000.h5: .*byte [0-9]+" train corrupt --train.batch 512 --train.steps 200
refused "corrupt shard, verified" "corrupt/train-00000.h5: " "$TRIREME" inspect corrupt --verify

# A full disk, where a small one can be mounted.
mkdir disk
if mount -t tmpfs -o size=600k tmpfs disk 2>/dev/null; then
  mounted=$folder/disk
  refused "full disk in prepare" "disk.*[Nn]o space" "$TRIREME" prepare --input text --output disk/data
  [ -z "$(ls -A disk)" ] || { echo "FAILED: left on the full disk:"; ls -AR disk; failures=$((failures + 1)); }
  refused "full disk in a checkpoint" "[Nn]o space" train data --train.output disk/run --model.width 128
  [ -z "$(find disk -name 'step-*')" ] || { echo "FAILED: half a checkpoint"; find disk; failures=$((failures + 1)); }
else
  echo "no tmpfs can be mounted here: the full disk is left to the modules' own tests"
fi

# Configuration errors are reported within two seconds of the program's start.
begin=$(date +%s%N)
train data --model.heads 3 >/dev/null 2>&1
took=$((($(date +%s%N) - begin) / 1000000))
echo "a configuration error took $took ms in all"
[ "$took" -lt $((4000 * ${TRIREME_SLOWDOWN:-1})) ] || failures=$((failures + 1))
[ "$failures" -eq 0 ]
