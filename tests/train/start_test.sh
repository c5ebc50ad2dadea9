#!/usr/bin/env bash
# What a rank sends and receives over a run of one step grows by a few bytes a rank, and its
# messages with the logarithm of the ranks.
set -euo pipefail
counts=$PROGRAMS/libmessage_counts.so
if grep -q __asan_init "$TRIREME"; then echo "not in a build with sanitizers"; exit 77; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1
# Fields: ranks; messages sent, the most of a rank; bytes received, the least and the most; splits; collectives. The
# least are what all ranks get; the most are those of rank 0 and of the ranks that pass the others' on to it.
count() {
  "$TRIREME_MPIEXEC" -n "$1" env LD_PRELOAD="$counts" "$TRIREME" train --data.path data --train.output "run$1" \
    --train.quiet true --train.steps 1 --train.batch 32 --train.micro_batch 1 --train.peak none --model.layers 1 \
    --model.width 16 --model.heads 2 --model.sequence 8 --train.evaluate_at_end false --checkpoint.at_end false \
    "${@:2}" 2>err || { cat err; exit 1; }
  sed -n 's/^counts: //p' err
}
few=$(count 4 "$@") many=$(count 16 "$@")
printf 'ranks messages least_bytes most_bytes splits collectives\n%s\n%s\n' "$few" "$many"
awk -v few="$few" -v many="$many" 'BEGIN {
  split(few, a, " "); split(many, b, " ")
  if (a[1] != 4 || b[1] != 16) { print "not counted"; exit 1 }
  each = (b[3] - a[3]) / (b[1] - a[1])
  printf "a rank more brings every rank %.1f bytes; four times as many ranks send %d and %d messages\n", each, a[2], b[2]
  if (each > 200) { print "more than the 128 bytes of a core mask, which stay in a node, and a few"; exit 1 }
  if (b[2] > 2 * a[2]) { print "messages grow faster than the logarithm of the ranks"; exit 1 }
  if (b[5] > a[5] || b[6] > a[6]) { print "more splits or collectives"; exit 1 }
}'
