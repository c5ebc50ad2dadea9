#!/usr/bin/env bash
# scripts/bench.sh to its end, with one round and a small model, and its figures as JSON.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bench"  # its figures are files beside the programs; those of a user's make bench are kept
ln -s "$(realpath "$PROGRAMS/../bench")"/*_bench "$(realpath "$PROGRAMS/../bench/trireme_bench_steps")" "$work/bench"
unset OMP_NUM_THREADS
ROUNDS=1 TYPES=fp32 CASES=tiny:2 "$SOURCE/scripts/bench.sh" "$work" --benchmark_min_time=0.001 2>&1 | tee "$work/out"
for title in ops_bench progress_bench 'operations beyond' 'collectives of two ranks' 'operation by operation' 'beside the peak'; do
  grep -q "^== .*$title" "$work/out" || { echo "FAILED: no part \"$title\""; exit 1; }
done
python3 - "$work/bench" <<'PYTHON'
import json, sys
folder = sys.argv[1]
for name, key in (("ops_bench", "benchmarks"), ("progress_bench", "benchmarks"), ("memory_bench", "operations"), ("compare", "rows")):
    assert json.load(open(f"{folder}/{name}.json"))[key], name
row = json.load(open(f"{folder}/compare.json"))["rows"][0]
assert row["two_ranks_beside_one"]["n"] == 1 and row["rounds"][0]["two_ranks"]["ranks"] == 2, row
PYTHON
