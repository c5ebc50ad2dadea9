#!/usr/bin/env bash
# Models that transformers saved give the loss that it computed; what is exported of them is what they were, to the bit;
# training goes on from them; and folders that are not whole are refused.
set -euo pipefail
golden=$SOURCE/tests/reference/hugging_face
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
  echo "FAILED: $*"
  cat out err 2>/dev/null
  exit 1
}
"$TRIREME" prepare --input "$golden/text.txt" --output data >out 2>err || fail prepare
for model in gpt2 llama; do
  want=$(grep -A1 "\"$model\"" "$golden/losses.json" | grep -o '"loss": *[0-9.]*' | grep -o '[0-9.]*$')
  for ranks in 1 3; do
    rm -rf start
    "$TRIREME_MPIEXEC" -n $ranks "$TRIREME" import --input "$golden/$model" --output start >out 2>err || fail "import $model"
    [ "$(cat out)" = start/step-00000000 ] || fail "import $model: prints"
    "$TRIREME" evaluate --checkpoint start --data.path data >out 2>err || fail "evaluate $model"
    found=$(grep -o 'loss [0-9.]*' out | grep -o '[0-9.]*')
    echo "$model on $ranks ranks: loss $found, transformers $want"
    awk -v a="$found" -v b="$want" 'BEGIN { d = a - b; exit !(d < 2e-5 && d > -2e-5) }' || fail "$model: loss"
  done
  # Out again: every tensor as it was.
  "$TRIREME" export --checkpoint start --output again >out 2>err || fail "export $model"
  rm -rf start2
  "$TRIREME_MPIEXEC" -n 3 "$TRIREME" import --input again --output start2 >out 2>err || fail "import what was exported"
  for rank in 0 1 2; do
    cmp start/step-00000000/rank-0000$rank.h5 start2/step-00000000/rank-0000$rank.h5 || fail "$model: another tensor after a round trip"
  done
  "$TRIREME" evaluate --checkpoint start2 --data.path data >out 2>err || fail evaluate
  [ "$(grep -o 'loss [0-9.]*' out)" = "loss $found" ] || fail "$model: the loss after a round trip"
  # In half the bytes.
  "$TRIREME" export --checkpoint start --output halves --type BF16 >out 2>err || fail "export in BF16"
  rm -rf start3
  "$TRIREME" import --input halves --output start3 >out 2>err || fail "import BF16"
  "$TRIREME" evaluate --checkpoint start3 --data.path data >out 2>err || fail evaluate
  found=$(grep -o 'loss [0-9.]*' out | grep -o '[0-9.]*')
  awk -v a="$found" -v b="$want" 'BEGIN { d = a - b; exit !(d < 0.05 && d > -0.05 && d != 0) }' || fail "$model: BF16"
  # Something is there already.
  if "$TRIREME" export --checkpoint start --output halves >out 2>err; then fail "overwrote a folder"; fi
  grep -q '^trireme: error: halves: exists already' err || fail "message of an existing folder"
  rm -rf again halves
done

# Training goes on from an imported model, on any layout; its optimiser begins anew.
"$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --checkpoint.resume start --data.path data --train.output run --train.steps 3 --train.batch 4 \
  --train.peak none --parallel.tensor 2 --model.layers 2 --model.width 24 --model.heads 4 --model.kv_heads 2 --model.hidden 44 \
  --model.sequence 24 --model.vocabulary 256 --model.norm rmsnorm --model.epsilon 1e-6 --model.position rotary \
  --model.rope_theta 5000 --model.activation swiglu --model.bias false --model.tied false --model.scaled_residual false \
  >out 2>err || fail "training from an imported model"
grep -q '^resumed from start/step-00000000: step 0' out || fail "training from an imported model: not resumed"

# Folders that are not whole.
broken() {  # name, message; the folder "bad" was made by the caller
  local name=$1 message=$2
  rm -rf new
  if "$TRIREME_MPIEXEC" -n 2 "$TRIREME" import --input bad --output new >out 2>err; then fail "$name was taken"; fi
  [ "$(grep -c '^trireme: error: ' err)" -eq 1 ] || fail "$name: not one line"
  grep -q "$message" err || fail "$name: message"
  [ -z "$(ls -d new/step-* 2>/dev/null)" ] || fail "$name: something was left"
  rm -rf bad
}
copy() { cp -r "$golden/gpt2" bad && chmod -R u+w bad; }
copy && rm bad/config.json && broken "no config.json" 'bad/config.json: cannot open'
copy && rm bad/model.safetensors && broken "no tensors" 'bad/model.safetensors: cannot open'
copy && truncate -s -4 bad/model.safetensors && broken "a cut file" 'bad/model.safetensors: .*restore the file'
copy && sed -i 's/"n_embd": 24/"n_embd": 27/' bad/config.json && broken "another width" 'tensor transformer.wte.weight: is \[256, 24\], and config.json means \[256, 27\]'
copy && sed -i 's/"n_layer": 2/"n_layer": 3/' bad/config.json && broken "a layer too many" 'tensor transformer.h.2.ln_1.weight is missing'
copy && sed -i 's/"n_layer": 2/"n_layer": 1/' bad/config.json && broken "a layer too few" 'has no place in the model'
copy && sed -i 's/"n_layer": 2/"n_layer": 60000/' bad/config.json && broken "layers past all bounds" '60000 layers'
copy && sed -i 's/"n_layer": 2/"n_layer": -1/' bad/config.json && broken "no layers" 'n_layer = -1: must be a whole number'
copy && sed -i 's/gelu_new/relu/' bad/config.json && broken "another activation" 'activation_function = "relu": only "gelu_new"'
copy && sed -i 's/"model_type": "gpt2"/"model_type": "opt"/' bad/config.json && broken "another kind" 'must be gpt2 or llama'
copy && echo '{' >bad/config.json && broken "no JSON" 'bad/config.json: is not valid JSON'
copy && echo '{"weight_map": {"x": "../model.safetensors"}}' >bad/model.safetensors.index.json && broken "a way out" 'is not a plain file name'
copy && echo '{"weight_map": {"x": "model.safetensors"}}' >bad/model.safetensors.index.json && broken "a wrong index" "tensor 'x' is not in model.safetensors"
echo ok
