#!/usr/bin/env bash
# A malicious corpus: the program itself refuses every file in one line that names the fault.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir base corpus
seq 1 1200 | tr '\n' ' ' | head -c 4445 >text
"$TRIREME" prepare --input text --output base/data >/dev/null
"$TRIREME" train --data.path base/data --train.output base/run --model.layers 1 --model.width 16 --model.heads 2 \
  --model.sequence 16 --train.batch 4 --train.steps 2 --train.peak none --train.quiet >/dev/null
"$TRIREME" export --checkpoint base/run --output base/theirs >/dev/null
rm -rf base/run/attempts
"$TRIREME" inspect base/data --verify >/dev/null
"$TRIREME" inspect base/run/step-00000002 --verify >/dev/null
"$PROGRAMS/hostile_program" base corpus "$TRIREME"

# Links inside a hub's cache are followed.
mkdir -p hub/blobs hub/snapshots/main
for file in config.json model.safetensors; do
  cp "base/theirs/$file" "hub/blobs/$file-hash"
  ln -s "../../blobs/$file-hash" "hub/snapshots/main/$file"
done
"$TRIREME" import --input hub/snapshots/main --output hub/run >/dev/null
