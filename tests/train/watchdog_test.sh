#!/usr/bin/env bash
# A rank that stops and one that dies end the job within the watchdog's time, and a survivor reports what each rank did
# last.
set -euo pipefail
work=$(mktemp -d)
trap 'kill -9 $(cat "$work"/pid 2>/dev/null) 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
for i in $(seq 400); do echo "line $i of a text to learn from, again and again"; done > text
"$TRIREME" prepare --input text --output data > /dev/null

# $1: signal for the last rank once it trains. The last rank is found by its run's command line.
try() {
  rm -rf run out err
  "$TRIREME_MPIEXEC" -n 2 "$TRIREME" train --data.path data --train.output run --model.layers 1 \
    --model.width 16 --model.heads 2 --model.sequence 16 --train.batch 4 --train.steps 1000000 \
    --train.peak none --train.log_every 1 --train.watchdog 2 \
    > out 2> err &
  echo $! > pid
  for _ in $(seq 100); do
    grep -qs 'step *[1-9]' out && break
    sleep 0.1
  done
  grep -q 'step *[1-9]' out || { cat out err; return 1; }
  victim=$(pgrep -f "$TRIREME train .*--train.output run" | while read -r p; do
    grep -qzE '^(OMPI_COMM_WORLD_RANK|PMI_RANK)=1$' "/proc/$p/environ" 2> /dev/null && [ "$(readlink "/proc/$p/cwd")" = "$work" ] &&
      echo "$p"
  done | head -1 || true)
  [ -n "$victim" ] || { echo "no rank 1 found"; return 1; }
  begin=$(date +%s%N)
  kill "-$1" "$victim"
  status=0
  wait "$(cat pid)" || status=$?
  seconds=$((($(date +%s%N) - begin) / 1000000000))
  [ "$status" -ne 0 ] || { echo "$1: the job ended well"; return 1; }
  [ "$seconds" -le 20 ] || { echo "$1: the job took $seconds s to end"; return 1; }
  # No process is left, the stopped one included; the launcher's kill may take a moment.
  for _ in $(seq 50); do
    left=$(ours)
    [ -z "$left" ] && break
    sleep 0.1
  done
  [ -z "$left" ] || { echo "$1: left behind:"; ps -o pid,stat,args -p "$(echo $left | tr ' ' ,)"; return 1; }
  echo "$1: ended after $seconds s, nothing left behind"
}
# Processes of this test: those that work in its folder.
ours() {
  for p in $(pgrep -f "$TRIREME train .*--train.output run" || true); do
    [ "$(readlink "/proc/$p/cwd")" != "$work" ] || echo "$p"
  done
}

try STOP
# The headline names the stopped rank, not one that waits for it.
grep -q '^trireme: error: watchdog: rank 1 ' err || { cat err; exit 1; }
grep -qE '^ +1 +[0-9]+ +[0-9.]+ +(backward|forward|reduce|wait|optimizer|load).*\(stopped\)' err ||
  { cat err; exit 1; }
try KILL
