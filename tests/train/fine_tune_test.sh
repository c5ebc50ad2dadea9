#!/usr/bin/env bash
# Runs that begin with a model, of transformers or of another run; its sequence length, its token ids and tokenizer
# files; evaluate as JSON.
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

# Token ids, generation_config.json and the tokenizer's files return in an export, through training too.
cp -r "$golden/llama" chat && chmod -R u+w chat
sed -i 's/"bos_token_id": [0-9]*/"bos_token_id": 3/; s/"eos_token_id": [0-9]*/"eos_token_id": [4, 5], "pad_token_id": -1/' chat/config.json
ln -s nowhere chat/vocab.json  # left out, with a warning
echo '{"eos_token_id": [4, 5], "temperature": 0.6}' >chat/generation_config.json
echo '{"chat_template": "x"}' >chat/tokenizer_config.json
head -c 3000 /dev/urandom >chat/tokenizer.model
"$TRIREME" import --input chat --output chat-start >out 2>err || fail "import with auxiliary files"
grep -q '^trireme: warning: an auxiliary file is left out: .*chat/vocab.json' err || fail "no warning of a file that cannot be read"
tune() {  # run folder, further flags
  "$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --data.path data --train.output "$1" --train.steps 2 --train.batch 4 --train.peak none \
    "${@:2}" >out 2>err
}
tune chat-run --from chat || fail "--from with auxiliary files"
for start in chat-start chat-run; do
  "$TRIREME" export --checkpoint $start --output chat-out >out 2>err || fail "export with auxiliary files"
  for file in generation_config.json tokenizer_config.json tokenizer.model; do
    cmp chat/$file chat-out/$file || fail "$start: $file is lost"
    grep -q $file out || fail "export does not name $file"
  done
  tr -d ' \n' <chat-out/config.json | grep -q '"eos_token_id":\[4,5\]' && grep -q '"bos_token_id": 3' chat-out/config.json || fail "$start: token ids"
  if grep -q pad_token_id chat-out/config.json || [ -e chat-out/vocab.json ]; then fail "$start: what the import left out"; fi
  rm -rf chat-out
done
echo x >>chat-start/step-00000000/generation_config.json
if "$TRIREME" export --checkpoint chat-start --output chat-out >out 2>err; then fail "a damaged file was exported"; fi
grep -q '^trireme: error: .*generation_config.json: does not match its checksum' err && [ ! -e chat-out ] || fail "a damaged file"

# A run that begins with a model: no model field is typed, its optimizer and steps are new ones, and it resumes itself.
tune tuned --from "$golden/llama" --parallel.tensor 2 || fail "--from a transformers folder"
grep -q '^resumed from tuned/step-00000000: step 0' out || fail "--from a folder: not begun"
tune tuned --from "$golden/llama" --train.steps 3 || fail "--from again"
grep -q '^resumed from tuned/step-00000002: step 2' out || fail "--from again: not resumed"
tune zeros --from tuned --model.vocabulary 0 --model.hidden 0 --model.kv_heads 0 || fail "zeros, which leave a key to the model"
tune tuned2 --from tuned --optim.name sgd || fail "--from a run"
grep -q '^resumed from tuned2/step-00000000: step 0' out || fail "--from a run: not step 0"
"$TRIREME" evaluate --checkpoint tuned/step-00000003 --data.path data --json >before.json && rm -rf tuned2/step-00000002
"$TRIREME" evaluate --checkpoint tuned2 --data.path data --json >after.json
[ "$(grep loss_hex before.json)" = "$(grep loss_hex after.json)" ] || fail "--from a run: other weights"
refused_from() {  # name, message, further flags
  local name=$1 message=$2
  shift 2
  if tune "$@"; then fail "$name was taken"; fi
  [ "$(grep -c '^trireme: error: ' err)" -eq 1 ] && grep -q "^trireme: error: .*$message" err || fail "$name: message"
}
# A user's own model is typed, for a run that resumes an import.
typed=(--model.layers 2 --model.width 24 --model.heads 4 --model.kv_heads 2 --model.hidden 44 --model.vocabulary 256
  --model.norm rmsnorm --model.epsilon 1e-6 --model.position rotary --model.rope_theta 5000 --model.activation swiglu
  --model.bias false --model.tied false --model.scaled_residual false)
refused_from "conflicts" 'model.layers = 5 (--model.layers) and not 2, model.width = 48 (--model.width) and not 24' conflicting --from tuned \
  --model.layers 5 --model.width 48 --model.dropout 0.1
refused_from "another run's folder" 'tuned/step-00000003 is there already, of a run that did not begin so' tuned --from tuned2
refused_from "--from and --resume" 'must be auto with train.from' both --from tuned --resume tuned2
refused_from "a wrong batch" 'train.batch = 5' none --from tuned --train.batch 5
refused_from "no model" 'train.from\|checkpoint nowhere' none --from nowhere
[ ! -e conflicting ] && [ ! -e both ] && [ ! -e none ] || fail "a refused start left a folder"
if "$TRIREME" import --input "$golden/gpt2" --output tuned >out 2>err; then fail "import into a run folder"; fi
grep -q '^trireme: error: tuned: exists already; name a new folder' err || fail "import into a run folder: message"

# The sequence length is the run's choice: any for rotary positions, shorter ones for learned.
loss_at() { "$TRIREME" evaluate --checkpoint "$1" --data.path data --model.sequence "$2" --json 2>err | sed -n 's/.*"loss": \(.*\),/\1/p'; }
"$TRIREME" import --input "$golden/llama" --output rotary >/dev/null
"$TRIREME" import --input "$golden/gpt2" --output learned >/dev/null
for model in rotary learned; do
  whole=$(loss_at $model 24) short=$(loss_at $model 8)
  awk -v a="$whole" -v b="$short" 'BEGIN { exit !(a > 1 && b > 1 && a != b) }' || fail "$model: losses $whole and $short"
  tune $model-short --from $model --model.sequence 8 || fail "$model: fine-tuning on 8 tokens"
  "$TRIREME" export --checkpoint $model-short --output $model-out >/dev/null || fail "$model: export"
done
[ ! -s err ] || fail "a warning for a shorter sequence"
grep -q '"max_position_embeddings": 24' rotary-out/config.json && grep -q '"n_positions": 24' learned-out/config.json || fail "trained length"
"$TRIREME" generate --checkpoint rotary-short --data.path data --prompt "a" --tokens 12 >/dev/null || fail "generate"
[ -n "$(loss_at rotary 40)" ] && grep -q '^trireme: warning: model.sequence = 40: the model was trained on at most 24 tokens' err || fail "no warning"
tune long --from rotary --model.sequence 40 || fail "rotary: fine-tuning on 40 tokens"
grep -q '^trireme: warning: model.sequence = 40' err || fail "rotary: no warning at training"
"$TRIREME" export --checkpoint long --output long-out >/dev/null
grep -q '"max_position_embeddings": 40' long-out/config.json || fail "trained length after a longer one"
[ -z "$(loss_at learned 25)" ] && grep -q 'model.sequence = 25: the model has learned positions for 24 tokens; use at most 24' err || fail "learned: longer"
refused_from "learned, longer" 'model.sequence = 25 (--model.sequence) and learned positions for 24' none --from learned --model.sequence 25
# Also where the model is typed, as before.
tune typed --checkpoint.resume rotary "${typed[@]}" --model.sequence 16 || fail "a typed model with another sequence"
"$TRIREME" export --checkpoint typed --output typed-out >/dev/null
grep -q '"max_position_embeddings": 24' typed-out/config.json || fail "typed: trained length"
if tune other --checkpoint.resume rotary "${typed[@]}" --model.layers 3 --model.hidden 48; then fail "another model"; fi
grep -q 'has model.hidden = 44 and not 48, model.layers = 2 and not 3; use that' err || fail "not all differences at once"

# JSON of evaluate: the exact value, and perplexity per byte.
"$TRIREME_MPIEXEC" -n 2 "$TRIREME" evaluate --checkpoint rotary --data.path data --json >out 2>err || fail "evaluate --json"
awk '/"loss":/ { loss = $2 + 0 } /"tokens"/ { tokens = $2 + 0 } /"bytes"/ { bytes = $2 + 0 } /"perplexity_per_byte"/ { by_byte = $2 + 0 }
  END { d = exp(loss * tokens / bytes) - by_byte; exit !(tokens == bytes && d * d < 1e-12) }' out || fail "per-byte perplexity"
[ "$(printf '%.17g' "$(sed -n 's/.*"loss_hex": "\(.*\)",/\1/p' out)")" = "$(printf '%.17g' "$(sed -n 's/.*"loss": \(.*\),/\1/p' out)")" ] || fail "hex float"

# Damaged text is one line from one rank, without a banner of MPI_ABORT after it.
cp -r data torn && size=$(stat -c %s torn/valid-00000.h5)
for at in $((size / 4)) $((size / 2)) $((size * 3 / 4)); do printf 'xxxx' | dd of=torn/valid-00000.h5 bs=1 seek=$at conv=notrunc status=none; done
if "$TRIREME_MPIEXEC" -n 2 "$TRIREME" evaluate --checkpoint rotary --data.path torn >out 2>err; then fail "evaluate on damaged text"; fi
[ "$(grep -c '^trireme: error: .*valid-00000.h5' err)" -eq 1 ] && ! grep -q MPI_ABORT err || fail "evaluate on damaged text: message"


# Finite weights that overflow: a loss or logits that are not finite fail, and no checkpoint is called good.
cp -r "$golden/llama" huge && chmod -R u+w huge
header=$(od -An -tu8 -N8 huge/model.safetensors)
begin=$(head -c $((header + 8)) huge/model.safetensors | tr -d ' ' | sed -n 's/.*"model.norm.weight":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/p')
for i in $(seq 24); do printf '\377\377\177\177'; done | dd of=huge/model.safetensors bs=1 seek=$((header + 8 + begin)) conv=notrunc status=none
"$TRIREME" import --input huge --output overflow >out 2>err || fail "import of finite weights"
"$TRIREME" inspect overflow --verify >out 2>err || fail "verification of finite weights"
for command in "evaluate --json" "generate --tokens 3 --prompt a"; do
  code=0
  "$TRIREME_MPIEXEC" -n 2 "$TRIREME" $command --checkpoint overflow --data.path data >out 2>err || code=$?
  [ "$code" -ne 0 ] && [ "$(grep -c '^trireme: error: overflow/step-00000000: .*; use another checkpoint' err)" -eq 1 ] || fail "$command: exit $code"
done
grep -q 'a logit of token 0 is NaN or infinite' err || fail "generate: message"
if tune bad --from overflow --train.steps 9 --train.skip_limit 2; then fail "steps from weights that overflow"; fi
grep -q 'no step was sound after the checkpoint bad/step-00000000' err || fail "a checkpoint without a sound step is called good"
if "$TRIREME" export --checkpoint overflow --output halves --type F16 >out 2>err; then fail "export beyond the range of F16"; fi
grep -q 'tensor model.norm.weight: 3.40[0-9]*e+38 is beyond the range of F16' err && [ ! -e halves ] || fail "export beyond the range of F16: message"
echo ok
