#!/usr/bin/env bash
# transformers loads what we export, and we import what it saves, with the same logits. Needs Python with torch and
# transformers ($PYTHON, default python3); otherwise skips.
set -euo pipefail
python=${PYTHON:-python3}
if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
  echo "skipped: $python has no torch and transformers (set PYTHON to one that has)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >/dev/null 2>&1
cat >compare.py <<'P'
import subprocess, sys
import numpy, torch, transformers
program, checkpoint, folder = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
ids = [(i * 37 + 11) % model.config.vocab_size for i in range(model.config.max_position_embeddings)]
with open("ids", "w") as f:
    print(*ids, file=f)
subprocess.run([program, checkpoint, "ids", "logits"], check=True)
ours = numpy.fromfile("logits", dtype=numpy.float32).reshape(len(ids), -1)
with torch.no_grad():
    theirs = model.double()(torch.tensor([ids])).logits[0].numpy()
worst = abs(ours - theirs).max()
print(f"{folder}: largest difference of {ours.size} logits {worst:.2g}, largest logit {abs(theirs).max():.3g}")
sys.exit(not worst < 1e-4)
P
gpt2="--model.layers 2 --model.width 48 --model.heads 4 --model.sequence 32"
llama="--model.layers 2 --model.width 48 --model.heads 4 --model.kv_heads 2 --model.sequence 32 --model.norm rmsnorm
  --model.position rotary --model.activation swiglu --model.bias false --model.scaled_residual false --model.rope_theta 5000"
for kind in gpt2 llama "llama --model.tied false"; do
  rm -rf run
  flags=$gpt2
  [ "${kind%% *}" = llama ] && flags="$llama ${kind#llama}"
  "$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --data.path data --train.output run $flags --train.steps 30 --train.batch 8 \
    --optim.learning_rate 3e-3 --train.peak none --train.quiet >/dev/null
  rm -rf "${kind%% *}"
  "$TRIREME" export --checkpoint run --output "${kind%% *}"
  "$python" compare.py "$PROGRAMS/logits_program" run "${kind%% *}"
done
for model in gpt2 llama; do
  rm -rf start
  "$TRIREME" import --input "$SOURCE/tests/reference/hugging_face/$model" --output start
  "$python" compare.py "$PROGRAMS/logits_program" start "$SOURCE/tests/reference/hugging_face/$model"
done
