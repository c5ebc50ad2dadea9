#!/usr/bin/env bash
# A worker that dies at any point of a call, or stops, is told of within the silence allowed, and the rest go on to
# an orderly end; through shared memory and through TCP.
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
if grep -q lost "$out/text"; then fail "a sound run lost somebody"; fi

# Only Open MPI's launcher leaves survivors alone when it is asked to.
grep -q 'Open MPI\|OpenRTE\|open-mpi' <("$TRIREME_MPIEXEC" --version 2>&1) || exit 0
for transport in vader tcp; do
  for deed in idle bulk reply kept stop; do
    # Through shared memory the death of a sending rank has now and then silenced a living one too: docs/communication.md.
    # A stopped process is the same everywhere.
    case $transport,$deed in vader,bulk | vader,reply | tcp,stop) continue ;; esac
    begin=$EPOCHREALTIME
    code=0
    limit=60
    [ "$deed" != stop ] || limit=15
    OMPI_MCA_btl=$transport,self timeout "$limit" \
      "$TRIREME_MPIEXEC" --enable-recovery -n 4 "$program" 2 "$deed" 2 >"$out/text" 2>&1 || code=$?
    # The launcher waits for a stopped rank for ever: it is the timeout that ends it.
    [ "$deed" = stop ] || [ "$code" -eq 0 ] || fail "$transport, $deed: ended with $code"
    for rank in 0 1 3; do
      grep -q "^rank $rank: well\$" "$out/text" || fail "$transport, $deed: rank $rank is not well"
    done
    grep -q '^rank 0 lost rank 2: ' "$out/text" || fail "$transport, $deed: the loss is not told"
    [ "$(grep -c ' lost rank ' "$out/text")" -eq 1 ] || fail "$transport, $deed: another loss"
    awk -v b="$begin" -v e="$EPOCHREALTIME" -v w="$transport, $deed" 'BEGIN { printf "%s: %.1f s\n", w, e - b }'
  done
done
