#!/usr/bin/env bash
# kill -9 of one of four ranks at random times during saves, KILLS times (default 50): the newest committed checkpoint
# always loads, and the next launch resumes from it.
set -euo pipefail
kills=${KILLS:-50}
seed=${SEED:-$(((RANDOM << 15 | RANDOM) + 1))}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_odls_base_sigkill_timeout=0  # the others are killed at once too
fail() {
  echo "FAILED: $*"
  tail -n 20 "$work/out"
  exit 1
}
echo "seed $seed"
for kill in $(seq 1 $((kills + 1))); do
  chosen_seed=$((seed + kill))
  [ "$kill" -le "$kills" ] || chosen_seed=0
  code=0
  timeout 120 "$TRIREME_MPIEXEC" -n 4 "$PROGRAMS/killed_program" "$work/run" "$chosen_seed" >"$work/out" 2>&1 || code=$?
  if grep -q '^FAILED' "$work/out"; then fail "kill $kill, seed $chosen_seed"; fi
  if [ "$chosen_seed" -eq 0 ]; then
    [ "$code" -eq 0 ] || fail "the last check: exit code $code"
  else
    [ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "kill $kill, seed $chosen_seed: exit code $code"
  fi
  grep '^landed: ' "$work/out" >>"$work/landed" || fail "kill $kill, seed $chosen_seed: no output"
done
echo "kills: $kills; they landed in"
sort "$work/landed" | uniq -c | sort -rn | sed 's/landed: //'
count() { grep -c "landed: \($1\)\$" "$work/landed" || true; }
[ "$(count files)" -ge $((kills / 5)) ] || fail "too few while files were written: the test is weak"
[ "$(count 'manifest and rename\|renamed, not yet reported\|the replaced one being removed\|pruning')" -ge $((kills / 10)) ] ||
  fail "too few between the files and the end: the test is weak"
