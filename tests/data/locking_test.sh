#!/usr/bin/env bash
# File locks of HDF5: none are taken unless HDF5_USE_FILE_LOCKING requests them; then a lock of another program and a
# file system without locks are reported with a remedy.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
work=$(pwd -P)
seq 1 9000 | tr '\n' ' ' >text
fail() {
  echo "FAILED: $*"
  cat out
  exit 1
}
train() {
  "$TRIREME" train --data.path data --train.output "$1" --model.layers 1 --model.width 16 --model.heads 2 --model.sequence 16 \
    --train.batch 2 --train.steps 1 --train.peak none --train.evaluate_at_end=false >out 2>&1
}
# The error line has file, reason and remedy.
reports() {
  [ "$(grep -c '^trireme: error: ' out)" -eq 1 ] || fail "$1: not one line"
  grep -q "error: .*$2: cannot .*: $3; .*set HDF5_USE_FILE_LOCKING=FALSE" out || fail "$1: message"
}
"$TRIREME" prepare --input text --output data >out 2>&1 || fail prepare
train run || fail train

for file in data/train-00000.h5 run/step-00000001/rank-00000.h5; do
  (flock -x 9 && exec sleep 60) 9<"$file" &
  holder=$!
  until ! flock -n -s "$file" true; do sleep 0.1; done
  "$TRIREME" inspect "${file%/*}" --verify >out 2>&1 || fail "$file: a lock is checked by default"
  HDF5_USE_FILE_LOCKING=FALSE "$TRIREME" inspect "${file%/*}" --verify >out 2>&1 || fail "$file: FALSE does not ignore the lock"
  if HDF5_USE_FILE_LOCKING=TRUE "$TRIREME" inspect "${file%/*}" --verify >out 2>&1; then fail "$file: TRUE is not honored"; fi
  reports "$file" "$file" "Resource temporarily unavailable"
  kill "$holder"
  wait "$holder" 2>/dev/null || true
  # The child holds the lock too.
  until flock -n -s "$file" true; do sleep 0.1; done
  HDF5_USE_FILE_LOCKING=TRUE "$TRIREME" inspect "${file%/*}" --verify >out 2>&1 || fail "$file: not locked any more"
done

if grep -q 'lib[at]san' <(ldd "$TRIREME"); then
  echo "skipped in part: a sanitizer must be the only preloaded library"
  exit 0
fi
# Writing on a file system without locks.
export TRIREME_FILE_FAULT="no_locks 1 $work/other/step-00000001.tmp"
without_locks() { LD_PRELOAD=$PROGRAMS/libtrireme_file_faults.so "$@"; }
without_locks train other || fail "locks are taken by default"
rm -r other
if HDF5_USE_FILE_LOCKING=TRUE without_locks train other; then fail "no locks: TRUE is not honored"; fi
reports "no locks" "other/step-00000001.tmp/rank-00000.h5" "No locks available"
# The first lock is that of prepare's own folder.
export TRIREME_FILE_FAULT="no_locks 2 $work/other-data"
if HDF5_USE_FILE_LOCKING=TRUE without_locks "$TRIREME" prepare --input text --output other-data >out 2>&1; then
  fail "prepare without locks: TRUE is not honored"
fi
reports "prepare without locks" "train-00000.h5" "No locks available"
[ ! -e other-data ] || fail "prepare left a dataset"
