#!/usr/bin/env bash
# trireme status of a run that runs, was killed, stopped, and ended.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
fail() {
  printf 'FAILED: %s\n' "$1"
  head -n 40 out err | sed 's/^/    /'
  failures=$((failures + 1))
}
has() { grep -qE -- "$1" out || fail "$2: no '$1'"; }
show() { "$TRIREME" status "$@" >out 2>err || fail "status $*"; }
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >out 2>err || fail prepare
flags=(--model.layers 1 --model.width 32 --model.heads 2 --model.sequence 32 --data.path data --train.output run --train.batch 4
  --train.peak none --train.quiet=true)
train() { "$TRIREME" train "${flags[@]}" "$@"; }

"$TRIREME" train "${flags[@]}" --train.steps 1000000 --checkpoint.every 2000 >log 2>&1 &
job=$!
for _ in $(seq 300); do [ -e run/step-00002000/manifest.json ] && break; sleep 0.1; done
show run
has "^state +running, process $job on " running
has '^step +[0-9,]+ of 1,000,000 \([0-9.]+ %\), ' running
has '^loss +[0-9.]+, gradient norm [0-9.]+$' running
has '^left +[0-9]' running
has '^checkpoint +step-[0-9]+, ' running
timeout 60 "$TRIREME" status run --follow >followed 2>err &
follower=$!
for _ in $(seq 300); do grep -q '^step [0-9]*: save' followed && break; sleep 0.1; done
kill -9 $job
wait $job 2>/dev/null
wait $follower || fail "--follow does not end with the run"
[ "$(grep -c '^step  .* loss ' followed)" -ge 1 ] || fail "--follow shows no step"
cp followed out
has '^step [0-9]+: save: run/step-' follow
show run
has '^state +ended without a summary: killed' killed
! grep -q '^left' out || fail "a run that was killed has time left"

train --train.steps 1000000 --train.stop_after 3 >log 2>&1 || fail "stop_after"
show run
has '^state +stopped before its last step' stopped
steps=$(sed -n 's/.*"step":\([0-9]*\),.*/\1/p' run/attempts/0002/metrics.jsonl | tail -n 1)
train --train.steps "$((steps + 2))" --train.inject nan@$((steps + 1)) >log 2>&1 || fail "the end"
show run
has '^state +done' done
has "^step +.* of .*\(100.0 %\)" done

# Started again at its end: nothing is left to do, and the checkpoint is there.
train --train.steps "$((steps + 2))" >log 2>&1 || fail "the end again"
mkdir run/attempts/notes
show run --follow
has '^state +done' again
has '^step +[0-9,]+ of [0-9,]+, none in this attempt' again
has '^checkpoint +step-' again
[ "$(grep -c '^run ' out)" -eq 1 ] || fail "a run that ended is shown twice"

# A run that failed.
"$TRIREME" train "${flags[@]}" --train.output broken --train.steps 30 --train.inject nan@5 --train.skip_limit 1 >log 2>&1 &&
  fail "a run with a NaN goes on"
show broken
has '^state +failed: .*step 5' failed
has '^loss +nan, .*, skipped: ' failed

"$TRIREME" status data >out 2>err && fail "a dataset has a status"
grep -qx 'trireme: error: data: has no attempts/; name the folder of a run (train.output)' err || fail "no run"
exit $((failures > 0))
