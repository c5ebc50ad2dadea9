#!/usr/bin/env bash
# The example of the library: one step lowers the loss, and its bits are the same for 1, 2 and 4 ranks.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for ranks in 1 2 4; do
  timeout 60 "$TRIREME_MPIEXEC" -n "$ranks" "$EXAMPLES/one_step" >"$out/$ranks"
  cmp "$out/1" "$out/$ranks"
done
cat "$out/1"
awk '$2 == "before" { before = $3 } $2 == "after" { after = $3 } END { exit !(after < before && before < 5) }' "$out/1"
