#!/usr/bin/env bash
# The example of remote calls: every trial is run exactly once, and the best is the same for any number of ranks.
set -euo pipefail
program=$EXAMPLES/trials
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for ranks in 1 2 4; do
  timeout 60 "$TRIREME_MPIEXEC" -n "$ranks" "$program" 60 >"$out/$ranks"
  tried=$(awk '$3 == "tried" { sum += $4 } END { print sum }' "$out/$ranks")
  [ "$tried" -eq 60 ] || { cat "$out/$ranks"; echo "$ranks ranks: $tried trials"; exit 1; }
  grep '^best of 60: ' "$out/$ranks" >"$out/best.$ranks"
  cmp "$out/best.1" "$out/best.$ranks"
done
# Every rank ran trials.
[ "$(awk '$3 == "tried" && $4 > 0' "$out/4" | wc -l)" -ge 2 ]
cat "$out/best.1"
