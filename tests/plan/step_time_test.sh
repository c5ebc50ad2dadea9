#!/usr/bin/env bash
# Predicted step times as a user asks for them: the tables, steps that others measured, refusals.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() {
  echo "$*"
  cat "$out"/* 2> /dev/null | tail -40
  exit 1
}
machines=$SOURCE/data/machines
plan() { "$TRIREME" plan "$@" > "$out/text" 2> "$out/errors"; }

model=(--model.preset llama-7b --model.vocabulary 32000 --precision.compute bf16 --train.batch 64)
for machine in "$machines"/*.toml; do
  plan --ranks 16 --machine "$machine" "${model[@]}" --precision.compute fp32 --train.micro_batch 1 \
    --model.layers 4 --parallel.tensor 2 --parallel.pipeline 2 || fail "$machine"
  grep -q '^step on .*tokens/s.*MFU [0-9.]* %$' "$out/text" || fail "$machine: no step"
done
plan --ranks 64 --machine "$machines/a100-sxm-80g.toml" "${model[@]}" --train.micro_batch 1 \
  --parallel.tensor 4 --parallel.pipeline 4 --json || fail "JSON"
python3 - "$out/text" << 'PYTHON' || fail "the JSON plan"
import json, sys
step = json.load(open(sys.argv[1]))["step"]
assert abs(sum(step["parts"].values()) - step["seconds"]) < 1e-6 * step["seconds"], step
assert 0.2 < step["mfu"] < 0.8, step
PYTHON
# 1,000 steps of 64 sequences of 16 ranks on two nodes, at a price.
sed '1i price = 10.0' "$machines/a100-sxm-80g.toml" > "$out/priced.toml"
plan --ranks 16 --machine "$out/priced.toml" "${model[@]}" --model.sequence 1000 --train.micro_batch 1 \
  --parallel.tensor 4 --parallel.pipeline 4 --tokens 64e6 --json || fail "--tokens"
python3 - "$out/text" << 'PYTHON' || fail "the time of a training"
import json, sys
step = json.load(open(sys.argv[1]))["step"]
training = step["training"]
assert abs(training["seconds"] / (1000 * step["seconds"]) - 1) < 1e-9, step
assert training["nodes"] == 2 and abs(training["node_hours"] * 3600 / (2 * training["seconds"]) - 1) < 1e-9, step
assert abs(training["price"] / (10 * training["node_hours"]) - 1) < 1e-9, step
PYTHON
# A drawn step: XML, whose spans are as long as the plan has them; sixteen stages of eighty layers are a small file.
drawing=("${model[@]}" --machine "$machines/a100-sxm-80g.toml" --train.micro_batch 1 --parallel.tensor 4)
plan --ranks 64 "${drawing[@]}" --parallel.pipeline 4 --svg "$out/step.svg" --svg-ranks 48 --json || fail "--svg"
python3 - "$out/text" "$out/step.svg" << 'PYTHON' || fail "what is drawn is not what is planned"
import json, re, sys, xml.etree.ElementTree
step = json.load(open(sys.argv[1]))["step"]
assert step["rank"] == 48 and step["svg"] == {"file": sys.argv[2], "ranks": [48], "left_out": []}, step
drawn, svg = {}, "{http://www.w3.org/2000/svg}"
for path in xml.etree.ElementTree.parse(sys.argv[2]).iter(svg + "path"):
    title = path.find(svg + "title")
    widths = [float(width) for width in re.findall(r"h([0-9.]+)", path.get("d"))]
    if title is None or path.get("stroke-width") != "18":  # another row than that which computes
        continue
    name, seconds = title.text[:title.text.rindex(":")], float(title.text.split()[-2]) / 1e3
    drawn[name] = seconds
    # A thousand pixels; both ends of a span are rounded to a hundredth.
    assert abs(sum(widths) - 1000 * seconds / step["seconds"]) < 0.01 * len(widths), (name, sum(widths), seconds)
parts = {name: seconds for name, seconds in step["parts"].items() if not name.startswith("others")}
for name in ("products", "attention", "memory-bound operations", "optimizer", "wait for tensor ranks", "wait for activations of stages"):
    assert abs(drawn[name] - parts[name]) < 1e-5 * step["seconds"], (name, drawn, parts)
assert abs(sum(drawn.values()) - sum(parts.values())) < 1e-4 * step["seconds"], (drawn, parts)
PYTHON
plan --ranks 4096 "${drawing[@]}" --model.layers 80 --model.width 8192 --model.heads 64 --parallel.pipeline 32 \
  --parallel.tensor 8 --train.batch 2048 --svg "$out/large.svg" || fail "a large step"
grep -q "^$out/large.svg: ranks 0, .*; left out: [0-9, ]*$" "$out/text" || fail "what is left out"
python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$out/large.svg" || fail "a large step is not XML"
[ "$(grep -c '>rank [0-9]*<' "$out/large.svg")" -eq 16 ] || fail "not sixteen rows"
[ "$(wc -c < "$out/large.svg")" -lt 2000000 ] || fail "a large step: $(wc -c < "$out/large.svg") bytes"

# The committed picture is what its command draws, but for the last digits of another compiler.
command=$(sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' "$SOURCE/docs/step-time.md" |
  sed -n 's|^trireme plan \(.*\) --svg docs/pictures/predicted-step.svg$|\1|p')
[ -n "$command" ] || fail "no command of the picture"
read -r -a words <<< "$command"
(cd "$SOURCE" && plan "${words[@]}" --svg "$out/predicted-step.svg") || fail "the picture's command"
python3 - "$out/predicted-step.svg" "$SOURCE/docs/pictures/predicted-step.svg" << 'PYTHON' || fail "the committed picture is another; run its command"
import re, sys
now, committed = (open(path).read() for path in sys.argv[1:])
for pattern in (r"<title>(.*): [^ ]* ms</title>", r"<text[^>]*>([^0-9]*)</text>"):
    assert re.findall(pattern, now) == re.findall(pattern, committed), pattern
times = [[float(ms) for ms in re.findall(r": ([^ ]*) ms", text)] for text in (now, committed)]
assert all(abs(a / b - 1) < 1e-3 for a, b in zip(*times)), times
PYTHON

# Twice the micro-batches of a pipeline of four take less than twice as long: the bubble stays.
seconds() {
  plan --ranks 16 --machine "$machines/a100-sxm-80g.toml" "${model[@]}" --train.batch "$1" \
    --train.micro_batch 1 --parallel.tensor 4 --parallel.pipeline 4 --json || fail "batch $1"
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["step"]["seconds"])' "$out/text"
}
awk -v a="$(seconds 8)" -v b="$(seconds 16)" 'BEGIN { exit !(b > 1.5 * a && b < 1.9 * a) }' || fail "the bubble"

# The best layout can be planned, and takes as long as the search printed.
on=(--ranks 8 --machine "$machines/a100-sxm-80g.toml" --model.preset gpt2 --model.vocabulary 50257)
on+=(--precision.compute bf16 --train.batch 32)
plan "${on[@]}" --search --output "$out/layout.toml" || fail "a search"
grep -q '^tensor ranks fill a node, fewest stages that fit: [0-9.]* % longer$' "$out/text" || fail "no usual layout"
best=$(awk '$1 == "tensor" && $2 == "pipeline" { getline; print; exit }' "$out/text")
plan "${on[@]}" --config "$out/layout.toml" || fail "the best layout"
awk -v best="$best" '
  /^step on/ { n = split(best, cell); for (i = 1; i <= n; ++i) if (cell[i] + 0 == $4 + 0) found = 1 }
  END { exit !found }' "$out/text" || fail "the best layout: $best"
if plan "${on[@]}" --search --memory 1MB; then fail "a search without room"; fi
grep -q '^trireme: error: no layout of 8 ranks fits into 0.0 GiB a rank; the nearest is tensor .* GiB too large' "$out/errors" ||
  fail "a search without room"

# Steps that others measured: the errors that docs/step-time.md has, and the best layout of 47 first.
"$SOURCE/bench/published-steps/run.sh" "$TRIREME" > "$out/published" 2>&1 || fail "published steps"
awk '
  /\.csv$/ { file = $1 }
  /mean error/ { mean[file] = $5; largest[file] = $8 }
  /^tensor/ && file == "39b.csv" && (best == "" || $(NF - 1) < least) { best = $0; least = $(NF - 1) }
  END { exit !(mean["one-node.csv"] < 5.7 && mean["39b.csv"] < 7.6 && largest["sequence-parallel.csv"] < 7 && largest["torchtitan.csv"] < 10 && best ~ /^tensor 4 × pipeline 4 × data 32; micro-batch 2 of/) }
' "$out/published" || fail "published steps"
# Our own, on CPUs.
own=$SOURCE/bench/own-steps
own() {  # STEPS MACHINE MEAN LARGEST
  plan --config "$own/common.toml" --machine "$2" --measured "$1" || fail "own steps: $1"
  awk -v mean="$3" -v largest="$4" '/mean error/ { exit !($5 < mean && $8 < largest) }' "$out/text" || fail "own steps: $1"
}
for ranks in 1 2; do
  awk -F, -v ranks=$ranks 'NR == 1 || $1 == ranks' "$own/steps.csv" >"$out/own-$ranks.csv"
done
own "$out/own-1.csv" "$own/one-rank.toml" 2.2 4.8
own "$out/own-2.csv" "$machines/cpu-epyc-zen4.toml" 2.2 7.5
for rate in 1gbit 100mbit 10mbit; do own "$own/network-$rate.csv" "$own/network-$rate.toml" 5 10; done
# Times of operations make constants of operations useless: these are not fitted beside them.
if "$TRIREME" plan --config "$own/common.toml" --machine "$machines/cpu-epyc-zen4.toml" --measured "$out/own-2.csv" \
  --fit products.efficiency --output "$out/none.toml" >"$out/text" 2>&1; then fail "a fit beside measured operations"; fi
grep -q '^trireme: error: --fit = products.efficiency: changes no operation of operations.measured; ' "$out/text" || fail "its error"
# A fit brings constants that are wrong back.
sed 's/^launch_us = .*/launch_us = 300.0/' "$machines/a100-megatron-deepspeed.toml" > "$out/wrong.toml"
head -40 "$SOURCE/bench/published-steps/one-node.csv" > "$out/some.csv"
measured=(--config "$SOURCE/bench/published-steps/megatron-deepspeed.toml" --measured "$out/some.csv")
plan "${measured[@]}" --machine "$out/wrong.toml" || fail "wrong constants"
before=$(awk '/mean error/ { print $5 }' "$out/text")
plan "${measured[@]}" --machine "$out/wrong.toml" --fit device.launch_us,links.launch_us --output "$out/fitted.toml" ||
  fail "a fit"
plan "${measured[@]}" --machine "$out/fitted.toml" || fail "fitted constants"
awk -v a="$before" -v b="$(awk '/mean error/ { print $5 }' "$out/text")" 'BEGIN { exit !(a > 30 && b < 12) }' ||
  fail "a fit: $before"
grep -q 'fitted to some.csv; 39 steps: mean error' "$out/fitted.toml" || fail "a fit without its rows"

# One line each, exit 1 or 2.
refused() {
  local want=$1
  shift
  if plan "$@"; then fail "not refused: $*"; fi
  [ "$(wc -l < "$out/errors")" -eq 1 ] || fail "more than a line: $*"
  grep -q "^trireme: error: .*$want" "$out/errors" || fail "not '$want': $*"
}
broken() { # TEXT REPLACEMENT
  sed "s/$1/$2/" "$machines/a100-sxm-80g.toml" > "$out/broken.toml"
}
on=(--ranks 8 --machine "$out/broken.toml" "${model[@]}")
broken 'gb_per_s = 230.0' ''
refused 'links.node.gb_per_s is missing, which this layout needs' "${on[@]}"
broken 'launch_us = .*' 'launch_us = -1'
refused 'device.launch_us = -1: must be at least 0' "${on[@]}"
broken 'launch_us' 'lanch_us'
refused 'did you mean device.launch_us' "${on[@]}"
broken 'bf16_tflops = .*' ''
refused 'products.bf16_tflops is missing' "${on[@]}"
broken x x
refused 'device.type = cpu: ' "${on[@]}" --device.type cpu
refused 'zero.offload' "${on[@]}" --zero.offload optimizer --parallel.zero 1
refused 'data_parallel.method = allreduce alone' "${on[@]}" --data_parallel.method average --parallel.zero 0
sed '/^\[links.network\]/,$d' "$machines/a100-sxm-80g.toml" > "$out/broken.toml"
plan "${on[@]}" || fail 'a link that no message takes'
refused 'links.network.gb_per_s is missing, which this layout needs' --ranks 16 "${on[@]:2}"
broken x x
rm -f "$out/step.svg"
refused '--svg-ranks = 8: must be' "${on[@]}" --svg "$out/step.svg" --svg-ranks 0,8
refused '--svg-ranks = x: must be' "${on[@]}" --svg "$out/step.svg" --svg-ranks x
refused '--svg-ranks belongs to --svg' "${on[@]}" --svg-ranks 0
refused '--svg-ranks belongs to --svg' --stages 2 --micro-batches 2 --svg "$out/step.svg" --svg-ranks 0
refused '--svg draws a schedule' "${on[@]}" --svg "$out/step.svg" --search
refused '--svg draws a schedule' --ranks 8 "${model[@]}" --svg "$out/step.svg"
[ ! -e "$out/step.svg" ] || fail "a picture of a step that was refused"
refused '--search needs --ranks and --machine' --search --stages 2 --micro-batches 2
refused 'exclude each other' "${on[@]}" --measured "$out/some.csv"
refused '--output belongs to --fit' "${on[@]}" --output "$out/new.toml"
refused 'no such file\|No such file' --ranks 8 --machine "$out/none.toml" "${model[@]}"
refused '--machine belongs to --ranks' --machine "$out/broken.toml" --stages 2 --micro-batches 2
refused '--measured needs --machine' --measured "$out/some.csv"
refused 'must be a key of a machine file' "${measured[@]}" --machine "$out/wrong.toml" --fit nothing
printf 'gpus,layers\n8,2\n' > "$out/short.csv"
refused 'has no step_ms or step_s' "${measured[@]:0:2}" --measured "$out/short.csv" --machine "$out/wrong.toml"
row() { # HEADER ROW WHAT
  printf '%s\n%s\n' "$1" "$2" > "$out/row.csv"
  refused "$3" "${measured[@]:0:2}" --measured "$out/row.csv" --machine "$out/wrong.toml"
}
row ranks,step_s 8.7,1 'row.csv:2: ranks = 8.7: must be a number from 1 to'
row ranks,step_s 8,inf 'row.csv:2: step = inf: must be a time above 0'
row ranks,step_s 8, 'row.csv:2: step = : must be'
row ranks,step_s 8,1,2 'has 3 cells, the header 2'
row ranks,model.preset,step_s 8,gpt2,1 'model.preset: is no column'
row ranks,tensor,step_s 8,3,1 'row.csv:2: parallel.tensor = 3'
