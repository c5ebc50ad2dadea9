#!/usr/bin/env bash
# Under ulimit -v a run trains, or ends in one line about memory: no library ends it by a signal.
set -euo pipefail
if grep -q __asan_init "$TRIREME"; then echo "not in a build with sanitizers, which map terabytes"; exit 77; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1
train() {
  "$TRIREME" train --data.path data --train.output run --train.steps 2 --train.quiet true --train.batch 4 \
    --model.layers 1 --model.width 256 --model.heads 4 --model.sequence 64
}
refused=0 trained=0
for kilobytes in $(seq 300000 20000 560000) 4000000; do
  rm -rf run
  code=0
  (ulimit -v "$kilobytes"; train) >out 2>&1 || code=$?
  if [ $code -eq 0 ]; then
    trained=1
  elif [ $code -eq 127 ] && grep -q 'error while loading shared libraries' out; then
    echo "ulimit -v $kilobytes: the program is not even loaded"
  elif [ $code -ne 1 ] || [ "$(wc -l <out)" -ne 1 ] || ! grep -Eq '^trireme: error: (memory|.*out of memory|a thread)' out; then
    echo "ulimit -v $kilobytes: exit code $code"
    cat out
    exit 1
  else
    refused=$((refused + 1))
  fi
done
echo "$refused limits refused"
[ "$refused" -ge 3 ] && [ "$trained" -eq 1 ]
