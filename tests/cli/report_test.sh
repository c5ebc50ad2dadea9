#!/usr/bin/env bash
# trireme report of real runs: one and two ranks, a resume, an interrupted run; every output format; sent bytes against
# the least; errors.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mpiexec=${TRIREME_MPIEXEC:-mpirun}
failures=0
fail() {
  printf 'FAILED: %s\n' "$1"
  head -n 60 out | sed 's/^/    out: /'
  head -n 10 err | sed 's/^/    err: /'
  failures=$((failures + 1))
}
has() { grep -qE -- "$1" "${2:-out}" || fail "no '$1' in ${2:-out}"; }
train() {  # train RANKS FOLDER FLAGS...
  local ranks=$1 folder=$2
  shift 2
  "$mpiexec" -n "$ranks" "$TRIREME" train --model.layers 2 --model.width 32 --model.heads 2 --model.sequence 32 \
    --data.path data --train.output "$folder" --train.steps 12 --train.batch 8 --train.micro_batch 2 \
    --train.peak none --train.quiet=true --train.evaluate_samples 8 "$@" >out 2>err || fail "train $folder"
}
report() {
  "$TRIREME" report "$@" >out 2>err
  code=$?
}

seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >out 2>err || fail prepare
train 1 study/one --checkpoint.at_end=false
train 2 study/zero3 --parallel.zero 3 --checkpoint.at_end=false
train 2 study/stages --parallel.pipeline 2 --train.stop_after 8
train 2 study/stages --parallel.pipeline 2 --report.tensorboard=false --report.mllog=false
train 2 study/tensor --parallel.tensor 2 --checkpoint.at_end=false
cp -r study/one study/cut
rm study/cut/attempts/0001/summary.json

# Ranks may share cores on the test machine.
report study --shared-cores --csv r.csv --json r.json --google-benchmark b.json
[ "$code" -eq 0 ] && [ ! -s err ] || fail "report: exit code $code"
has '^study/one .* 1   1   1 \|'
has '^study/cut .* \(incomplete\)$'
has '^INCOMPLETE study/cut$'
has 'there is no summary.json: it is still running, or it was killed'
has '^study/cut,incomplete,' r.csv
has '^strong scaling, batch 8; '
has 'Medians over steps'
[ "$(wc -l <r.csv)" -eq 6 ] || fail "r.csv has $(wc -l <r.csv) lines"
has '^study/stages,yes,,[0-9a-f]{8},2,1,2,1,' r.csv
has '"name": "study/tensor"' b.json

# Both attempts of study/stages are one run of 12 steps, of which 2 and 1 are warm-up.
has '"steps_left_out": 3' r.json
[ -s study/stages/attempts/0001/mllog.txt ] && [ ! -e study/stages/attempts/0002/mllog.txt ] || fail "report.mllog"
has ':::MLLOG .*"run_stop".*"status":"success"' study/one/attempts/0001/mllog.txt
has ':::MLLOG .*"run_stop".*"status":"aborted"' study/stages/attempts/0001/mllog.txt

# Bytes sent are within 7 % of the least on every axis except world: padding, and what ZeRO-3 keeps gathered.
awk '/"[a-z]+": \{/ { axis = $1 } /"mean_bytes_per_step"/ { sent = $2 + 0 }
     /"mean_least_bytes_per_step"/ { if ($2 + 0 > 0) { ++n; ratio = sent / $2; if (ratio < 0.93 || ratio > 1.07) print axis, ratio } }
     END { if (n < 4) print n " axes" }' r.json >ratios
[ ! -s ratios ] || fail "sent and least: $(tr '\n' ' ' <ratios)"

# Every second of every rank counts once, and each layout waits on its own axis.
has '^where time went, % .*compute \| communication wait'
cat >times.py <<'END'
import json
runs = {run["run"]: run["time"] for run in json.load(open("r.json"))["runs"] if run["valid"]}
assert len(runs) == 4, runs.keys()
for name, time in runs.items():
    groups = time["groups"]
    for group, of in groups.items():
        assert abs(sum(of["parts"].values()) - of["seconds"]) < 1e-6, (name, group, of)
        assert of["seconds"] > -1e-6, (name, group, of)
    assert abs(sum(of["seconds"] for of in groups.values()) - time["seconds"]) < 1e-6, (name, time)
    assert abs(sum(of["share"] for of in groups.values()) - 1) < 1e-6, (name, time)
    assert groups["compute"]["parts"]["forward"] > 0, (name, groups)
for name, part in [("zero3", "data: wait for shards"), ("stages", "pipeline: wait for pipeline"),
                   ("tensor", "tensor: wait for tensor ranks")]:
    parts = runs["study/" + name]["groups"]["communication wait"]["parts"]
    assert parts[part] > 0, (name, parts)
END
python3 times.py >out 2>err || fail "times do not add up"
report study/tensor --shared-cores
has '^communication wait  *\|'
has '^  tensor: wait for tensor ranks'
has '^total .* 100\.00$'

if command -v gnuplot >/dev/null; then
  report study --shared-cores --html page.html
  [ "$code" -eq 0 ] || fail "--html: exit code $code"
  [ "$(grep -c '<svg' page.html)" -ge 12 ] || fail "$(grep -c '<svg' page.html) pictures"
  [ "$(grep -cE 'https?:' page.html)" -eq 0 ] || fail "the page refers to something outside it"
fi

# One line each; no partial files.
refuses() {  # refuses CODE LINE ARGUMENTS...
  local expected=$1 line=$2
  shift 2
  report "$@"
  [ "$code" -eq "$expected" ] || fail "report $*: exit code $code, not $expected"
  [ "$(cat err)" = "trireme: error: $line" ] || fail "report $*: other error"
}
refuses 1 "nowhere: is no folder; name a run folder, an attempt or a folder of runs" nowhere
refuses 1 "data: holds no run; name a run folder, an attempt or a folder of runs" data
refuses 2 "report: --csv and --html both name ./same; name two files" study --csv same --html ./same
# The text is printed first; files that are not regular are not replaced.
report study --shared-cores --json none/r.json
[ "$code" -eq 1 ] || fail "an unwritable file: exit code $code"
has '^strong scaling'
has '^trireme: error: none/r.json.*: cannot' err
ln -s real.json link.json
echo mine >real.json.tmp
mkfifo pipe
cat pipe >piped &
reader=$!
report study --shared-cores --json link.json --csv pipe
wait "$reader"
[ "$code" -eq 0 ] && [ -h link.json ] && [ -s real.json ] && [ -p pipe ] || fail "a link and a pipe: exit code $code"
[ "$(cat real.json.tmp)" = mine ] || fail "another's file"
cmp -s piped r.csv || fail "the data read from the pipe"
ln -s /proc/self/fd/1 stdout
report study --shared-cores --json stdout
[ "$code" -eq 0 ] && [ -h stdout ] || fail "--json to standard output: exit code $code"
has '^strong scaling'
has '^  "format": 1,'
mkdir bin
mpi_path=$PATH
PATH=$work/bin
report study --shared-cores --html none.html --json after.json
PATH=$mpi_path
[ "$code" -eq 1 ] && [ ! -e none.html ] && [ -s after.json ] || fail "without gnuplot"
has '^trireme: error: none.html: gnuplot is not here' err
# Failed checks of a run are the reason in its report.
"$mpiexec" -n 2 "$TRIREME" train --model.layers 2 --model.width 32 --model.heads 2 --model.sequence 32 --data.path data \
  --train.output flipped --train.steps 12 --train.batch 8 --train.peak none --train.quiet=true --train.check placement \
  --train.inject flip@5/1 >out 2>err && fail "differing replicas do not end the run"
report flipped --shared-cores
has '^ +attempt 0001: failed after step 5: .*replicas of .* differ'
has 'faults were made on purpose: train.inject'
# What was edited is found, and named.
sed -i '5s/"loss":[0-9]/"loss":7/' study/one/attempts/0001/metrics.jsonl
refuses 1 "report: none of 1 runs is valid; the reasons are above" study/one
has '^ +attempt 0001: run.json or metrics.jsonl:5 is not as it was written|^ +attempt 0001: metrics.jsonl:5 is not as it was written'
has '^ +attempt 0001: metrics.jsonl is not as it was written'
sed -i '3s/.*/{"type":/' study/one/attempts/0001/metrics.jsonl
report study/one
has 'metrics.jsonl:3: is not valid JSON'
exit $((failures > 0))
