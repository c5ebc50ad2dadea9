#!/usr/bin/env bash
# One model through the program in many layouts: training that changes layout at every resume, evaluation and
# generation, against one rank; and refused layouts.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for i in $(seq 600); do echo "line $i: the quick brown fox jumps over the lazy dog $((i * i % 97))"; done > text
"$TRIREME" prepare --input text --output data > /dev/null 2>&1

fail() {
  echo "FAILED: $*"
  exit 1
}
on() {
  local ranks=$1
  shift
  "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" "$@"
}
# Two key/value heads, shared by four tensor ranks; nothing divides by 4.
model=(--model.layers 3 --model.width 48 --model.heads 6 --model.kv_heads 2 --model.hidden 70
  --model.norm rmsnorm --model.position rotary --model.activation swiglu --model.bias false
  --model.sequence 30 --model.dropout 0.1)
train=(--data.path data --train.batch 8 --train.steps 8 --train.peak none --train.quiet
  --train.evaluate_at_end false --train.check placement "${model[@]}")

losses() { cat "$1"/attempts/*/metrics.jsonl | grep -o '"gradient_norm":[^,]*\|"loss":[^,]*'; }

# Reproducible mode: one run on one rank, and one whose layout changes every two steps.
on 1 train "${train[@]}" --train.output one --numerics.reproducible true
layouts=("--parallel.tensor 2 --parallel.sequence true --parallel.zero 1"
  "--parallel.pipeline 2 --parallel.schedule zero-bubble --parallel.tensor 2"
  "--parallel.zero 3 --zero.group 2 --parallel.recompute full"
  "--parallel.pipeline 4 --train.micro_batch 1 --parallel.threads 2")
for layout in "${layouts[@]}"; do
  # shellcheck disable=SC2086
  on 4 train "${train[@]}" --train.output many --numerics.reproducible true --train.stop_after 2 \
    --train.micro_batch 2 $layout || fail "$layout"
done
diff <(losses one) <(losses many) > diff || { cat diff; fail "losses or norms differ in bits"; }
[ "$(losses one | wc -l)" -eq 16 ] || fail "sixteen figures expected"

# The checkpoint in every layout: the same loss bit for bit, the same text.
evaluate() { on "$1" evaluate --checkpoint many --numerics.reproducible true --train.micro_batch 2 "${@:2}" | tail -1; }
write() { on "$1" generate --checkpoint many --prompt "line 7" --tokens 40 --temperature 0 "${@:2}"; }
loss=$(evaluate 1)
text=$(write 1)
for layout in "2 --parallel.tensor 2 --parallel.sequence true" "2 --parallel.pipeline 2" "4" \
  "4 --parallel.tensor 4" "4 --parallel.tensor 2 --parallel.pipeline 2" "2 --parallel.zero 3" \
  "4 --parallel.pipeline 2 --parallel.virtual_stages 2"; do
  # shellcheck disable=SC2086
  found=$(evaluate $layout)
  [ "$found" = "$loss" ] || fail "evaluate $layout: $found, one rank: $loss"
  # shellcheck disable=SC2086
  found=$(write ${layout/--parallel.sequence true/})
  [ "$found" = "$text" ] || fail "generate $layout: $found, one rank: $text"
done

# A schedule from a file, in fast mode.
"$TRIREME" plan --schedule zero-bubble --stages 2 --micro-batches 4 --csv zb.csv > /dev/null
on 1 train "${train[@]}" --train.output fast1 --train.micro_batch 2
on 2 train "${train[@]}" --train.output fast2 --train.micro_batch 2 --parallel.pipeline 2 \
  --parallel.schedule file:zb.csv
paste <(losses fast1) <(losses fast2) | awk -F'[:\t]' '
  { d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > 1e-5) { print; bad = 1 } }
  END { exit bad || NR != 16 }' || fail "fast mode: figures of a schedule file differ"

fast_loss() { on "$1" evaluate --checkpoint fast1 --json "${@:2}" | sed -n 's/.*"loss": *\([0-9.e+-]*\).*/\1/p'; }
echo "$(fast_loss 1) $(fast_loss 4 --parallel.tensor 4)" | awk '
  { d = ($1 - $2) / $1; if (d < 0) d = -d } END { exit !(NF == 2 && d < 1e-5) }' || fail "fast mode: evaluation with tensor 4"

# Gradients in bf16: half of the bytes, the memory that was planned, losses near those in fp32.
for zero in 0 2; do
  on 2 train "${train[@]}" --train.output "bf16-$zero" --train.micro_batch 4 --parallel.zero $zero --data_parallel.gradients bf16
  paste <(losses fast1) <(losses "bf16-$zero") | awk -F'[:\t]' '
    { d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > 0) ++n; if (d > 2e-2) { print; bad = 1 } }
    END { exit bad || n < 8 || NR != 16 }' || fail "zero $zero: figures with gradients in bf16"
done
"$TRIREME" report bf16-0 bf16-2 --json r.json > out || { cat out; fail "report of gradients in bf16"; }
python3 - <<'END' || fail "bytes of gradients in bf16"
import json
runs = {run["run"]: run["communication"] for run in json.load(open("r.json"))["runs"] if run["valid"]}
for run, axis in (("bf16-0", "data"), ("bf16-2", "shard")):
    sent, least = (runs[run][axis][key] for key in ("mean_bytes_per_step", "mean_least_bytes_per_step"))
    assert abs(sent / least - 1) < 0.07, (run, sent, least)
END

refused() {
  local ranks=$1 key=$2
  shift 2
  if on "$ranks" train "${train[@]}" --train.output no "$@" > out 2> err; then fail "not refused: $*"; fi
  [ "$(grep -c '^trireme: error:' err)" -eq 1 ] || { cat err; fail "one line expected: $*"; }
  grep -q "^trireme: error: .*$key" err || { cat err; fail "$key expected: $*"; }
  [ ! -e no ] || fail "partial output was left: $*"
}
refused 4 parallel.tensor --parallel.tensor 3
refused 2 parallel.data --parallel.data 4
refused 2 model.kv_heads --parallel.tensor 2 --model.kv_heads 8
refused 2 parallel.pipeline --parallel.pipeline 4
refused 2 parallel.virtual_stages --parallel.pipeline 2 --parallel.virtual_stages 3
refused 2 parallel.schedule --parallel.schedule sideways
refused 2 zero.group --parallel.zero 1 --zero.group 3
refused 2 numerics.virtual_tensor --parallel.tensor 2 --numerics.reproducible true --numerics.virtual_tensor 3
refused 1 train.batch --numerics.reproducible true --train.batch 12
refused 2 data_parallel.gradients --numerics.reproducible true --data_parallel.gradients bf16
