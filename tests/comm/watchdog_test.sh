#!/usr/bin/env bash
# A rank that sleeps for ever, stops or dies ends the job within the watchdog's time and a little, with a table that
# says what it did last; also where it is the first of its node, whose memory holds the table. A pause, and a job
# that was suspended as a whole, do not.
set -euo pipefail
program=$PROGRAMS/watchdog_program
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() {
  echo "$*"
  cat "$out/text"
  exit 1
}
# Runs the program with arguments $@, leaves the exit code in $code and the seconds in $spent.
run() {
  local begin=$EPOCHREALTIME
  code=0
  timeout 60 "$TRIREME_MPIEXEC" ${options:-} -n "${ranks:-2}" "$program" "$@" >"$out/text" 2>&1 || code=$?
  spent=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }')
}
within() { awk -v s="$spent" -v l="$1" 'BEGIN { exit !(s <= l) }' || fail "took $spent s, not $1 s"; }

# Start, work and end without a fault: the time that does not belong to the watchdog.
run 5 0 none
[ "$code" -eq 0 ] || fail "a sound run ended with $code"
grep -q '^done$' "$out/text" || fail "a sound run did not end"
if grep -q watchdog "$out/text"; then fail "a sound run was complained of"; fi
sound=$spent

# Open MPI ends a job by itself when a rank dies, and only with recovery leaves that to us; MPICH's launcher likewise.
survive=
if "$TRIREME_MPIEXEC" --version 2>&1 | grep -q 'Open MPI\|OpenRTE\|open-mpi'; then survive=--enable-recovery; fi
for deed in sleep stop ${survive:+kill} linger; do
  for rank in 0 1; do
    options=
    [ "$deed" = kill ] && options=$survive
    run 1 "$rank" "$deed"
    # With recovery Open MPI's launcher takes any end for a good one.
    [ "$code" -ne 124 ] && { [ "$code" -ne 0 ] || [ "$deed" = kill ]; } || fail "$deed of rank $rank: exit code $code"
    if grep -q '^done$' "$out/text"; then fail "$deed of rank $rank: the run went on"; fi
    # One timeout of silence, a second to end the job (Open MPI waits one before it kills), a second of slack, and
    # as much again as a sound run takes, where the machine is busy.
    within "$(awk -v s="$sound" 'BEGIN { print 2 * s + 3 }')"
    grep -q "trireme: error: watchdog: rank [01] has not moved for 1\.[0-9] s: the limit is 1 s" "$out/text" ||
      fail "$deed of rank $rank: no complaint"
    case $deed in
      kill) state=' (dead)' ;;
      stop) state=' (stopped)' ;;
      *) state= ;;
    esac
    step=3
    [ "$deed" = linger ] && step=5
    grep -q "^ *$rank  *$step  *[0-9.]*  the last thing that rank did$state\$" "$out/text" ||
      fail "$deed of rank $rank: what it did last is not told"
    [ "$(grep -c 'trireme: error' "$out/text")" -eq 1 ] || fail "$deed of rank $rank: several voices"
    [ "$(grep -c "^ *[01]  *[0-9]  *[0-9.]*  " "$out/text")" -eq 2 ] || fail "$deed of rank $rank: not a line per rank"
  done
done
options=
run 1 1 kill
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "a killed rank: exit code $code"

# A rank that leaves by an exception gets to its own end, unhindered by the others' watch.
run 1 1 throw
[ "$code" -eq 3 ] || fail "throw: exit code $code"
if grep -q watchdog "$out/text"; then fail "throw: the watchdog spoke"; fi

run 5 0 agree
[ "$code" -eq 4 ] || fail "agree: exit code $code"
if grep -q 'MPI_ABORT\|watchdog' "$out/text"; then fail "agree: the session did not end in order"; fi

# What takes long on purpose.
run 1 0 pause
[ "$code" -eq 0 ] || fail "pause: exit code $code"
# Timeouts of nothing: no watch.
run 0 0 none
[ "$code" -eq 0 ] || fail "no timeout: exit code $code"

# The whole job suspended for two timeouts, and let go on.
"$TRIREME_MPIEXEC" -n 2 "$program" 1.5 0 none >"$out/text" 2>&1 &
job=$!
sleep 1
children=$(awk '$1 == "process" { print $2 }' "$out/text")
[ "$(wc -w <<<"$children")" -eq 2 ] || fail "suspension: no two ranks to be seen"
kill -STOP $children  # unquoted: one word for each
sleep 3
kill -CONT $children
wait "$job" || fail "suspension: exit code $?"
grep -q '^done$' "$out/text" || fail "suspension: the run did not end"
