#!/usr/bin/env bash
# A worker that dies at any point of a call, or stops, is reported within the allowed silence, and the others end in
# order; through shared memory and TCP.
set -euo pipefail
program=$PROGRAMS/rpc_program
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() {
  echo "$*"
  cat "$out/text"
  exit 1
}

code=0
timeout 100 "$TRIREME_MPIEXEC" -n 4 "$program" 1 none 20 >"$out/text" 2>&1 || code=$?
[ "$code" -eq 0 ] || fail "a sound run ended with $code"
[ "$(grep -c ': well$' "$out/text")" -eq 4 ] || fail "a sound run: not all were well"
if grep -q lost "$out/text"; then fail "a sound run lost a rank"; fi

# Only Open MPI's launcher can leave survivors running.
grep -q 'Open MPI\|OpenRTE\|open-mpi' <("$TRIREME_MPIEXEC" --version 2>&1) || exit 0
for transport in vader tcp; do
  for fault in idle bulk reply kept stop; do
    # Through shared memory the death of a sending rank sometimes silences a living one too: docs/communication.md.
    # A stopped process behaves the same everywhere.
    case $transport,$fault in vader,bulk | vader,reply | tcp,stop) continue ;; esac
    begin=$EPOCHREALTIME
    code=0
    limit=60
    [ "$fault" != stop ] || limit=15
    OMPI_MCA_btl=$transport,self timeout "$limit" \
      "$TRIREME_MPIEXEC" --enable-recovery -n 4 "$program" 2 "$fault" 2 >"$out/text" 2>&1 || code=$?
    # The launcher waits for a stopped rank forever: the timeout ends it.
    [ "$fault" = stop ] || [ "$code" -eq 0 ] || fail "$transport, $fault: ended with $code"
    for rank in 0 1 3; do
      grep -q "^rank $rank: well\$" "$out/text" || fail "$transport, $fault: rank $rank is not well"
    done
    grep -q '^rank 0 lost rank 2: ' "$out/text" || fail "$transport, $fault: the loss is not reported"
    [ "$(grep -c ' lost rank ' "$out/text")" -eq 1 ] || fail "$transport, $fault: another loss"
    awk -v b="$begin" -v e="$EPOCHREALTIME" -v w="$transport, $fault" 'BEGIN { printf "%s: %.1f s\n", w, e - b }'
  done
done
