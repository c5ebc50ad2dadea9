#!/usr/bin/env bash
# trireme plan: charts and figures against those worked out by hand, files, one line per error.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

fail() {
  printf 'FAILED: %s\n' "$1"
  head -n 40 out | sed 's/^/    out: /'
  head -n 10 err | sed 's/^/    err: /'
  failures=$((failures + 1))
}
plan() {
  "$TRIREME" plan "$@" >out 2>err
  code=$?
  [ "$code" -eq 0 ] && [ ! -s err ] || fail "plan $*: exit code $code"
}
# refuses CODE LINE ARGUMENTS...: exactly this error line and nothing else
refuses() {
  local expected=$1 line=$2
  shift 2
  "$TRIREME" plan "$@" >out 2>err
  code=$?
  [ "$code" -eq "$expected" ] && [ ! -s out ] || fail "plan $*: exit code $code, not $expected"
  [ "$(cat err)" = "trireme: error: $line" ] || {
    printf '  wanted: trireme: error: %s\n' "$line"
    fail "plan $*: other error"
  }
}
has() { grep -qE -- "$1" out || fail "no '$1'"; }

plan --stages 2 --micro-batches 3
diff - out <<'END' || fail "the chart of 1F1B"
schedule        1f1b: 2 stages, 3 micro-batches
costs           1,1,1 for F,I,W of a virtual stage

stage 0 | F0 F1 .  .  B0--- F2 B1--- .  B2---
stage 1 | .  F0 B0--- F1 B1--- F2 B2--- .  .

one cell        1
total           12
ideal           9  (the stages' mean time at work)
bubble          33.33 %  (idle time over ideal)

stage         busy      idle activations in flight
0                9         3                     2
1                9         3                     1
END

# A third of 1F1B's 3/8; the files read back as the same schedule; the chart is XML if that can be checked.
plan --schedule zero-bubble --stages 4 --micro-batches 8 --csv z.csv --svg z.svg
has '^bubble +12.5 %'
has '^3 +24 +3 +4 +4$'
cp out whole
plan --schedule file:z.csv
diff <(tail -n +3 whole) <(tail -n +3 out) >/dev/null || fail "file:z.csv is another schedule"
plan --schedule file:z.csv --stages 4 --micro-batches 8
grep -q '<svg' <(head -c 4 z.svg) && grep -q '^</svg>$' <(tail -n 1 z.svg) || fail "z.svg is no chart"
if command -v python3 >/dev/null; then
  python3 -c 'import xml.dom.minidom; xml.dom.minidom.parse("z.svg")' || fail "z.svg is not XML"
fi

plan --schedule interleaved --virtual-stages 2 --stages 4 --micro-batches 8
has '^bubble +18.75 %'
has '^stage 3 \| .* 7F0 7B0'
printf '1,1,1\n2,2,2\n' >costs.csv
plan --stages 2 --micro-batches 2 --costs costs.csv --latency 0.5
has '^total +16$' # F 1, a message, F 2 and B 4 twice, a message, B 2
has '^ideal +9 '

# Offloaded AdamW in bf16: 2 + 4 bytes of state a parameter on the GPU, 16 and the result buffer on the host.
offloaded() {
  plan --ranks 2 --model.layers 2 --model.width 64 --model.heads 4 --model.sequence 32 --model.vocabulary 256 --train.batch 4 \
    --parallel.zero 1 --precision.compute bf16 "$@"
}
offloaded
has '^optimizer '
grep -qE 'offloaded|on the' out && fail "offloaded by default"
offloaded --zero.offload optimizer
has '^total '
offloaded --device.type cuda --zero.offload optimizer --memory 1MiB
grep -q '^optimizer ' out && fail "an optimizer on the GPU"
has '^fits: no; a rank.s GPU: [0-9.]+ of 1.0 MiB \(--memory\), [0-9.]+ too many$'
awk -F'|' '
  { name = $1; sub(/ +$/, "", name); sub(/^ +/, "", name); value[name] = $2 + 0 }
  END {
    h = value["on the host"] - value["offloaded"]
    d = value["on the GPU"] - value["parameters"] - value["gradients"] - value["stash"] - value["workspace"] \
      - value["communication"] - value["gathered"] - value["batch"]
    exit !(value["offloaded"] > 0 && d < 0.4 && d > -0.4 && h < 0.06 && h > -0.06)
  }' out || fail "host and GPU do not add up"
grep -q '^total' out && fail "a sum of what a GPU and the host hold"
# A GPU's checkpoint is copied to the host first, even if none is written in the background.
grep -q '^snapshot ' out && fail "a snapshot of what is in host memory"
offloaded --device.type cuda --zero.offload optimizer
grep -q '^snapshot ' out && fail "a snapshot of what is in host memory, of a GPU"
offloaded --device.type cuda
has '^snapshot +\| +[0-9.]*[1-9]'

# Whether it fits: a GPU's memory for one rank, a node's for its ranks; what was assumed; bytes as JSON.
has '^planned for: GPUs, bf16, recomputation none, 1 thread a rank$'
has '^fits: not known; name the memory of a GPU: --memory 80GiB$'
has '^host: at most, the 2 ranks of a node: [0-9.]+'
offloaded
has '^planned for: CPUs, bf16'
has '^note: device.type = auto, and this machine .* shows no GPU'
has '^fits: yes; the 2 ranks of a node: .*this machine.s memory'
offloaded --device.type cpu --parallel.pipeline 2 --memory 80GiB
has '^layers +\| +1 \| +1$'
grep -q '^note' out && fail "a note about a device that was named"
offloaded --device.type cuda --json --memory 3MB
python3 -c '
import json
plan = json.load(open("out"))
column = plan["columns"][0]
host = column["bytes"]["snapshot"]
assert column["host_bytes"] == host and column["device_bytes"] == sum(column["bytes"].values()) - host, column
assert plan["fit"]["host_of_node"]["needed_bytes"] >= 2 * host, plan["fit"]
assert plan["fit"]["fits"] == (column["device_bytes"] <= 3000000) and plan["fit"]["needed_bytes"] == column["device_bytes"]
assert (plan["device"], plan["precision"], plan["recompute"], column["layers"]) == ("cuda", "bf16", "none", 2), plan
' || fail "JSON"

# A large model's layout is none of those refused.
plan --ranks 16 --parallel.pipeline 16 --model.layers 96 --train.batch 1536 --train.micro_batch 1 --model.vocabulary 256
has '^fits: '

# Any numbers are answered or refused within two seconds, and these within 200 MB of this process.
if ! grep -q __asan_init "$TRIREME"; then
  bounded() {
    REFUSED=${REFUSED-1} python3 - "$TRIREME" plan --model.vocabulary 50257 "$@" <<'PYTHON' || fail "slow or large: plan $*"
import os
import resource
import subprocess
import sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8")
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = used.ru_utime + used.ru_stime
errors = [line for line in done.stderr.splitlines() if not line.startswith("plan  ")]  # progress on a busy machine
assert done.returncode in (0, int(os.environ["REFUSED"])) and len(errors) == done.returncode, done.stderr
assert seconds < 2 and used.ru_maxrss < 200_000, (seconds, used.ru_maxrss)
PYTHON
  }
  bounded --ranks 100000 --model.preset llama-70b --train.batch 100000 --parallel.zero 3 --checkpoint.async true
  bounded --ranks 100000 --model.preset llama-70b --train.batch 12500 --parallel.zero 3 --parallel.tensor 8 --ranks-per-node 8
  bounded --ranks 200000 --model.preset llama-70b --train.batch 100000 --data_parallel.method server --parallel.servers 100000
  bounded --ranks 1 --model.width 1000000 --model.heads 1000
  bounded --ranks 1 --model.width 16777216 --model.vocabulary 16777216
  bounded --ranks 1 --train.batch 1000000000
  bounded --ranks 1 --train.batch 1073741789 --train.micro_batch 1000000000
  many=(--ranks 1 --model.preset tiny --model.vocabulary 256 --model.sequence 8 --numerics.reproducible true --device.type cpu)
  for compute in fp32 bf16; do
    REFUSED=0 bounded "${many[@]}" --precision.compute "$compute" --train.batch 8388608 --train.micro_batch 8388608
    REFUSED=0 bounded "${many[@]}" --precision.compute "$compute" --train.batch 65536 --train.micro_batch 65536 \
      --numerics.virtual_data 65536 --numerics.virtual_tensor 1024
  done
  bounded --ranks 1 --model.layers 4096 --train.batch 31 --train.micro_batch 1 --parallel.zero 3
  bounded --ranks 1024 --parallel.pipeline 1024 --model.layers 1022 --train.batch 128 --train.micro_batch 1
  bounded --ranks 16 --model.layers 40 --parallel.tensor 16 --numerics.reproducible true --numerics.virtual_tensor 1024
fi

# Work space of libraries on GPUs, in MiB above that without attention: 4 sequences of 1024 tokens, 12 heads of 64. Sums
# of dout·out and two accumulators of 4 bytes, or 2 bytes per pair of tokens; documents use our own kernels.
workspace() {
  plan --ranks 1 --device.type cuda --model.preset gpt2 --precision.compute bf16 --train.micro_batch 4 --train.batch 8 "$@"
  sed -n 's/^workspace *| *//p' out
}
without=$(workspace --data.document_mask true)
any_order=$(workspace)
in_order=$(workspace --device.deterministic_attention true)
python3 -c "
import sys
without, any_order, in_order = map(float, sys.argv[1:])
sums = 4 * 12 * 1024 * 4 / 2**20
assert abs(any_order - without - (sums + 2 * 4 * 12 * 1024 * 64 * 4 / 2**20)) < 0.11, any_order
assert abs(in_order - without - (sums + 4 * 12 * 1024 * 1024 * 2 / 2**20)) < 0.11, in_order
" "$without" "$any_order" "$in_order" || fail "work space of attention on GPUs: $without, $any_order, $in_order"
refuses 1 '--zero.offload = disk: must be one of none, optimizer; choose one of these' --ranks 1 --zero.offload disk

refuses 2 'plan: --stages is missing; only --schedule file:PATH and --ranks do without' --micro-batches 2
refuses 2 'plan: --ranks-per-node belongs to --ranks' --ranks-per-node 2
refuses 2 'plan: --json belongs to --ranks' --json
refuses 1 '--memory = much: must be a number above 0 of bytes, KB, MB, GB, KiB, MiB or GiB; write for example 5GB' --ranks 1 --memory much \
  --model.vocabulary 256
refuses 1 '--ranks = 1048577: must be from 1 to 1048576; nearest: 1048576' --ranks 1048577
refuses 1 'model.width = 16777216: 6 layers give about 2.0e+16 parameters; must be at most 2.8e+14; use a smaller model' \
  --ranks 1 --model.width 16777216 --model.heads 16384 --model.vocabulary 256
refuses 1 'model.heads = 64: must divide model.width = 32; use at most 32' --ranks 1 --model.width 32 --model.heads 64
refuses 1 'model.layers = 4097: must be at most 4096; use a smaller model' --ranks 1 --model.layers 4097
refuses 1 'micro-batches = 131072: must be at most 32768 of a replica'"'"'s step with a model of 8 units; use larger and fewer micro-batches (train.micro_batch)' \
  --ranks 1 --train.batch 131072 --train.micro_batch 1 --model.vocabulary 256
refuses 1 'train.micro_batch = 1048576: must be at most 67108864 tokens, with model.sequence = 256; use at most 262144' \
  --ranks 1 --train.batch 1048576 --train.micro_batch 1048576 --model.vocabulary 256
refuses 2 'plan: --micro-batches is missing; only --schedule file:PATH and --ranks do without' --stages 2
refuses 2 'plan: --stage: is not a flag; did you mean --stages?' --stage 2
refuses 1 '--stages = 0: must be at least 1; use 1 or more' --stages 0 --micro-batches 1
refuses 1 'parallel.schedule = 1f1v: must be one of gpipe, 1f1b, interleaved, zero-bubble, file:PATH; did you mean 1f1b?' \
  --schedule 1f1v --stages 2 --micro-batches 2
refuses 1 'parallel.virtual_stages = 2: parallel.schedule = 1f1b has one virtual stage per stage; use 1, or parallel.schedule = interleaved' \
  --stages 2 --micro-batches 2 --virtual-stages 2
refuses 1 '--micro-batches = 4000000000: must be at most 2147483647; use fewer' --stages 2 --micro-batches 4000000000
refuses 1 '--latency = 1e+308: must be at least 0 and below 1e+100; use a value below 1e+100' --stages 2 --micro-batches 2 --latency 1e308
for flag in "--schedule gpipe" "--stages 4" "--micro-batches 8" "--virtual-stages 2" "--costs 1,2,3" "--latency 5" "--csv zz.csv"; do
  # shellcheck disable=SC2086
  refuses 2 "plan: ${flag%% *} draws a schedule, without --ranks and --measured; a run has parallel.schedule, parallel.pipeline, parallel.virtual_stages and train.micro_batch" \
    --ranks 4 --model.vocabulary 256 $flag
done
refuses 1 '--model.layers: plan without --ranks: a schedule has no model; leave it out' --stages 2 --micro-batches 2 --model.layers 3
refuses 1 '--costs: is not the three costs F,I,W, each a number >= 0; write for example 1,1,1 or 1,1.2,0.8' \
  --stages 2 --micro-batches 2 --costs 1,2
refuses 1 'costs.csv: has 2 lines of costs for 3 virtual stages; write one line for each, or one for all' \
  --stages 3 --micro-batches 2 --costs costs.csv
refuses 1 'none.csv: cannot be read: No such file or directory; name an existing CSV file' --schedule file:none.csv
printf '0F0,0B0\n1F0,1X0\n' >bad.csv
refuses 1 'bad.csv:2:5: "1X0" is not virtual stage, F, B, I or W, micro-batch; write for example 0F0, 2I0, 2W0 or 1B3' \
  --schedule file:bad.csv
printf '0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n' >stuck.csv
refuses 1 'schedule file:stuck.csv: its stages wait for each other: stage 0 waits at 0B0 for 1B0 of stage 1, stage 1 waits at 1F1 for 0F1 of stage 0; change the order' \
  --schedule file:stuck.csv
refuses 1 'z.csv:1:1: the file is for 8 micro-batches, not 9; use a file for 9 micro-batches, or 8 micro-batches' \
  --schedule file:z.csv --micro-batches 9
refuses 1 'none/z.svg: cannot create: No such file or directory; check the name or restore the file' --stages 2 --micro-batches 2 --svg none/z.svg

[ "$failures" -eq 0 ] && echo "trireme plan: all as expected"
exit "$((failures > 0))"
