#!/usr/bin/env bash
# inspect of checkpoints: step, tensors and files of a sound one; the first damaged file and tensor of another; and that
# h5dump, an independent tool, shows the files' contents.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
seq 1 9000 | tr '\n' ' ' >text
fail() {
  echo "FAILED: $*"
  cat out err
  exit 1
}
run() {
  code=0
  "$@" >out 2>err || code=$?
}
refused() {  # message, command…
  local message=$1
  shift
  run "$@"
  [ "$code" -eq 1 ] && [ "$(grep -c '^trireme: error: ' err)" -eq 1 ] && [ ! -s out ] || fail "not refused: $*"
  grep -qE "$message" err || fail "without '$message': $*"
}
run "$TRIREME" prepare --input text --output data
run "$TRIREME" train --data.path data --train.output run --model.layers 1 --model.width 16 --model.heads 2 --model.sequence 16 \
  --train.batch 2 --train.steps 3 --checkpoint.every 1 --checkpoint.keep 3 --train.peak none --train.evaluate_at_end=false
[ "$code" -eq 0 ] || fail "train"

run "$TRIREME" inspect run --verify
[ "$code" -eq 0 ] || fail "inspect of a run"
for line in '^checkpoint +run/step-00000003$' '^step +3$' '^samples +6$' '^adamw.moment1 ' '^parameters ' \
  '^rank-00000.h5 ' '^verified: '; do
  grep -qE "$line" out || fail "no line '$line'"
done
# The model's keys are a configuration file.
"$TRIREME" inspect run | sed -n '/^\[model\]/,/^$/p' >model.toml
run "$TRIREME" train --config model.toml --data.path data --checkpoint.resume run --train.output next --train.batch 2 \
  --train.steps 4 --train.peak none --train.evaluate_at_end=false
[ "$code" -eq 0 ] && grep -q '^step 4/4' out || fail "the printed model does not resume the run"

run "$TRIREME" inspect run/step-00000002 --tensors
grep -q '^fp32  *\[16\]  *parameters/blocks.0.norm1.gain$\|^fp32 .*parameters/' out || fail "no tensors"

# Structure and attributes, readable by people and other programs.
h5dump -A run/step-00000003/rank-00000.h5 >out 2>err || fail h5dump
for word in 'ATTRIBUTE "format"' '"trireme checkpoint"' 'ATTRIBUTE "step"' 'ATTRIBUTE "global_shape"' \
  'ATTRIBUTE "global_offset"' 'ATTRIBUTE "type"' 'GROUP "parameters"' H5T_IEEE_F32LE; do
  grep -q "$word" out || fail "h5dump shows no $word"
done

# The last bytes of a dataset's data: found by --verify, which names file and tensor.
name=$(h5dump -n run/step-00000003/rank-00000.h5 | awk '$1 == "dataset" && $2 ~ /parameters/ { print $2 }' | tail -n 1)
at=$(h5dump -p -H -d "$name" run/step-00000003/rank-00000.h5 | awk '$1 == "OFFSET" { print $2 }')
byte=$(od -An -tu1 -j "$at" -N 1 run/step-00000003/rank-00000.h5)
printf "$(printf '\\%03o' $((byte ^ 16)))" | dd of=run/step-00000003/rank-00000.h5 bs=1 seek="$at" conv=notrunc status=none
refused "run/step-00000003/rank-00000.h5: tensor ${name#/}, from element .*checksum" "$TRIREME" inspect run/step-00000003 --verify
refused "run/step-00000003/rank-00000.h5: tensor ${name#/}" "$TRIREME" inspect run --verify
# A truncation is found at once; the newest intact checkpoint is shown, with those passed over.
truncate -s -1 run/step-00000003/rank-00000.h5
refused "step-00000003/rank-00000.h5: has [0-9]+ bytes, the manifest says" "$TRIREME" inspect run/step-00000003
run "$TRIREME" inspect run
[ "$code" -eq 0 ] && grep -q '^passed over: run/step-00000003/rank-00000.h5: ' out && grep -q '^step  *2$' out || fail "not passed over"
refused "step-00000003/rank-00000.h5: has" "$TRIREME" inspect run --verify
rm run/step-0000000[12]/manifest.json
refused "step-00000003/rank-00000.h5: has" "$TRIREME" inspect run
refused "step-00000001/manifest.json: cannot open" "$TRIREME" inspect run/step-00000001/
