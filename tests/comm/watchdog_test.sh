#!/usr/bin/env bash
# A rank that sleeps forever, stops or dies ends the job shortly after the watchdog's timeout, with a table of each
# rank's last operation; also if it is the first of its node, whose memory holds the table. A pause and the suspension
# of the whole job do not.
set -euo pipefail
program=$PROGRAMS/watchdog_program
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() {
  echo "$*"
  cat "$out/text"
  exit 1
}
# Runs the program with arguments $@ and leaves the exit code in $code.
run() {
  code=0
  timeout 120 "$TRIREME_MPIEXEC" ${options:-} -n 2 "$program" "$@" >"$out/text" 2>&1 || code=$?
  ended=$EPOCHREALTIME
}

# Start, work and end without a failure.
run 5 0 none
[ "$code" -eq 0 ] || fail "a sound run ended with $code"
grep -q '^done$' "$out/text" || fail "a sound run did not end"
if grep -q watchdog "$out/text"; then fail "a sound run got a complaint"; fi

# Open MPI ends a job when a rank dies, and only with recovery leaves that to us; MPICH's launcher likewise.
survive=
if grep -q 'Open MPI\|OpenRTE\|open-mpi' <("$TRIREME_MPIEXEC" --version 2>&1); then survive=--enable-recovery; fi
for fault in sleep stop ${survive:+kill vanish} linger apart absent; do
  for rank in 0 1; do
    options=
    case $fault in kill | vanish) options=$survive ;; esac
    # One timeout of silence, and a second to end the job (Open MPI waits one before it kills). A loaded machine takes
    # longer: so five seconds, and the best of three.
    for attempt in 1 2 3; do
      run 1 "$rank" "$fault"
      took=$(awk -v b="$ended" '$1 == "fault" { printf "%.1f", b - $3 }' "$out/text")
      awk -v t="$took" 'BEGIN { exit !(t > 0 && t <= 5) }' && break
      [ "$attempt" -lt 3 ] || fail "$fault of rank $rank: the end took '$took' s"
    done
    echo "$fault of rank $rank: ended $took s later"
    # With recovery Open MPI's launcher treats any end as success.
    [ "$code" -ne 124 ] && { [ "$code" -ne 0 ] || [ -n "$options" ]; } || fail "$fault of rank $rank: exit code $code"
    if grep -q '^done$' "$out/text"; then fail "$fault of rank $rank: the run went on"; fi
    grep -q "trireme: error: watchdog: rank [01] has not moved for [1-9]\.[0-9] s: the limit is 1 s" "$out/text" ||
      fail "$fault of rank $rank: no complaint"
    case $fault in
      kill) state=' (dead)' ;;
      vanish) state=' (dead, not watched)' ;;
      stop | apart) state=' (stopped)' ;;
      *) state= ;;
    esac
    step=3
    [ "$fault" = linger ] && step=5
    grep -q "^ *$rank  *$step  *[0-9.]*  the last thing that rank did$state\$" "$out/text" ||
      fail "$fault of rank $rank: its last operation is not reported"
    [ "$(grep -c 'trireme: error' "$out/text")" -eq 1 ] || fail "$fault of rank $rank: more than one error"
    [ "$(grep -c "^ *[01]  *[0-9]  *[0-9.]*  " "$out/text")" -eq 2 ] || fail "$fault of rank $rank: not a line per rank"
  done
done
if [ -n "$survive" ]; then
  options=$survive
  for rank in 0 1; do
    run 1 "$rank" outlive
    grep -q '^outlived$' "$out/text" || fail "outlive: rank $rank ended the others, exit code $code"
    if grep -q watchdog "$out/text"; then fail "outlive: the watchdog reported"; fi
    # A rank that stalls or is stopped is ended alone, by the others or by itself, before they leave.
    for fault in outlive-sleep outlive-stop outlive-end; do
      run 1 "$rank" "$fault"
      [ "$code" -ne 124 ] && grep -q '^outlived$' "$out/text" || fail "$fault of rank $rank: exit code $code"
      [ "$(grep -c 'watchdog' "$out/text")" -eq 1 ] || fail "$fault of rank $rank: not one complaint"
      grep -q "trireme: warning: watchdog: rank $rank has not moved for .*so that rank ends" "$out/text" ||
        fail "$fault of rank $rank: no complaint"
      state=' (stopped, not watched)'
      [ "$fault" = outlive-sleep ] && state=
      grep -q "^ *$rank  *3  *[0-9.]*  the last thing that rank did$state\$" "$out/text" ||
        fail "$fault of rank $rank: its last operation is not reported"
    done
  done
fi
options=
run 1 1 kill
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "a killed rank: exit code $code"

# A rank that leaves by an exception ends by itself, without the others' watchdogs.
run 1 1 throw
[ "$code" -eq 3 ] || fail "throw: exit code $code"
if grep -q watchdog "$out/text"; then fail "throw: the watchdog reported"; fi

run 5 0 agree
[ "$code" -eq 4 ] || fail "agree: exit code $code"
if grep -q 'MPI_ABORT\|watchdog' "$out/text"; then fail "agree: the session did not end in order"; fi

# Long operations under Pause.
run 1 0 pause
[ "$code" -eq 0 ] || fail "pause: exit code $code"
# A timeout of zero: no watchdog.
run 0 0 none
[ "$code" -eq 0 ] || fail "no timeout: exit code $code"

# The whole job suspended for longer than the timeout, and resumed.
"$TRIREME_MPIEXEC" -n 2 "$program" 3 0 suspend >"$out/text" 2>&1 &
job=$!
stopped=0
for _ in {1..600}; do
  mapfile -t ranks < <(awk '$1 == "process" { print $2 }' "$out/text")
  [ "${#ranks[@]}" -eq 2 ] && stopped=$(ps -o state= -p "${ranks[0]},${ranks[1]}" | grep -c T) || true
  [ "$stopped" -eq 2 ] && break
  sleep 0.1
done
[ "$stopped" -eq 2 ] || fail "suspension: $stopped of 2 ranks stopped"
sleep 4.5
# One after the other: the first finds that the second has been silent for long.
kill -CONT "${ranks[0]}"
sleep 0.7
kill -CONT "${ranks[1]}"
wait "$job" || fail "suspension: exit code $?"
grep -q '^done$' "$out/text" || fail "suspension: the run did not end"
