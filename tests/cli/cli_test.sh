#!/usr/bin/env bash
# The command line: help, precedence of sources, one line per error, exit codes.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpiexec=${TRIREME_MPIEXEC:-mpirun}
failures=0

fail() {
  printf 'FAILED: %s\n' "$1"
  head -n 40 "$work/out" | sed 's/^/    out: /'
  head -n 10 "$work/err" | sed 's/^/    err: /'
  failures=$((failures + 1))
}
# run COMMAND...: its output in $work/out and $work/err, its exit code in $code
run() {
  "$@" >"$work/out" 2>"$work/err"
  code=$?
}
# refuses CODE LINE COMMAND...: exit code CODE, nothing on standard output, exactly this error line
refuses() {
  local expected=$1 line=$2
  shift 2
  run "$@"
  [ "$code" -eq "$expected" ] || fail "exit code $code, not $expected: $*"
  [ ! -s "$work/out" ] || fail "output in addition to the error: $*"
  if [ "$(cat "$work/err")" != "trireme: error: $line" ]; then
    printf '  wanted: trireme: error: %s\n' "$line"
    fail "other error: $*"
  fi
}
# has TEXT FILE
has() { grep -qF -- "$1" "$2" || fail "no '$1' in $2"; }
widest() { LC_ALL=C.UTF-8 awk '{ if (length($0) > m) m = length($0) } END { print m + 0 }' "$1"; }

# Help: fits 80x24; each subcommand's ends with examples.
run "$TRIREME" --help
[ "$code" -eq 0 ] && [ ! -s "$work/err" ] || fail "--help"
[ "$(wc -l <"$work/out")" -le 24 ] || fail "--help is longer than 24 lines"
[ "$(widest "$work/out")" -le 80 ] || fail "--help is wider than 80 columns"
for name in prepare inspect train evaluate generate plan presets report compare status info bench; do
  run "$TRIREME" --help
  has "$name" "$work/out"
  run "$TRIREME" "$name" --help
  [ "$code" -eq 0 ] && [ ! -s "$work/err" ] || fail "$name --help"
  [ "$(widest "$work/out")" -le 84 ] || fail "$name --help is wide"
  grep -q "trireme $name" <(tail -n 6 "$work/out") || fail "$name --help does not end with examples"
done
run "$TRIREME" train --help
has '--model.layers=' "$work/out"
has '--optim.learning_rate=' "$work/out"
run "$TRIREME" --version
grep -qE '^trireme [0-9]+\.[0-9]+\.[0-9]+$' "$work/out" || fail "--version"

# Mistakes: one line with the nearest name; exit code 2 for the command line and 1 for values.
refuses 2 'no subcommand is given; `trireme --help` lists them' "$TRIREME"
refuses 2 'evalute: is not a subcommand; did you mean evaluate?' "$TRIREME" evalute
refuses 2 'train: --dry-rnu: is not a flag; did you mean --dry-run?' "$TRIREME" train --dry-rnu
refuses 2 '--model.layer: is not a configuration key; did you mean --model.layers?' "$TRIREME" train --model.layer 3
refuses 1 '--model.layers = 0: must be at least 1; use 1 or more' "$TRIREME" train --model.layers 0
refuses 1 "$work/none.toml: cannot be read: No such file or directory; name an existing TOML file" \
  "$TRIREME" train --config "$work/none.toml"
printf '[model]\n\nlayer = 3\n' >"$work/bad.toml"
refuses 1 "$work/bad.toml:3: model.layer: is not a configuration key; did you mean model.layers?" \
  "$TRIREME" train --config "$work/bad.toml"
refuses 1 'TRIREME_MODEL_LAYER: is not a field of section model; did you mean TRIREME_MODEL_LAYERS?' \
  env TRIREME_MODEL_LAYER=3 "$TRIREME" train
refuses 2 'train: a\nb: one argument too many; quote a value that has spaces' "$TRIREME" train $'a\nb'
refuses 1 '--model.layers: evaluate: the checkpoint decides it; leave it out' \
  "$TRIREME" evaluate --model.layers 3
run "$TRIREME" inspect "$work/nothing"
[ "$code" -eq 1 ] && [ "$(grep -c '^trireme: error: ' "$work/err")" -eq 1 ] &&
  [ "$(wc -l <"$work/err")" -eq 1 ] || fail "inspect of a missing folder"

# Prepares a dataset and inspects it.
yes 'In the beginning was the word, and the word was with the machine.' | head -n 300 >"$work/text.txt"
run "$TRIREME" prepare --input "$work/text.txt" --output "$work/dataset"
[ "$code" -eq 0 ] || fail "prepare"
has 'vocabulary 25' "$work/out"
grep -q '^prepare 100 %' "$work/err" || fail "no progress lines in a log"
[ "$(grep -c . "$work/err")" -le 10 ] || fail "too many progress lines"
run "$TRIREME" inspect "$work/dataset" --verify
[ "$code" -eq 0 ] || fail "inspect"
has 'In the beginning was the word' "$work/out"
has 'verified' "$work/out"
[ "$(widest "$work/out")" -le 80 ] || fail "inspect is wider than 80 columns"
run "$TRIREME" prepare --input "$work/text.txt" --output "$work/dataset"
[ "$code" -eq 1 ] && [ "$(grep -c '^trireme: error: ' "$work/err")" -eq 1 ] || fail "prepare over a dataset"

# Precedence: built-in < preset < file < environment < command line, with the origin of each.
printf '[model]\nwidth = 64\nheads = 8\nlayers = 3\n' >"$work/run.toml"
dry() {
  run env TRIREME_MODEL_HEADS=4 TRIREME_MODEL_LAYERS=5 "$TRIREME" train --data.path "$work/dataset" \
  --config "$work/run.toml" --model.preset nano --model.layers 2 --dry-run
}
dry
[ "$code" -eq 0 ] || fail "train --dry-run"
setting() { grep -qE "^$1 += +$2( +# $3)?\$" "$work/out" || fail "no '$1 = $2  # $3' in the resolved configuration"; }
setting epsilon 1e-05 'preset nano'
setting sequence 64 'preset nano'
setting width 64 "$work/run.toml:2"
setting heads 4 TRIREME_MODEL_HEADS
setting layers 2 --model.layers
setting steps 1000 ''
cp "$work/out" "$work/resolved.toml"
run "$TRIREME" train --config "$work/resolved.toml" --quiet --dry-run
has 'quiet = true' "$work/out"
run "$TRIREME" train --config "$work/resolved.toml" --dry-run
diff <(sed 's/ *#.*//' "$work/resolved.toml") <(sed 's/ *#.*//' "$work/out") >/dev/null ||
  fail "the printed configuration does not read back"

# One field, as it is, for scripts: the layout need not fit the ranks.
printf '[train]\noutput = "a \\"run\\""\n[parallel]\ntensor = 2\n' >"$work/quoted.toml"
run "$TRIREME" train --config "$work/quoted.toml" --show train.output
[ "$code" -eq 0 ] && [ "$(cat "$work/out")" = 'a "run"' ] || fail "--show of a file's field"
run env TRIREME_MODEL_LAYERS=5 "$TRIREME" train --show=model.layers
[ "$code" -eq 0 ] && [ "$(cat "$work/out")" = 5 ] || fail "--show of a variable's field"
refuses 1 '--show: train.ouput: is not a configuration key; did you mean train.output?' "$TRIREME" train --show train.ouput
refuses 1 "$work/none.toml: cannot be read: No such file or directory; name an existing TOML file" \
  "$TRIREME" train --config "$work/none.toml" --show train.output

# Under a launcher exactly one rank prints, help and errors alike; only the launcher's own banner may follow our line.
two() { run "$mpiexec" -n 2 "$@"; }
two "$TRIREME" --help
[ "$code" -eq 0 ] && [ "$(grep -c '^Usage: trireme' "$work/out")" -eq 1 ] || fail "--help on 2 ranks"
reports_once() {
  local line=$1
  shift
  two "$@"
  [ "$code" -ne 0 ] || fail "exit code 0: $*"
  [ "$(grep -c 'trireme: error:' "$work/err")" -eq 1 ] && grep -qxF "trireme: error: $line" "$work/err" ||
    fail "not reported exactly once: $*"
}
reports_once 'trian: is not a subcommand; did you mean train?' "$TRIREME" trian
reports_once '--model.layers = 0: must be at least 1; use 1 or more' "$TRIREME" train --model.layers 0
reports_once "$work/bad.toml:3: model.layer: is not a configuration key; did you mean model.layers?" \
  "$TRIREME" train --config "$work/bad.toml"
two "$TRIREME" inspect "$work/nothing"
[ "$code" -ne 0 ] && [ "$(grep -c 'trireme: error:' "$work/err")" -eq 1 ] || fail "inspect on 2 ranks"
two "$TRIREME" inspect "$work/dataset"
[ "$code" -eq 0 ] && [ "$(grep -c '^dataset' "$work/out")" -eq 1 ] || fail "inspect on 2 ranks"
two "$TRIREME" prepare --input "$work/text.txt" --output "$work/dataset2"
[ "$code" -eq 0 ] && [ "$(grep -c '^train ' "$work/out")" -eq 1 ] || fail "prepare on 2 ranks"
cmp -s "$work/dataset/dataset.json" "$work/dataset2/dataset.json" ||
  [ "$(grep -c '"name"' "$work/dataset2/dataset.json")" -eq 1 ] || fail "prepare on 2 ranks: other dataset"
two "$TRIREME" info
[ "$code" -eq 0 ] && [ "$(grep -c '^ranks  *2 on 1 node, 2 per node' "$work/out")" -eq 1 ] || fail "info on 2 ranks"

# The other fields of info.
run "$TRIREME" info
[ "$code" -eq 0 ] || fail "info"
for key in trireme compiler MPI HDF5 oneDNN CUDA 'kernel driver' 'GPU messages' NCCL CPU memory \
  'GPUs per rank' 'threads per rank'; do
  grep -qE "^ *$key  *[^ ]" "$work/out" || fail "info has no $key"
done
run "$TRIREME" presets
[ "$code" -eq 0 ] || fail "presets"
# Published parameter counts of the same models.
grep -qE '^gpt2 +124,439,808 ' "$work/out" || fail "presets: gpt2"
grep -qE '^gpt2-xl +1,557,611,200 ' "$work/out" || fail "presets: gpt2-xl"
grep -qE '^llama-7b +6,738,415,616 ' "$work/out" || fail "presets: llama-7b"
grep -qE '^llama-8b +8,030,261,248 ' "$work/out" || fail "presets: llama-8b"
grep -qE '^llama-70b +70,553,706,496 ' "$work/out" || fail "presets: llama-70b"
grep -qE '^llama-1b +1,235,814,400 ' "$work/out" || fail "presets: llama-1b"

# Output that cannot be written is an error.
if [ -w /dev/full ]; then
  "$TRIREME" presets >/dev/full 2>"$work/err"
  code=$?
  : >"$work/out"
  [ "$code" -eq 1 ] && [ "$(grep -c '^trireme: error: ' "$work/err")" -eq 1 ] || fail "full standard output"
fi

[ "$failures" -eq 0 ] || { echo "$failures failures"; exit 1; }
echo "the command line is in order"
