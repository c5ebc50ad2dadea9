#!/usr/bin/env bash
# Predictions of a scaling study: what the index, the table and the report have of them, and machine files that are refused.
# shellcheck disable=SC2015  # what follows || ends the script
set -euo pipefail
if ! "$TRIREME_MPIEXEC" --version 2>&1 | grep -c 'Open MPI\|OpenRTE\|HYDRA' >/dev/null; then
  echo "skipped: no launcher that jobs/common.sh knows"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export TRIREME TRIREME_MPIRUN=$TRIREME_MPIEXEC PYTHONDONTWRITEBYTECODE=1 TRIREME_CORES=0
unset SLURM_JOB_ID PBS_JOBID LSB_JOBID FLUX_URI
fail() {
  echo "FAILED: $*"
  cat out
  exit 1
}
for _ in $(seq 200); do echo "a line of text to learn from"; done >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1
machine=$SOURCE/data/machines/cpu-epyc-zen4.toml
printf 'data\ntensor2 --parallel.tensor 2\nnever --parallel.schedule upside-down\n' >layouts
flags=(--data.path data --model.layers 1 --model.width 16 --model.heads 2 --model.sequence 16 --train.peak none)
run() { # arguments; the exit code in $code
  code=0
  "$SOURCE/jobs/scaling-study" --mode strong --batch 4 --layouts layouts --steps 3 --shared-cores "$@" -- "${flags[@]}" >out 2>&1 || code=$?
}

run --ranks 1,2 --repeats 2 --output study --predict "$machine" --extrapolate 2,4,8
[ "$code" -eq 1 ] || fail "exit code $code" # of the impossible points
"$TRIREME" plan --ranks 2 --ranks-per-node 2 --machine "$machine" --json "${flags[@]}" --train.batch 4 >plan.json
python3 -B - out "$machine" <<'END' || fail "another prediction than that of plan, the band or the table"
import json, statistics, sys
index, report = json.load(open("study/index.json")), json.load(open("study/report.json"))
predictions = {(each["layout"], each["ranks"]): each for each in index["predictions"]["points"]}
assert index["predictions"]["machine"] == sys.argv[2]
# 8 ranks have more data ranks than the batch has sequences; tensor2 leaves out one rank.
assert sorted(predictions) == [("data", 1), ("data", 2), ("data", 4), ("data", 8), ("never", 1), ("never", 2), ("never", 4),
                               ("never", 8), ("tensor2", 2), ("tensor2", 4), ("tensor2", 8)], sorted(predictions)
two = predictions["data", 2]["tokens_per_second"]
assert abs(two / json.load(open("plan.json"))["step"]["tokens_per_second"] - 1) < 1e-12
assert all("upside-down" in predictions["never", ranks]["reason"] for ranks in (1, 2, 4))
assert "train.batch" in predictions["data", 8]["reason"] and "tokens_per_second" not in predictions["data", 8]
assert [key for key, each in sorted(predictions.items()) if each["extrapolated"]] == [
    (layout, ranks) for layout in ("data", "never", "tensor2") for ranks in (4, 8)]
speeds = {}
for point in index["points"]:
    if point["state"] == "done":
        speeds.setdefault((point["layout"], point["ranks"]), []).append(point["tokens_per_second"])
ratio = {key: statistics.median(each) / predictions[key]["tokens_per_second"] for key, each in speeds.items()}
assert sorted(ratio) == [("data", 1), ("data", 2), ("tensor2", 2)]
four, least, greatest = predictions["data", 4], *sorted((ratio["data", 1], ratio["data", 2]))
assert abs(four["low"] / (least * four["tokens_per_second"]) - 1) < 1e-9, four
assert abs(four["high"] / (greatest * four["tokens_per_second"]) - 1) < 1e-9, four
assert not any("low" in each for (layout, _), each in predictions.items() if layout == "tensor2"), "a band of one measured point"
lines = open(sys.argv[1]).read().splitlines()
rows = {(row[0], row[1]): row for row in map(str.split, lines) if row and row[0] in ("data", "tensor2", "never") and len(row) > 8}
assert sorted(rows) == [("data", "1"), ("data", "2"), ("data", "4"), ("tensor2", "2"), ("tensor2", "4"), ("tensor2", "8")], rows
assert rows["data", "2"][7:9] == ["%.1f" % two, "%+.1f%%" % (100 * (ratio["data", 2] - 1))], rows["data", "2"]
assert rows["data", "4"][2:] == ["0", "-", "-", "-", "-", "%.1f" % four["tokens_per_second"], "-", "%.1f" % four["low"], "to",
                                 "%.1f" % four["high"]], rows["data", "4"]
assert rows["tensor2", "8"][-1] == "-"
assert any(line.startswith("no prediction: data on 8 ranks: trireme: error: ") for line in lines)
line = next(line for line in report["scaling"] if line["label"].endswith("; data"))
assert [each["ranks"] for each in line["predicted"]["points"]] == [1, 2, 4]
assert line["predicted"]["points"][2] == {key: four[key] for key in ("ranks", "tokens_per_second", "low", "high", "extrapolated")}
END
if command -v gnuplot >/dev/null; then
  grep -c 'batch 4; data, predicted by' study/report.html >/dev/null || fail "no predicted curve"
fi

# A call without --predict keeps them; other numbers replace them.
cp study/index.json before
run --ranks 1,2 --repeats 2 --output study
cmp -s before study/index.json && grep -c '^predicted: by ' out >/dev/null || fail "predictions were lost"
run --ranks 1,2 --repeats 2 --output study --predict "$machine"
[ "$(grep -c '^data  *4 ' out)" -eq 0 ] && [ "$(grep -c '^data  *2 .*%' out)" -eq 1 ] || fail "predictions were not replaced"

# Nothing runs with a machine file that lacks something: one line, which is plan's.
refused() { # WORDS ARGUMENTS...
  local words=$1
  shift
  run --ranks 1,2 --repeats 1 --output refused "$@"
  [ "$code" -ne 0 ] && [ "$(grep -c "error: " out)" -eq 1 ] && grep -cF "scaling-study: error: $words" out >/dev/null || fail "not '$words'"
  [ -z "$(ls refused/runs 2>/dev/null)" ] || fail "points ran: $words"
}
sed '/^gb_per_s/d' "$machine" >short.toml
refused "$work/short.toml: " --predict short.toml
[ ! -e refused ] || fail "a study was begun"
sed '/^fp32_tflops/d' "$machine" >short.toml
refused 'machine ' --predict short.toml
grep -c 'products.fp32_tflops is missing' out >/dev/null || fail "what is missing"
refused "$work/none.toml" --predict none.toml
run --ranks 1 --output refused --extrapolate 8
[ "$code" -eq 2 ] && grep -c -- '--extrapolate: belongs to --predict' out >/dev/null || fail "--extrapolate alone"
run --ranks 1 --output refused --predict "$machine" --extrapolate 8,x
[ "$code" -eq 2 ] && grep -c -- '--extrapolate 8,x: must be numbers' out >/dev/null || fail "no numbers"
echo ok
