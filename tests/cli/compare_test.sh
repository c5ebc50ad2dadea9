#!/usr/bin/env bash
# trireme compare of two real runs: what differs, the page, the tables, errors.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
fail() {
  printf 'FAILED: %s\n' "$1"
  head -n 60 out err | sed 's/^/    /'
  failures=$((failures + 1))
}
has() { grep -qE -- "$1" "${2:-out}" || fail "no '$1' in ${2:-out}"; }
seq 1 9000 | tr '\n' ' ' >text
"$TRIREME" prepare --input text --output data >out 2>err || fail prepare
for name in one two; do
  flags=()
  [ $name = one ] || flags=(--optim.learning_rate 0.01 --optim.clip 2)
  "$TRIREME" train --model.layers 1 --model.width 32 --model.heads 2 --model.sequence 32 --data.path data --train.output $name \
    --train.steps 12 --train.batch 4 --train.peak none --train.quiet=true "${flags[@]}" >out 2>err || fail "train $name"
done
"$TRIREME" compare one two --shared-cores --json c.json >out 2>err || fail compare
has '^configuration +\| one +\| two$'
has '^optim.learning_rate +\| 0.001 +\| 0.01$'
has '^optim.clip +\| 1.0 +\| 2.0$'
has '^versions: no difference$'
has '^tokens/s, times the first +\| 1 +\| [0-9.]+ \[[0-9.]+, [0-9.]+\] n 9$'
has "^training, less the first's +\| 0 +\| -?[0-9.]+"
has '^total +\| [0-9.]+ +\| [0-9.]+$'
! grep -q 'model.width' out || fail "equal settings are shown"
has '"optim.clip": \[' c.json
if command -v gnuplot >/dev/null; then
  "$TRIREME" compare one two --shared-cores --html c.html >out 2>err || fail "--html"
  [ "$(grep -c '<svg' c.html)" -eq 4 ] || fail "$(grep -c '<svg' c.html) pictures"
fi
"$TRIREME" compare one >out 2>err && fail "one run"
has '^trireme: error: compare: . of 1 run give figures, at least 2 different runs are needed' err
exit $((failures > 0))
