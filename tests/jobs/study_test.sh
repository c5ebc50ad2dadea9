#!/usr/bin/env bash
# A scaling study on this machine: points that fail, points that cannot be, a stop by a signal, a kill, and going on.
# shellcheck disable=SC2015  # what stands behind || ends the script
set -euo pipefail
if ! "$TRIREME_MPIEXEC" --version 2>&1 | grep -c 'Open MPI\|OpenRTE\|HYDRA' >/dev/null; then
  echo "skipped: no launcher that jobs/common.sh knows"
  exit 0
fi
work=$(mktemp -d)
study=
trap '[ -z "$study" ] || kill "$study" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
cd "$work"
export TRIREME TRIREME_MPIRUN=$TRIREME_MPIEXEC PYTHONDONTWRITEBYTECODE=1
unset SLURM_JOB_ID PBS_JOBID LSB_JOBID FLUX_URI
# Ranks of two tests must not be bound to the same cores.
export TRIREME_CORES=0
fail() {
  echo "FAILED: $*"
  cat out
  exit 1
}
for _ in $(seq 200); do echo "a line of text to learn from"; done >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1
cat >layouts <<'EOF2'
# a comment
data
tensor2 --parallel.tensor 2
broken  --train.inject nan@1,nan@2,nan@3 --train.skip_limit 2   # ends with an error
never   --parallel.schedule upside-down
EOF2
flags=(--data.path data --model.layers 1 --model.width 16 --model.heads 2 --model.sequence 16 --train.peak none)
run() { # arguments; the exit code in $code
  code=0
  "$SOURCE/jobs/scaling-study" --batch 4 --layouts layouts "$@" -- "${flags[@]}" >out 2>&1 || code=$?
}
states() { python3 -B -c '
import collections, json, sys
points = json.load(open(sys.argv[1] + "/index.json"))["points"]
print(*("%s=%d" % item for item in sorted(collections.Counter(p["state"] for p in points).items())))' "$1"; }

# What would run: every repeat is a round of all points, and rounds differ in their order.
run --mode weak --ranks 1,2 --repeats 4 --steps 3 --output dry --dry-run
[ "$code" -eq 0 ] && [ ! -e dry ] || fail "dry run: exit code $code"
[ "$(grep -c '^# [0-9]*: weak' out)" -eq 28 ] || fail "dry run: not 4 x (4 + 3) points"
grep -c '^# left out: tensor2 on 1 ranks' out >/dev/null || fail "dry run: what is left out"
[ "$(grep -c -- '-n 1 .*--train.batch 4 ' out)" -eq 12 ] && [ "$(grep -c -- '-n 2 .*--train.batch 8 ' out)" -eq 16 ] || fail "weak: batch"
for repeat in 1 2 3 4; do
  sed -nE 's/^# [0-9]+: weak-(.*)-[0-9]+$/\1/p' out | sed -n "$((7 * repeat - 6)),$((7 * repeat))p" >"order$repeat"
  [ "$(sort -u "order$repeat" | wc -l)" -eq 7 ] || fail "round $repeat lacks a point"
done
! cmp -s order1 order2 || ! cmp -s order2 order3 || fail "rounds are all alike"

# Points that fail are noted, the others go on.
run --mode strong --ranks 1,2 --repeats 1 --steps 3 --output study
[ "$code" -eq 1 ] || fail "exit code $code"
[ "$(states study)" = "done=3 failed=2 impossible=2" ] || fail "states: $(states study)"
grep -c 'broken-1 *failed  trireme: error: step 2' out >/dev/null || fail "why it failed is not told"
grep -c 'never-1 *impossible  trireme: error: .*schedule' out >/dev/null || fail "why it cannot be is not told"
grep -Ec '^tensor2 +2 +1 +[0-9.]+ ' out >/dev/null || fail "no table"
[ "$(find study/runs -name summary.json | wc -l)" -eq 3 ] && [ "$(find study/failed -name output.txt | wc -l)" -eq 2 ] || fail "records"

# Nothing is run twice; what was under way when the study was killed is.
find study/runs -name summary.json -exec stat -c '%n %i' {} + | sort >before
run --mode strong --ranks 1,2 --repeats 1 --steps 3 --output study
find study/runs -name summary.json -exec stat -c '%n %i' {} + | sort | cmp - before || fail "a point was run again"
[ "$(states study)" = "done=3 failed=2 impossible=2" ] || fail "states when nothing was left: $(states study)"
sed -i '0,/"state": "done"/s//"state": "running"/' study/index.json
run --mode strong --ranks 1,2 --repeats 1 --steps 3 --output study
[ "$(states study)" = "done=3 failed=2 impossible=2" ] || fail "states after a kill: $(states study)"
find study/runs -name summary.json -exec stat -c '%n %i' {} + | sort | comm -3 - before >changed
[ "$(wc -l <changed)" -eq 2 ] || fail "not just one point was run again"
# More repeats are added to what is there, and what failed is tried again where that is asked for; other parameters
# are another study.
run --mode strong --ranks 1,2 --repeats 2 --steps 3 --output study --retry-failed
[ "$(states study)" = "done=6 failed=4 impossible=4" ] || fail "states of two repeats: $(states study)"
[ "$(find study/failed -name output.txt | wc -l)" -eq 7 ] || fail "failed points were not tried again"
run --mode strong --ranks 1,2 --repeats 2 --steps 4 --output study
[ "$code" -eq 1 ] && grep -c '^scaling-study: error: .*steps = 3, this one 4' out >/dev/null || fail "other parameters"
run --mode strong --ranks 1,2 --steps 4 --output none --launcher slurm --dry-run
[ "$code" -eq 0 ] && grep -c '^sbatch .*--ntasks-per-node=1 .*jobs/slurm.sh' out >/dev/null || fail "sbatch"

# A signal ends the point under way, and the same command begins it anew.
"$SOURCE/jobs/scaling-study" --mode strong --ranks 2 --batch 4 --repeats 1 --steps 100000000 --layouts layouts \
  --output stopped -- "${flags[@]}" >out 2>&1 &
study=$!
for _ in $(seq 1200); do
  [ "$(find stopped/runs -name metrics.jsonl 2>/dev/null | wc -l)" -eq 0 ] || break
  kill -0 $study 2>/dev/null || break
  sleep 0.1
done
kill -TERM $study
code=0
wait $study || code=$?
study=
[ "$code" -eq 75 ] && grep -c 'stopped by SIGTERM' out >/dev/null || fail "stopped: exit code $code"
[ "$(states stopped | grep -c running)" -eq 0 ] && [ -z "$(ls stopped/runs)" ] || fail "stopped: $(states stopped)"
for _ in $(seq 100); do
  left=$(pgrep -f "$work/stopped" || true)
  [ -n "$left" ] || break
  sleep 0.1
done
[ -z "$left" ] || fail "left behind: $left"

# jobs/local.sh: SIGTERM saves, exit code 75, and the same command goes on.
export TRIREME_RANKS=2
code=0
"$SOURCE/jobs/local.sh" "${flags[@]}" --train.batch 4 --train.steps 100000000 --train.output local >out 2>&1 &
study=$!
for _ in $(seq 1200); do
  [ ! -s local/attempts/0001/metrics.jsonl ] || break
  kill -0 $study 2>/dev/null || break
  sleep 0.1
done
kill -TERM $study
wait $study || code=$?
study=
[ "$code" -eq 75 ] && grep -c 'signal SIGUSR1' out >/dev/null && [ -d "$(echo local/step-*)" ] || fail "local: exit code $code"
step=$(sed -n 's/^stopped at step \([0-9]*\) .*/\1/p' out)
code=0
"$SOURCE/jobs/local.sh" "${flags[@]}" --train.batch 4 --train.steps $((step + 2)) --train.output=local >out 2>&1 || code=$?
[ "$code" -eq 0 ] && grep -c "resumed from local/step-.*: step $step\$" out >/dev/null &&
  grep -c "exit code 0, checkpoint of step $((step + 2))" out >/dev/null || fail "local, again: exit code $code"
echo ok
