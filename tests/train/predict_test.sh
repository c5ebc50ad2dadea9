#!/usr/bin/env bash
# train.predict: a step's predicted time beside the measured one, at the start, in the closing tables, in summary.json
# and as a finding of the report; what cannot be predicted is refused in one line before anything is written.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpiexec=${TRIREME_MPIEXEC:-mpirun}
fail() {
  echo "FAILED: $1"
  cat "$work"/*.log | tail -40
  exit 1
}
yes 'Words follow one another in a text that is long enough to be learned from.' | head -n 400 >"$work/text.txt" || true
"$TRIREME" prepare --input "$work/text.txt" --output "$work/data" >/dev/null 2>&1
train() {  # train FOLDER FLAGS...
  local folder=$1
  shift
  "$mpiexec" -n 2 "$TRIREME" train --model.preset nano --data.path "$work/data" --train.output "$work/$folder" \
    --train.steps 8 --train.batch 8 ${micro---train.micro_batch 2} --train.peak none --train.evaluate_at_end=false "$@" \
    >"$work/$folder.log" 2>&1
}
cp "$SOURCE/data/machines/cpu-epyc-zen4.toml" "$work/cpu.toml"
# Three heads over two tensor ranks: ranks with unlike plans, of which only its own may be the root's.
for layout in "--parallel.tensor 2" "--parallel.tensor 2 --model.heads 3 --model.kv_heads 3 --model.width 96" "--parallel.pipeline 2" "--parallel.zero 1"; do
  rm -rf "$work/run"
  # shellcheck disable=SC2086
  train run $layout --train.predict "$work/cpu.toml" || fail "$layout"
  grep -q "^predicted: [0-9.e-]* s a step ($work/cpu.toml)\$" "$work/run.log" || fail "$layout: no line at the start"
  grep -q '^  step (median)  *[0-9.]*  *[0-9.]*  *[+-][0-9.]* %$' "$work/run.log" || fail "$layout: no row at the end"
  python3 - "$work/run/attempts/0001" <<'PYTHON' || fail "$layout: summary.json"
import json, statistics, sys
folder = sys.argv[1]
times = json.load(open(folder + "/summary.json"))["step_time"]
steps = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
seconds = [step["seconds"] for step in steps if "loss" in step and "seconds" in step]
assert len(seconds) == 8, steps
measured, predicted = times["measured"], times["predicted"]
assert abs(measured["seconds"] / statistics.median(seconds) - 1) < 0.3, (measured, seconds)
assert predicted["parts"]["compute"] > 0 and measured["parts"]["compute"] > 0, times
# Parts are of what ranks do in steps, measured ones of a median step: they fill most of it, and no more than all.
for each in (measured, predicted):
    assert 0.3 * each["seconds"] < sum(each["parts"].values()) < 1.05 * each["seconds"], each
PYTHON
done
# Measured by the run itself: memory is as predicted all the same, and steps have the bits of other runs.
for layout in "--parallel.tensor 2" "--parallel.pipeline 2 --parallel.virtual_stages 2 --parallel.schedule interleaved"; do
  rm -rf "$work/run" "$work/plain"
  # shellcheck disable=SC2086
  train run $layout --train.predict quick || fail "quick, $layout"
  grep -q '^step time, by quick$' "$work/run.log" || fail "quick, $layout: no table at the end"
  # shellcheck disable=SC2086
  train plain $layout || fail "without quick, $layout"
  python3 - "$work" <<'PYTHON' || fail "quick, $layout: its record"
import json, sys
run, plain = (f"{sys.argv[1]}/{name}/attempts/0001" for name in ("run", "plain"))
times = json.load(open(run + "/summary.json"))["step_time"]
ratio = times["predicted"]["seconds"] / times["measured"]["seconds"]
assert 0.1 < ratio < 3, times  # the machine may be busy at any time
losses = [[json.loads(line).get("loss") for line in open(folder + "/metrics.jsonl")] for folder in (run, plain)]
assert losses[0] == losses[1], losses
PYTHON
  if grep -q '^no figure of merit' "$work/run.log"; then fail "quick, $layout: memory is not as predicted"; fi
done
# The layout that plan --search finds.
micro="" train chosen --parallel.layout auto --train.predict "$work/cpu.toml" || fail "parallel.layout = auto"
grep -q "^layout chosen among [0-9]* layouts by $work/cpu.toml: " "$work/chosen.log" || fail "what was chosen"
"$TRIREME" plan --ranks 2 --ranks-per-node 2 --machine "$work/cpu.toml" --model.preset nano --data.path "$work/data" \
  --train.batch 8 --search --output "$work/best.toml" >"$work/search.log" 2>&1 || fail "a search"
while read -r line; do grep -qF "  $line" "$work/chosen.log" || fail "not the best: $line"; done <"$work/best.toml"
# A machine with a hundredth of the speed predicts steps that take much longer.
sed -i -E 's/^(fp32_tflops) = .*/\1 = 0.0005/; /^\[operations\]/,$d' "$work/cpu.toml"
train slow --train.predict "$work/cpu.toml" || fail "a slow machine"
"$TRIREME" report "$work/slow" >"$work/report.log" 2>&1 || fail "a report"
grep -q 'times the .* predicts; most of the difference is computation .*: the file describes a slower machine' \
  "$work/report.log" || fail "no finding"

refused() {  # refused WORDS FLAGS...
  local words=$1
  shift
  rm -rf "$work/refused"
  if train refused "$@"; then fail "accepted: $*"; fi
  [ "$(grep -c '^trireme: error: ' "$work/refused.log")" -eq 1 ] || fail "not one line: $*"
  grep -q -- "$words" "$work/refused.log" || fail "$words"
  [ ! -e "$work/refused/attempts" ] || fail "a record of what never began: $*"
}
refused 'nothing.toml' --train.predict "$work/nothing.toml"
refused 'is a machine with device.type = gpu, and this run computes on CPUs' \
  --train.predict "$SOURCE/data/machines/a100-sxm-80g.toml"
micro="" refused 'parallel.data = 2: is chosen where parallel.layout = auto; leave one of the two out' \
  --train.predict "$SOURCE/data/machines/cpu-epyc-zen4.toml" --parallel.layout auto --parallel.data 2
refused 'is predicted for data_parallel.method = allreduce' --train.predict "$work/cpu.toml" \
  --data_parallel.method average
