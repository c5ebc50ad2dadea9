#!/usr/bin/env bash
# A scaling study on this machine: failing points, impossible points, a stop by a signal, a kill, and resuming.
# shellcheck disable=SC2015  # what follows || ends the script
set -euo pipefail
if ! "$TRIREME_MPIEXEC" --version 2>&1 | grep -c 'Open MPI\|OpenRTE\|HYDRA' >/dev/null; then
  echo "skipped: no launcher that jobs/common.sh knows"
  exit 77
fi
work=$(mktemp -d)
study=
trap '[ -z "$study" ] || kill "$study" 2>/dev/null || true; wait; cat ranks left 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true; rm -rf "$work"' EXIT
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
  "$SOURCE/jobs/scaling-study" --batch 4 --layouts layouts --shared-cores "$@" -- "${flags[@]}" >out 2>&1 || code=$?
}
refuses() { # words, arguments: one line, and no traceback
  local words=$1
  shift
  run "$@"
  [ "$code" -eq 1 ] && [ "$(wc -l <out)" -eq 1 ] && grep -cF "scaling-study: error: $words" out >/dev/null || fail "not refused with '$words'"
}
states() { python3 -B -c '
import collections, json, sys
points = json.load(open(sys.argv[1] + "/index.json"))["points"]
print(*("%s=%d" % item for item in sorted(collections.Counter(p["state"] for p in points).items())))' "$1"; }

# The examples of the document and of --help are complete.
printf 'model = { layers = 1, width = 16, heads = 2, sequence = 16 }\ndata = { path = "data" }\n' >run.toml
cp "$SOURCE/data/machines/cpu-epyc-zen4.toml" machine.toml
mkdir jobs
cp -r "$SOURCE/jobs/benchmarks" jobs/benchmarks
{
  "$SOURCE/jobs/scaling-study" --help
  cat "$SOURCE/docs/scaling-studies.md"
} | sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' | sed -n 's|^ *jobs/scaling-study ||p' >examples
[ "$(wc -l <examples)" -ge 4 ] || fail "the examples were not found"
while read -r -a words; do
  "$SOURCE/jobs/scaling-study" --dry-run "${words[@]}" >out 2>&1 </dev/null || fail "the example ${words[*]}"
done <examples

# Planned order: every repeat is a round of all points, and rounds differ in their order.
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

# Failing points are recorded, the others continue.
run --mode strong --ranks 1,2 --repeats 1 --steps 3 --output study
[ "$code" -eq 1 ] || fail "exit code $code"
[ "$(states study)" = "done=3 failed=2 impossible=2" ] || fail "states: $(states study)"
grep -c 'broken-1 *failed  trireme: error: step 2' out >/dev/null || fail "why it failed is not reported"
grep -c 'never-1 *impossible  trireme: error: .*schedule' out >/dev/null || fail "why it is impossible is not reported"
grep -Ec '^tensor2 +2 +1 +[0-9.]+ ' out >/dev/null || fail "no table"
# Efficiency is the report's, and the table names what it is against.
grep -c '^tokens/s: median over repeats; efficiency: per rank, against data on 1 rank$' out >/dev/null || fail "no reference"
python3 -B - out <<'END' || fail "another efficiency than the report's"
import json, sys
works = [work for work in json.load(open("study/report.json"))["works"] if work["kind"] == "strong"]
points = {(point["name"], point["ranks"]): point for point in works[0]["points"]}
rows = [line.split() for line in open(sys.argv[1]) if line.startswith(("data ", "tensor2 "))]
assert len(works) == 1 and len(rows) == len(points) == 3, (works, rows)
for name, ranks, *_, shown in rows:
    assert shown == "%.1f%%" % (100 * points[name, int(ranks)]["efficiency"]["median"]), (name, shown)
one, two = points["data", 1], points["tensor2", 2]
assert one["efficiency"]["median"] == 1 and one["reference"] == ""
per_rank = two["tokens_per_second"]["median"] / 2 / one["tokens_per_second"]["median"]
assert abs(two["efficiency"]["median"] - per_rank) < 1e-12
END
[ "$(find study/runs -name summary.json | wc -l)" -eq 3 ] && [ "$(find study/failed -name output.txt | wc -l)" -eq 2 ] || fail "records"

# No point runs twice, except the one that was running when the study was killed.
find study/runs -name summary.json -exec stat -c '%n %i' {} + | sort >before
run --mode strong --ranks 1,2 --repeats 1 --steps 3 --output study
find study/runs -name summary.json -exec stat -c '%n %i' {} + | sort | cmp - before || fail "a point was run again"
[ "$(states study)" = "done=3 failed=2 impossible=2" ] || fail "states when nothing was left: $(states study)"
sed -i '0,/"state": "done"/s//"state": "running"/' study/index.json
run --mode strong --ranks 1,2 --repeats 1 --steps 3 --output study
[ "$(states study)" = "done=3 failed=2 impossible=2" ] || fail "states after a kill: $(states study)"
find study/runs -name summary.json -exec stat -c '%n %i' {} + | sort | comm -3 - before >changed
[ "$(wc -l <changed)" -eq 2 ] || fail "not just one point was run again"
# More repeats are added, and failed points are repeated on request; other parameters are another study.
run --mode strong --ranks 1,2 --repeats 2 --steps 3 --output study --retry-failed
[ "$(states study)" = "done=6 failed=4 impossible=4" ] || fail "states of two repeats: $(states study)"
[ "$(find study/failed -name output.txt | wc -l)" -eq 7 ] || fail "failed points were not tried again"
run --mode strong --ranks 1,2 --repeats 2 --steps 4 --output study
[ "$code" -eq 1 ] && grep -c '^scaling-study: error: .*steps = 3, this one 4' out >/dev/null || fail "other parameters"
run --mode strong --ranks 1,2 --steps 4 --output none --launcher slurm --dry-run
[ "$code" -eq 0 ] && grep -c '^sbatch .*--ntasks-per-node=1 .*jobs/slurm.sh' out >/dev/null || fail "sbatch"

# Mistakes.
refuses '--batch 5 at 2 ranks would be 7.5 at 3: weak scaling needs whole sequences, so use a multiple of 2' \
  --mode weak --ranks 2,3 --output none --batch 5
for line in 'a --parallel.tensor 0' 'b --parallel.pipeline=two' 'c "d'; do echo "$line"; done >mistakes
for words in 'mistakes:1: --parallel.tensor 0: must be' 'mistakes:1: --parallel.pipeline two: must be' 'mistakes:1: No closing quotation'; do
  refuses "$words" --mode strong --ranks 2 --output none --layouts mistakes
  sed -i 1d mistakes
done
cp -r study damaged
for text in '{"parameters": {}, "poi' '[]' '{"parameters": {}, "points": [{"name": "x"}]}' '{"points": []}'; do
  echo "$text" >damaged/index.json
  refuses "$work/damaged/index.json: is damaged" --mode strong --ranks 1,2 --repeats 2 --steps 3 --output damaged
  [ "$(cat damaged/index.json)" = "$text" ] || fail "a damaged index was overwritten"
done

# Speeds are the report's: medians without warm-up, none for a run that is INVALID, which stays in runs/. A layout
# without finished points may be corrected.
printf 'data\ninjected --train.inject nan@2\nmended --parallel.schedule upside-down\n' >layouts
judged=(--mode strong --ranks 1 --repeats 1 --steps 8 --output judged)
run "${judged[@]}"
[ "$code" -eq 1 ] && [ "$(states judged)" = "done=1 impossible=1 invalid=1" ] || fail "judged: exit code $code, $(states judged)"
grep -c 'injected-1 *invalid  INVALID: .*faults were made on purpose' out >/dev/null || fail "why a point is invalid is not reported"
[ "$(grep -cE '^(data|injected|mended) ' out)" -eq 1 ] || fail "a speed of an invalid point"
"$TRIREME" report judged/runs/strong-r00001-data-1 --shared-cores --json one.json >/dev/null || fail "report"
python3 -B -c '
import json
point = next(p for p in json.load(open("judged/index.json"))["points"] if p["layout"] == "data")
assert point["figure_from"] == "report"
assert point["tokens_per_second"] == json.load(open("one.json"))["runs"][0]["figures"]["tokens_per_second"]["median"]' ||
  fail "another figure than the report's"
sed -i 's/^mended.*/mended --parallel.zero 1/' layouts
run "${judged[@]}"
[ "$(states judged)" = "done=2 invalid=1" ] || fail "mended: $(states judged)"
# If only the plots cannot be made, the rest is not reported as missing.
mkdir bin plain
for tool in env bash dirname; do ln -s "$(command -v "$tool")" plain; done
ln -s "$(python3 -c 'import sys; print(sys.executable)')" plain/python3
sed -i 's/^mended.*/mended --parallel.zero 2/' layouts
refuses "$work/judged: layout mended had other flags" "${judged[@]}"
sed -i 's/^mended.*/mended --parallel.zero 1/' layouts
PATH=$work/plain run "${judged[@]}"
grep -c "^not written: $work/judged/report.html; the reason is above" out >/dev/null || fail "without gnuplot"
# A program that has no report: figures of merit, marked as such.
# shellcheck disable=SC2016
printf '#!/bin/sh\n[ "$1" != report ] || exit 2\nexec "%s" "$@"\n' "$TRIREME" >bin/old
chmod +x bin/old
sed -i 2,3d layouts
TRIREME=$work/bin/old run --mode strong --ranks 1 --repeats 1 --steps 8 --output old
[ "$code" -eq 0 ] && grep -cE '^data .* FOM$' out >/dev/null && grep -c '^FOM: ' out >/dev/null || fail "no report: exit code $code"

# Without a dataset the study creates one, once; one from the configuration or the environment is used.
with_data=("${flags[@]}")
flags=("${flags[@]:2}")
own=(--mode strong --ranks 1 --repeats 1 --steps 8 --output own)
run "${own[@]}" --dry-run
[ "$code" -eq 0 ] && [ ! -e own ] && grep -c -- "--data.path $work/own/dataset " out >/dev/null || fail "dry run without a dataset"
run "${own[@]}"
[ "$code" -eq 0 ] && [ "$(states own)" = "done=1" ] && grep -c '^no data.path is given' out >/dev/null || fail "own dataset: $(states own)"
[ ! -e own/dataset.txt ] && [ ! -e own/dataset.new ] || fail "own dataset: something was left"
run --mode strong --ranks 1,2 --repeats 2 --steps 8 --output own
[ "$(states own)" = "done=4" ] && [ "$(grep -c '^no data.path is given' out)" -eq 0 ] || fail "own dataset, again: $(states own)"
printf '[data]\npath = "data"\n' >named.toml
flags+=(--config named.toml)
run "${own[@]}" --output named --dry-run
[ "$code" -eq 0 ] && [ "$(grep -c 'named/dataset' out)" -eq 0 ] || fail "a configuration's dataset"
flags=("${with_data[@]:2}")
TRIREME_DATA_PATH=$work/data run "${own[@]}" --output named --dry-run
[ "$code" -eq 0 ] && [ "$(grep -c 'named/dataset' out)" -eq 0 ] || fail "the environment's dataset"
flags=("${with_data[@]}")

# Slurm jobs through a fake sbatch: it gets the user's SBATCH_* and SLURM_JWT, not a surrounding job's variables; a
# signal during submission loses no job.
cat >bin/sbatch <<'EOF2'
#!/bin/sh
env >environment
echo submitted >>submissions
[ ! -e strike ] || kill -TERM "$(cat strike)"
sleep 0.2
echo "4$(grep -c . submissions)"
EOF2
printf '#!/bin/sh\necho JobId=41 JobState=PENDING ExitCode=0:0\n' >bin/scontrol
chmod +x bin/sbatch bin/scontrol
jobs=(--mode strong --ranks 1 --repeats 2 --steps 8 --launcher slurm --no-wait --output jobs)
# shellcheck disable=SC2016
PATH=$work/bin:$PATH SBATCH_ACCOUNT=abc SLURM_JWT=token SLURM_JOB_NAME=outer SLURM_NTASKS=9 \
  bash -c 'echo $$ >strike && exec "$@"' bash "$SOURCE/jobs/scaling-study" "${jobs[@]}" --batch 4 --layouts layouts -- "${flags[@]}" >out 2>&1 && code=0 || code=$?
[ "$code" -eq 75 ] && [ "$(states jobs)" = "submitted=1 waiting=1" ] || fail "a signal to sbatch: exit code $code, $(states jobs)"
grep -cx 'SBATCH_ACCOUNT=abc\|SLURM_JWT=token' environment | grep -cx 2 >/dev/null || fail "the user's variables"
[ "$(grep -c '^SLURM_JOB_NAME=\|^SLURM_NTASKS=' environment)" -eq 0 ] || fail "the surrounding job's variables"
rm strike
PATH=$work/bin:$PATH run "${jobs[@]}"
[ "$code" -eq 0 ] && [ "$(states jobs)" = "submitted=2" ] && [ "$(grep -c . submissions)" -eq 2 ] || fail "submitted again: $(states jobs)"

# Ranks that ignore signals, in their own process group: a second signal ends them, and so does resuming after the study
# was killed.
cat >bin/stubborn <<'EOF2'
#!/bin/bash
case $1 in plan) exit 0 ;; train) ;; *) exit 2 ;; esac
trap '' TERM USR1 INT HUP
echo $$ >>ranks
while :; do sleep 0.1; done
EOF2
printf '#!/bin/bash\nset -m\nshift 6\n"$@" &\nwait\n' >bin/starter
chmod +x bin/stubborn bin/starter
# Finished processes may remain as zombies.
alive() { xargs -r ps -o pid=,stat= -p <"$1" | awk '$2 !~ /^Z/ { print $1 }' || true; }
stubborn() { # starts a study of one point that never ends
  rm -f ranks
  TRIREME=$work/bin/stubborn TRIREME_MPIRUN=$work/bin/starter TRIREME_MPIRUN_STYLE=hydra TRIREME_CORES=9 TRIREME_END_SECONDS=1 \
    "$SOURCE/jobs/scaling-study" --mode strong --ranks 1 --batch 4 --repeats 1 --layouts layouts --output stubborn -- "${flags[@]}" >out 2>&1 &
  study=$!
  for _ in $(seq 100); do
    [ ! -s ranks ] || break
    sleep 0.1
  done
  [ -s ranks ] || fail "the stubborn rank has not begun"
}
stubborn
kill -KILL $study
wait $study 2>/dev/null || true
[ -n "$(alive ranks)" ] || fail "the rank ended with the study, so this tests nothing"
mv ranks left
stubborn
[ -z "$(alive left)" ] || fail "left behind: $(alive left)"
grep -c 'strong-r00001-data-1 is still running, left behind' out >/dev/null || fail "what was left behind is not reported"
kill -HUP $study
sleep 0.5
kill -TERM $study 2>/dev/null || true
code=0
wait $study || code=$?
study=
[ "$code" -eq 75 ] && [ -z "$(alive ranks)" ] && grep -c 'stopped by SIG' out >/dev/null || fail "two signals: exit code $code, alive: $(alive ranks)"

# A signal ends the running point, and the same command starts it again.
printf 'data\ntensor2 --parallel.tensor 2\n' >layouts
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

# jobs/local.sh: SIGTERM saves, exit code 75, and the same command continues.
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
