#!/usr/bin/env bash
# prepare on several ranks makes the files of one rank; a restart after a kill keeps what was done; one line for a bad
# line of a part that another rank reads.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$out"
fail() {
  echo "FAILED: $*"
  tail -n 30 text errors
  exit 1
}
# prepare RANKS OUTPUT OPTIONS...
prepare() {
  local ranks=$1 output=$2
  shift 2
  "$TRIREME_MPIEXEC" -n "$ranks" "$TRIREME" prepare --output "$output" --name same "$@" > text 2> errors
}
# Three parts of a large file, a compressed one, and a small one.
yes '{"question": "how far is it?", "answer": "as far as the oars carry it, and then some more"}' | head -n 450000 |
  nl -s ' ' | sed 's/^ *\([0-9]*\) {"question": "/{"question": "\1 /' > large.jsonl || true
head -n 2000 large.jsonl | gzip > small.jsonl.gz
tail -n 300 large.jsonl > tail.jsonl
inputs="--input large.jsonl small.jsonl.gz tail.jsonl --documents jsonl:answer --prompt question --shard-tokens 4000000"
prepare 1 one $inputs || fail "one rank"
grep -q '^time   [0-9.]* s, [0-9.]* MB read, [0-9.]* MB/s, [0-9.]* a rank$' text || fail "no figures of speed"
for ranks in 2 3; do
  prepare $ranks "of$ranks" $inputs || fail "$ranks ranks"
  diff -r one "of$ranks" > text || fail "$ranks ranks: other files"
done
[ "$(find . -maxdepth 1 -name '*.tmp-*' | wc -l)" -eq 0 ] || fail "left behind"

# Killed once a part is whole.
"$TRIREME_MPIEXEC" -n 2 "$TRIREME" prepare --output again --name same $inputs > text 2> errors &
for _ in $(seq 600); do
  if compgen -G 'again.tmp-*/part-*.json' > /dev/null; then break; fi
  sleep 0.05
done
pkill -9 -f "prepare --output again --name same" || fail "ended before it was killed"
wait || true
[ ! -e again ] || fail "ended before it was killed"
sleep 1
prepare 3 again $inputs || fail "restart"
grep -q '^trireme: ./again.tmp-[0-9]*: continues what was begun, [1-9][0-9]* of [0-9]* parts are done' errors ||
  fail "the restart began again"
diff -r one again > text || fail "restart: other files"

sed '400000s/answer/reply/' large.jsonl > bad.jsonl
if prepare 2 bad --input bad.jsonl --documents jsonl:answer; then fail "not refused"; fi
[ "$(grep -c '^trireme: error' errors)" -eq 1 ] || fail "not one line"
grep -q '^trireme: error: bad.jsonl:400000: has no field "answer"' errors || fail "message"
[ "$(find . -maxdepth 1 -name 'bad*' | wc -l)" -eq 1 ] || fail "left behind"
