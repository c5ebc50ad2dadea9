#!/usr/bin/env bash
# A blend of datasets: the same samples and bits in every layout and over restarts, other weights at a restart without
# a sample lost or repeated, the loss of each source in the record, and one line for what is wrong before training.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$out"
fail() {
  echo "FAILED: $*"
  tail -n 30 text errors
  exit 1
}
for name in books code web; do
  yes "Words of $name follow one another in a text that is long enough to be learned from." | head -n 150 | nl > "$name.txt" || true
  "$TRIREME" prepare --input "$name.txt" --output "$name" --documents line > text 2> errors || fail "prepare $name"
done
cat > blend.toml << 'END'
[[source]]
path = "books"
[[source]]
path = "code"
[[source]]
path = "web"
[[phase]]
begin = 0
end = 768          # tokens: 24 sequences
weights = {books = 0.5, web = 0.5}
[[phase]]
begin = 768
weights = {books = 0.2, code = 0.7, web = 0.1}
END

# train RANKS OUTPUT OPTIONS...
train() {
  local ranks=$1 output=$2
  shift 2
  "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" train --train.output "$output" --model.preset tiny \
    --model.width 32 --model.layers 2 --model.heads 2 --model.sequence 32 --train.batch 8 --train.steps 6 \
    --train.micro_batch 1 --data.path blend.toml --numerics.reproducible true --numerics.virtual_data 8 \
    --numerics.virtual_tensor 2 --train.peak none --train.quiet true --train.evaluate_every 2 "$@" > text 2> errors
}
# Loss and norm of every step and evaluation, from the record's last attempt.
losses() { cat "$1"/attempts/*/metrics.jsonl | grep -o '"\(gradient_norm\|loss\|sources\|step\)":[^,]*' | sort -u; }
cursor() { grep -o '"blend": *{.*' "$1" || tr -d '\n ' < "$1" | grep -o '"blend":{[^}]*}[^}]*}[^}]*}[^}]*}'; }

train 1 whole --checkpoint.every 2 || fail "one rank"
grep -q '"sources":{"books":[0-9.]*,"code":[0-9.]*,"web":[0-9.]*}' whole/attempts/0001/metrics.jsonl || fail "the sources' losses"
train 4 tensor --parallel.tensor 2 || fail "tensor 2 x data 2"
cmp <(losses whole) <(losses tensor) || fail "tensor 2 x data 2: other bits"
# Stopped in the second phase and continued in another layout.
train 2 cut --train.stop_after 4 || fail "the first four steps"
train 2 cut --parallel.pipeline 2 || fail "the last two"
cmp <(losses whole) <(losses cut) || fail "stopped and continued: other bits"
cmp <(cursor whole/step-00000006/manifest.json) <(cursor cut/step-00000006/manifest.json) || fail "another cursor"

# Other weights from step 4 on, in two layouts: the same bits, and sources go on where they were.
cp -r cut reweighed
rm -rf reweighed/step-00000006 cut
cp -r reweighed again
train 1 reweighed --data.path "1 books, 3 web" --train.quiet false || fail "other weights"
grep -q 'note: from sample 32 on the blend is books 25 %, web 75 %' errors text || fail "other weights: no note"
train 2 again --data.path "1 books, 3 web" || fail "other weights on two ranks"
grep -q '"event":"changed".*from sample 32 on the blend is books 25 %' reweighed/attempts/0003/*.jsonl || fail "other weights: no event"
phases='"phases":\[{"first_sample":0,"shares":{"books":0.5,"web":0.5}},{"first_sample":24,"shares":{"books":0.2,"code":0.7,'
tr -d '\n ' < whole/attempts/0001/run.json | grep -q "$phases" || fail "the phases in run.json"
cmp <(losses reweighed) <(losses again) || fail "other weights: other bits on two ranks"
# 24 samples of the first phase and 8 of the second, then 16 at 1 to 3.
tr -d '\n ' < reweighed/step-00000006/manifest.json | grep -q '"given":{"books":18,"code":6,"web":24}' || fail "the cursor"

# The samples that a run will take, by rank.
"$TRIREME" train --dry-run --samples 4 --ranks 2 --data.path blend.toml --model.preset tiny --model.sequence 32 \
  --train.batch 8 --train.steps 6 --train.output new > text 2> errors || fail "--samples"
[ "$(grep -c '^[01]  *[0-9]* ' text)" -eq 8 ] || fail "--samples: not a line for each sample"
grep -q '^code  *70 %' text || fail "--samples: shares"
grep -q '^1  *28  code  *3 .*follow one another' text || fail "--samples: rank 1 begins with sample 28"
[ ! -e new ] || fail "--samples writes"
"$TRIREME" inspect blend.toml --verify > text 2> errors || fail "inspect"
grep -q '^books  *50 %' text || fail "inspect: shares"
"$TRIREME" evaluate --checkpoint whole > text 2> errors || fail "evaluate"
grep -q '^  code [0-9.]*  over' text || fail "evaluate: sources"
train 3 served --data_parallel.method async-server --parallel.servers 1 --numerics.reproducible false \
  --data.path "1 books, 1 web" || fail "asynchronous servers"
grep -q '"sources":{"books"' served/attempts/0001/metrics.jsonl || fail "asynchronous servers: the sources' losses"
"$TRIREME" report whole > text 2> errors || fail "report"
grep -q INVALID text errors && fail "report: INVALID"
"$TRIREME" generate --checkpoint whole --prompt Words --tokens 5 > text 2> errors || fail "generate"

# What is wrong is named in one line, and nothing is written.
refused() {
  local want=$1
  shift
  if train 2 refused "$@"; then fail "not refused: $*"; fi
  [ "$(grep -c '^trireme: error' errors)" -eq 1 ] || fail "not one line: $*"
  grep -q "^trireme: error: .*$want" errors || fail "not '$want': $*"
  [ ! -e refused ] || fail "writes: $*"
}
refused 'dataset missing: no such folder' --data.path "1 books, 1 missing"
cp -r web damaged
printf '\377' | dd of=damaged/train-00000.h5 bs=1 seek=9 conv=notrunc status=none
refused 'damaged' --data.path "1 books, 1 damaged"
"$TRIREME" prepare --input web.txt --output letters --tokenizer characters > text 2> errors
refused 'source letters has tokenizer characters, and source books bytes' --data.path "1 books, 1 letters"
refused 'source books has [0-9]* tokens' --data.path "1 books, 1 web" --model.sequence 20000
printf '[[source]]\npath = "books"\nweight = 1\nmost_epochs = 0.1\n' > few.toml
refused 'read source books [0-9.]* times, at most 0.1' --data.path few.toml
refused '"1e400 books" is not a weight and a folder' --data.path "1e400 books, 1 web"

# Without ranks: blanks of a list, and what would be refused at the start.
plan_run() { "$TRIREME" train --dry-run --model.preset tiny --model.sequence 64 --train.batch 8 --train.steps 40 "$@" > text 2> errors; }
plan_run --data.path "  1   books,$(printf '\t')1  web " || fail "blanks in a list"
if plan_run --data.path few.toml; then fail "--dry-run: a source that is read too often"; fi
grep -q 'read source books [0-9.]* times, at most 0.1' errors || fail "--dry-run: message"
cp web/train-00000.h5 tokens.bin.gz
if "$TRIREME" prepare --input tokens.bin.gz --output no > text 2> errors; then fail "compressed token files"; fi
grep -q 'tokens.bin.gz: token files are read as they are' errors || fail "compressed token files: message"
