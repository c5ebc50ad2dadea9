#!/usr/bin/env bash
# Models saved by transformers give the loss that transformers computed; exported models match the imported ones bit for
# bit; training continues from them; incomplete folders are refused.
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
seq 0 23 | tr '\n' ' ' >ids
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
  # Exported again: every tensor unchanged.
  "$TRIREME" export --checkpoint start --output again >out 2>err || fail "export $model"
  rm -rf start2
  "$TRIREME_MPIEXEC" -n 3 "$TRIREME" import --input again --output start2 >out 2>err || fail "import what was exported"
  for rank in 0 1 2; do
    cmp start/step-00000000/rank-0000$rank.h5 start2/step-00000000/rank-0000$rank.h5 || fail "$model: a tensor differs after a round trip"
  done
  "$TRIREME" evaluate --checkpoint start2 --data.path data >out 2>err || fail evaluate
  [ "$(grep -o 'loss [0-9.]*' out)" = "loss $found" ] || fail "$model: the loss after a round trip"
  # In BF16: half the bytes.
  "$TRIREME" export --checkpoint start --output halves --type BF16 >out 2>err || fail "export in BF16"
  rm -rf start3
  "$TRIREME" import --input halves --output start3 >out 2>err || fail "import BF16"
  "$TRIREME" evaluate --checkpoint start3 --data.path data >out 2>err || fail evaluate
  found=$(grep -o 'loss [0-9.]*' out | grep -o '[0-9.]*')
  awk -v a="$found" -v b="$want" 'BEGIN { d = a - b; exit !(d < 0.05 && d > -0.05 && d != 0) }' || fail "$model: BF16"
  # In several files with an index, in each type: nothing is lost after one rounding, and the logits have the same bits.
  for type in F32 F16 BF16; do
    rm -rf parts parts2 start4 start5
    "$TRIREME" export --checkpoint start --output parts --type $type --max-file-size 8KB >out 2>err || fail "export in parts"
    files=$(ls parts/model-*-of-*.safetensors | wc -l)
    [ "$files" -ge 4 ] && [ ! -e parts/model.safetensors ] || fail "$model, $type: $files files"
    for file in parts/model-*; do
      name=$(basename "$file")
      # A file above the limit holds one tensor.
      [ "$(stat -c %s "$file")" -le 12000 ] || [ "$(grep -c "\"$name\"" parts/model.safetensors.index.json)" -eq 1 ] || fail "$name is too large"
    done
    "$TRIREME_MPIEXEC" -n 3 "$TRIREME" import --input parts --output start4 >out 2>err || fail "import of parts"
    if [ $type = F32 ]; then
      for rank in 0 1 2; do
        cmp start/step-00000000/rank-0000$rank.h5 start4/step-00000000/rank-0000$rank.h5 || fail "$model: a tensor differs after parts"
      done
      "$PROGRAMS/logits_program" start ids logits
    else
      rm -rf whole start6
      "$TRIREME" export --checkpoint start --output whole --type $type >out 2>err || fail "export in $type"
      "$TRIREME" import --input whole --output start6 >out 2>err || fail "import of $type"
      "$PROGRAMS/logits_program" start6 ids logits
    fi
    "$PROGRAMS/logits_program" start4 ids logits4
    cmp logits logits4 || fail "$model, $type: other logits"
    "$TRIREME" export --checkpoint start4 --output parts2 --type $type --max-file-size 8KB >out 2>err || fail "export again"
    for file in parts/model-*; do cmp "$file" "parts2/$(basename "$file")" || fail "$model, $type: a file differs after a round trip"; done
    cmp parts/model.safetensors.index.json parts2/model.safetensors.index.json || fail "$model, $type: another index"
    "$TRIREME" evaluate --checkpoint start4 --data.path data >out 2>err || fail evaluate
    found=$(grep -o 'loss [0-9.]*' out | grep -o '[0-9.]*')
    awk -v a="$found" -v b="$want" 'BEGIN { d = a - b; exit !(d < 0.05 && d > -0.05) }' || fail "$model, $type in parts: loss $found"
    echo "$model, $type in $files files: loss $found"
  done
  # The output exists already.
  if "$TRIREME" export --checkpoint start --output halves >out 2>err; then fail "overwrote a folder"; fi
  grep -q '^trireme: error: halves: exists already' err || fail "message of an existing folder"
  rm -rf again halves
done

# Training continues from an imported model in any layout; its optimizer state starts fresh.
train() {  # run folder, further flags
  "$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --data.path data --train.output "$1" --train.steps 3 --train.batch 4 \
    --train.peak none --parallel.tensor 2 --model.layers 2 --model.width 24 --model.heads 4 --model.kv_heads 2 --model.hidden 44 \
    --model.sequence 24 --model.vocabulary 256 --model.norm rmsnorm --model.epsilon 1e-6 --model.position rotary \
    --model.rope_theta 5000 --model.activation swiglu --model.bias false --model.tied false --model.scaled_residual false \
    "${@:2}" >out 2>err
}
train run --checkpoint.resume start || fail "training from an imported model"
grep -q '^resumed from start/step-00000000: step 0' out || fail "training from an imported model: not resumed"
# Also where a damaged checkpoint was partly read before it.
cp -r start own
train own || fail "training in its folder"
mkdir kept && cp own/step-00000003/*.h5 kept
for file in own/step-00000003/*.h5; do
  at=$(($(stat -c %s "$file") * 95 / 100))
  byte=$(od -An -tu1 -j"$at" -N1 "$file")
  printf "$(printf '\\%03o' $((byte ^ 255)))" | dd of="$file" bs=1 seek="$at" conv=notrunc status=none
done
train own || fail "past a damaged checkpoint"
grep -q '^trireme: warning: passed over: own/step-00000003.* tensor adamw.moment2/.*checksum' err && grep -q '^resumed from own/step-00000000: step 0' out || fail "not passed over"
for file in kept/*.h5; do
  cmp "$file" "own/step-00000003/$(basename "$file")" || fail "the optimizer state did not start fresh"
done
if train run --optim.name sgd; then fail "another optimizer: taken"; fi
grep -q '^trireme: error: optim.name = sgd: the checkpoint run/step-00000003 has no sgd.momentum' err || fail "another optimizer: message"

# Incomplete folders.
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
copy && sed -i 's/"n_layer": 2/"n_layer": 60000/' bad/config.json && broken "layers past all bounds" 'model.layers = 60000: must be at most 4096'
copy && sed -i 's/"n_layer": 2/"n_layer": -1/' bad/config.json && broken "no layers" 'n_layer = -1: must be a whole number'
copy && sed -i 's/gelu_new/relu/' bad/config.json && broken "another activation" 'activation_function = "relu": only "gelu_new"'
copy && sed -i 's/"model_type": "gpt2"/"model_type": "opt"/' bad/config.json && broken "another kind" 'must be gpt2 or llama'
copy && echo '{' >bad/config.json && broken "no JSON" 'bad/config.json: is not valid JSON'
copy && echo '{"weight_map": {"x": "../model.safetensors"}}' >bad/model.safetensors.index.json && broken "a way out" 'is not a plain file name'
copy && echo '{"weight_map": {"x": "model.safetensors"}}' >bad/model.safetensors.index.json && broken "a wrong index" "tensor 'x' is not in model.safetensors"
# An index and its files must match, whichever has more.
parts() { "$TRIREME" export --checkpoint gpt2 --output bad --max-file-size 8KB >/dev/null; }
"$TRIREME" import --input "$golden/gpt2" --output gpt2 >/dev/null
index=bad/model.safetensors.index.json
parts && sed -i '/"transformer.h.0.ln_1.bias"/d' $index && broken "a tensor that the index lacks" "index.json: tensor 'transformer.h.0.ln_1.bias' of model-0.* is not in the weight_map"
parts && sed -i 's/"transformer.h.0.ln_1.bias": \(.*\)/&\n    "transformer.h.9.ln_1.bias": \1/' $index && broken "a tensor that no file has" "index.json: tensor 'transformer.h.9.ln_1.bias' is not in model-0"
parts && other=$(sed -nE 's/.*"transformer.wte.weight": "(.*)".*/\1/p' $index) && sed -i "s/\(\"transformer.h.0.ln_1.bias\": \"\)[^\"]*/\1$other/" $index
broken "a tensor in another file" "index.json: tensor 'transformer.h.0.ln_1.bias' is not in $other"
parts && rm bad/model-00002-of-*.safetensors && broken "a file that is gone" 'bad/model-00002-of-.*: cannot open'
parts && cp bad/model-00002-of-*.safetensors bad/more.safetensors && sed -i 's/"weight_map": {/&\n    "x": "more.safetensors",/' $index && broken "a tensor in two files" 'is in another file too'
parts && echo '{"weight_map": 3}' >$index && broken "an index without a map" 'has no weight_map'
parts && echo '{"weight_map": {"x": 3}}' >$index && broken "a number for a file" 'a file name is not a string'
for size in 0 -1 5XB GB 5GBx 99999999999GB 1.5GB; do
  if "$TRIREME" export --checkpoint gpt2 --output no "--max-file-size=$size" >out 2>err; then fail "size $size was taken"; fi
  grep -q '^trireme: error: --max-file-size = .*must be a number above 0 of bytes, KB, MB, GB' err || fail "message of size $size"
done

# Llama-3's frequencies and a tied head are imported and exported; other scalings are refused.
cp -r "$golden/llama" bad && chmod -R u+w bad
sed -i 's/"rope_scaling": null/"rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}/' bad/config.json
"$TRIREME" import --input bad --output scaled >out 2>err || fail "import of llama3 frequencies"
"$TRIREME" export --checkpoint scaled --output scaled-out >out 2>err || fail "export of llama3 frequencies"
for words in '"rope_type": "llama3"' '"factor": 4.0' '"original_max_position_embeddings": 16' '"rope_theta": 5000.0'; do
  grep -q "$words" scaled-out/config.json || fail "llama3 frequencies: $words is lost"
done
"$PROGRAMS/logits_program" scaled ids scaled-logits && "$PROGRAMS/logits_program" start4 ids logits
if cmp -s scaled-logits logits; then fail "llama3 frequencies change nothing"; fi
sed -i 's/llama3/yarn/' bad/config.json && broken "another scaling" 'config.json: rope_scaling: rope_type = "yarn": only "llama3" is computed here'
cp -r "$golden/llama" bad && chmod -R u+w bad && sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' bad/config.json
broken "a head that is not the embedding" 'lm_head.weight differs from the embedding that config.json ties it to'

# Weights that are NaN or infinite.
copy && header=$(od -An -tu8 -N8 bad/model.safetensors) && printf '\000\000\200\177' | dd of=bad/model.safetensors bs=1 seek=$((header + 8 + 400)) conv=notrunc status=none
broken "an infinite weight" 'tensor [a-z0-9_.]*: element [0-9]* is NaN or infinite'
echo ok
