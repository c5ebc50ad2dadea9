#!/usr/bin/env bash
# Runs every fuzz target for SECONDS_EACH seconds, JOBS at a time: fuzz.sh BUILD_FOLDER SECONDS_EACH JOBS [TARGET...].
# Inputs that reach new code are kept in BUILD_FOLDER/corpus; one that crashes, hangs or takes too much memory stays in
# BUILD_FOLDER/findings, and the command that shows it again is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 seconds=$2 jobs=$3
shift 3
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for source in tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$source" _fuzz.cpp)"); done

# Leaks in libraries are not reported: libhdf5 1.10.8 leaks when a header is damaged.
export ASAN_OPTIONS=detect_odr_violation=0:allocator_may_return_null=0
export LSAN_OPTIONS=suppressions=$PWD/tests/support/lsan.supp:print_suppressions=0
run_one() {
  local target=$1 program=$build/tests/${1}_fuzz corpus=$build/corpus/$1 findings=$build/findings/$1
  mkdir -p "$corpus" "$findings"
  # Twice the size of the largest seed, and at least 4 KiB.
  local most
  most=$(find "tests/fuzz/corpus/$target" -type f -printf '%s\n' | sort -n | tail -1)
  most=$((2 * most > 4096 ? 2 * most : 4096))
  local dictionary=()
  [ ! -e "tests/fuzz/$target.dict" ] || dictionary=(-dict="tests/fuzz/$target.dict")
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len="$most" -print_final_stats=1 \
    "${dictionary[@]}" -artifact_prefix="$findings/" "$corpus" "tests/fuzz/corpus/$target" >"$build/$target.log" 2>&1; then
    local runs
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log")
    echo "$target: $runs runs in $seconds s, coverage $(grep -oE 'cov: [0-9]+ ft: [0-9]+' "$build/$target.log" | tail -1), clean"
  else
    echo "$target: FOUND something; $build/$target.log ends:"
    tail -5 "$build/$target.log"
    for finding in "$findings"/*; do
      [ ! -e "$finding" ] || echo "  again with: ASAN_OPTIONS=$ASAN_OPTIONS LSAN_OPTIONS=$LSAN_OPTIONS $program $finding"
    done
    return 1
  fi
}
export -f run_one
export build seconds
printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P "$jobs" bash -c 'run_one "$1"' run_one
