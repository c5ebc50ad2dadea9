#!/usr/bin/env bash
# A model's own vocabulary: import reads tokenizer.json, prepare and training use it, generate needs no dataset, export
# writes it back.
set -euo pipefail
golden=$SOURCE/tests/reference
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
  echo "FAILED: $*"
  cat out err 2>/dev/null
  exit 1
}
run() { "$TRIREME" "$@" >out 2>err || fail "$*"; }

# transformers' model over bytes, with a tokenizer.json whose ids are the bytes: its loss must match transformers'.
cp -r "$golden/hugging_face/gpt2" foreign && chmod -R u+w foreign
cp "$golden/tokenizers/bytes.json" foreign/tokenizer.json
"$TRIREME_MPIEXEC" -n 2 "$TRIREME" import --input foreign --output start >out 2>err || fail import
[ ! -s err ] || fail "import: a warning"
cmp start/step-00000000/tokenizer.json foreign/tokenizer.json || fail "import: another tokenizer"
run prepare --input "$golden/hugging_face/text.txt" --output data --tokenizer huggingface:start/step-00000000
run evaluate --checkpoint start --data.path data
found=$(grep -o 'loss [0-9.]*' out | grep -o '[0-9.]*')
want=$(grep -A1 '"gpt2"' "$golden/hugging_face/losses.json" | grep -o '"loss": *[0-9.]*' | grep -o '[0-9.]*$')
echo "loss $found, transformers $want"
awk -v a="$found" -v b="$want" 'BEGIN { d = a - b; exit !(d < 2e-5 && d > -2e-5) }' || fail "loss with its own tokenizer"
model="--model.layers 2 --model.width 24 --model.heads 3 --model.sequence 24 --model.vocabulary 256 --train.peak none
  --train.batch 4 --train.steps 3"
"$TRIREME_MPIEXEC" -n 2 "$TRIREME" train $model --checkpoint.resume start --data.path data --train.output run >out 2>err || fail train
grep -q '^resumed from start/step-00000000: step 0' out || fail "train: not resumed"
if grep -q warning out err; then fail "train: a warning"; fi
cmp run/step-00000003/tokenizer.json foreign/tokenizer.json || fail "train: the checkpoint's tokenizer differs"
run inspect run --verify
grep -q '^tokenizer  *huggingface, vocabulary 256' out || fail "inspect: no tokenizer"
rm -rf data
run generate --checkpoint run --prompt "And é" --tokens 20
LC_ALL=C grep -aq '^And é.' out || fail "generate without the dataset"
run generate --checkpoint start --prompt "And" --tokens 5
# A dataset with more token ids than the model has.
printf 'one\ntwo\n%.0s' {1..40} >lines
run prepare --input lines --documents line --output larger
if "$TRIREME" generate --checkpoint start --data.path larger --prompt "" --tokens 2 >out 2>err; then fail "a larger vocabulary"; fi
grep -q "^trireme: error: data.path = larger: its 257 token ids do not fit the model's vocabulary of 256" err || fail "a larger vocabulary: message"

# A different tokenizer is probably a mistake; tokens without one keep the checkpoint's.
run prepare --input "$golden/hugging_face/text.txt" --output bytes
run train $model --checkpoint.resume start --data.path bytes --train.output run2
grep -q '^note: the dataset bytes has another tokenizer (bytes) than the checkpoint start/step-00000000 (huggingface)' out ||
  fail "the other tokenizer is not reported"
# The text's bytes as uint16, written by another program.
od -An -v -tu1 -w1 "$golden/hugging_face/text.txt" | awk '{ printf "\\x%02x\\x00", $1 }' | xargs -0 printf >train.bin
run prepare --input train.bin --input-format nanogpt --vocabulary 256 --output tokens
run inspect tokens
grep -q '^tokenizer  *none' out || fail "tokens with a tokenizer"
run evaluate --checkpoint start --data.path tokens
[ "$(grep -o 'loss [0-9.]*' out)" = "loss $found" ] || fail "the loss over tokens: not that over text"
if "$TRIREME" generate --checkpoint start --data.path tokens >out 2>err; then fail "generate without a tokenizer"; fi
grep -q '^trireme: error: .*tokens: has tokens and no tokenizer' err || fail "message of no tokenizer"
run train $model --checkpoint.resume start --data.path tokens --train.output run3
run generate --checkpoint run3 --prompt "And" --tokens 5

# One of our models with a BPE of 2,004 tokens: exported and imported again.
gpt2=$golden/tokenizers/gpt2.json
cp "$golden/hugging_face/text.txt" again.txt
run prepare --input "$golden/hugging_face/text.txt" again.txt --output data --tokenizer "huggingface:$gpt2"
model=${model/256/2004}
run train $model --data.path data --train.output own
run export --checkpoint own --output exported
grep -q 'tokenizer.json' out || fail "export: does not name tokenizer.json"
[ "$(ls exported | tr '\n' ' ')" = "config.json model.safetensors tokenizer.json " ] || fail "export: $(ls exported)"
cmp exported/tokenizer.json "$gpt2" || fail "export: another tokenizer"
grep -q '"eos_token_id": 0' exported/config.json || fail "export: no eos_token_id"
run import --input exported --output again
run prepare --input "$golden/hugging_face/text.txt" --output data2 --tokenizer huggingface:exported
run train $model --checkpoint.resume again --data.path data2 --train.output more
# A folder without tokenizer.json, whose other tokenizer files and token ids do not fit the run's tokenizer.
cp -r exported other && rm other/tokenizer.json
sed -i 's/"eos_token_id": 0/"eos_token_id": 5/' other/config.json
echo x | tee other/tokenizer.model >other/tokenizer_config.json
run train --from other --data.path data --train.steps 1 --train.batch 4 --train.peak none --train.output fitted
run export --checkpoint fitted --output fitted-out
[ "$(ls fitted-out | tr '\n' ' ')" = "config.json model.safetensors tokenizer.json " ] || fail "export: $(ls fitted-out)"
cmp fitted-out/tokenizer.json "$gpt2" && grep -q '"eos_token_id": 0' fitted-out/config.json || fail "another tokenizer's files"
rm -rf data data2
for checkpoint in own again more; do
  run generate --checkpoint $checkpoint --prompt "In the beginning" --tokens 8
  LC_ALL=C grep -aq '^In the beginning.' out || fail "generate from $checkpoint"
done
# A damaged file is named.
sed -i 's/ /_/' again/step-00000000/tokenizer.json
echo " " >>again/step-00000000/tokenizer.json
if "$TRIREME" generate --checkpoint again >out 2>err; then fail "a damaged tokenizer was accepted"; fi
grep -q '^trireme: error: .*again/step-00000000/tokenizer.json: its hash is' err || fail "message of a damaged tokenizer"

# What cannot be imported is reported in one line, and the model is imported without it.
unfit() {  # name, message
  rm -rf new
  run import --input foreign --output new
  [ "$(wc -l <err)" -eq 1 ] || fail "$1: not one line"
  grep -q "^trireme: warning: without a tokenizer: foreign/tokenizer.json: $2" err || fail "$1: message"
  run inspect new
  ! grep -q '^tokenizer' out || fail "$1: is used"
  rm -rf back && run export --checkpoint new --output back
  cmp foreign/tokenizer.json back/tokenizer.json || fail "$1: is lost in an export"
}
sed 's/"normalizer":null/"normalizer":{"type":"NFC"}/' "$golden/tokenizers/bytes.json" >foreign/tokenizer.json
unfit "a normalizer" 'normalizer "NFC" is not supported here'
cp "$gpt2" foreign/tokenizer.json
unfit "too large a vocabulary" 'has 2004 ids, the model 256'
echo '{' >foreign/tokenizer.json
unfit "no JSON" 'is not valid JSON'
echo ok
