#!/usr/bin/env bash
# `train --trace` writes the device's operations to trace.json, including those of the last update, and does not change
# training; without it there are none.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpiexec=${TRIREME_MPIEXEC:-mpirun}
steps=3

yes 'Words follow one another in a text that is long enough to be learned from.' | head -n 200 >"$work/text.txt" || true
"$TRIREME" prepare --input "$work/text.txt" --output "$work/data" >/dev/null 2>&1
train() {  # train FOLDER FLAGS...
  local folder=$1
  shift
  "$mpiexec" -n 2 "$TRIREME" train --model.preset nano --data.path "$work/data" --train.output "$work/$folder" \
    --train.steps $steps --train.batch 4 --train.peak none --train.quiet=true \
    --train.evaluate_at_end=false "$@" >"$work/$folder.log" 2>&1 || {
    cat "$work/$folder.log"
    exit 1
  }
}
train traced --trace
train plain
# events FOLDER NAME RANK: spans of the device with that name
events() {
  grep -E "\"name\": ?\"$2\"" "$work/$1/attempts/0001/trace.json" | grep -E '"ph": ?"X"' |
    grep -E '"tid": ?3[,}]' | grep -cE "\"pid\": ?$3[,}]" || true
}
failures=0
fail() { echo "FAILED: $1"; failures=1; }
for rank in 0 1; do
  for name in embedding matmul layer_norm attention attention_backward weighted_loss add_squares adamw; do
    found=$(events traced $name $rank)
    [ "$found" -gt 0 ] || fail "rank $rank: no $name in the trace"
    [ $((found % steps)) -eq 0 ] || fail "rank $rank: $found times $name in $steps steps"
    [ "$(events plain $name $rank)" -eq 0 ] || fail "rank $rank: $name without --trace"
  done
done
grep -qE '"args": ?\{"name": ?"device"\}' "$work/traced/attempts/0001/trace.json" || fail "no row called device"
losses() { grep -oE '"(loss|gradient_norm)": ?[^,}]*' "$work/$1/attempts/0001/metrics.jsonl"; }
[ "$(losses traced)" = "$(losses plain)" ] || fail "a trace changes what is trained"

# Operations that run at once for all tiles do so in a trace too: they take the memory that is predicted.
train tiles --trace --train.quiet=false --numerics.reproducible true --train.batch 8 --model.sequence 256
grep -q '^workspace' "$work/tiles.log" || fail "no table of memory"
grep 'differs by' "$work/tiles.log" && fail "memory of a traced run in reproducible mode is not as predicted"
for name in independent_attention independent_attention_backward sum_of_matmuls independent_matmuls independent_sums independent_row_sums; do
  [ "$(events tiles $name 0)" -gt 0 ] || fail "no $name in the trace of reproducible mode"
done
exit $failures
