#!/usr/bin/env bash
# tests/slurm/compare_traffic.py, which checks the runs of `make test-slurm`, on synthetic records and counters: correct
# ones pass, and each kind of error is found.
set -euo pipefail
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p run/attempts/0001
failures=0

# Two nodes with two ranks each, 10 steps of 1 MB of gradients a rank on the data axis and 5 MB inside nodes:
# record DATA_BYTES_OF_LAST_RANK STEP_SECONDS DATA_SECONDS WAIT_SECONDS, all of a step.
record() {
  python3 -B - "$@" <<'END'
import json, sys
last, step, data, wait = (float(word) for word in sys.argv[1:])
def axis(size, time):
    return {"bytes_per_step": size, "seconds_per_step": time, "mean_bytes_per_step": size, "mean_seconds_per_step": time}
ranks = [{"rank": r, "communication": {"data": axis(last if r == 3 else 1e6, data), "tensor": axis(5e6, 0.01)}} for r in range(4)]
sections = {"backward": 0.01, "reduce gradients (overlapped)": data, "wait for gradients": wait}
with open("run/attempts/0001/summary.json", "w") as file:
    json.dump({"steps_of_attempt": 10, "ranks": ranks, "communication": ranks[0]["communication"],
               "sections": {name: {"average": 10 * time} for name, time in sections.items()}}, file)
with open("run/attempts/0001/metrics.jsonl", "w") as file:
    for number in range(10):
        file.write(json.dumps({"type": "step", "step": number + 1, "seconds": step}) + "\n")
END
}
counters() { # bytes that each node has sent
  printf 'node1 1000\nnode2 5000\n' >before
  printf 'node1 %d\nnode2 %d\n' $((1000 + $1)) $((5000 + $2)) >after
}
# 16 Mbit a step and node: 0.16 s at 100 Mbit/s.
expect() { # exit code, start of the complaint, flags
  local expected=$1 complaint=$2 code=0
  shift 2
  python3 -B "$SOURCE/tests/slurm/compare_traffic.py" --rate 100mbit --tasks 2 --before before --after after "$@" run >out 2>&1 || code=$?
  if [ "$code" -ne "$expected" ] || { [ "$expected" -eq 1 ] && [ "$(grep -c "^  WRONG: $complaint" out)" -lt 1 ]; }; then
    echo "FAILED: exit code $code where $expected was expected, with '$complaint': $*"
    cat out
    failures=$((failures + 1))
  fi
}
record 1e6 0.2 0.17 0.16
counters 20200000 20200000
expect 0 '' --inside tensor
expect 0 '' --inside tensor --bound
expect 1 'node1 sent 20200000 bytes, the record has 120000000'
counters 22400000 20200000
expect 1 'node1 sent 22400000' --inside tensor
counters 20200000 19000000
expect 1 'node2 sent 19000000' --inside tensor
# A rank that reports less than its share, where another node's report is right.
counters 20200000 20200000
record 7e5 0.2 0.17 0.16
expect 1 'node2 sent 20200000 bytes, the record has 17000000' --inside tensor
record 1e6 0.2 0.1 0.16
expect 1 'communication took 0.100 s' --inside tensor
record 1e6 0.1 0.17 0.16
expect 1 'communication took 0.170 s of a step of 0.100 s' --inside tensor
record 1e6 0.2 0.17 0.01
expect 1 'waited 0.010 s' --inside tensor
record 1e6 0.3 0.25 0.24
expect 0 '' --inside tensor
expect 1 'the data axis took 0.250 s' --inside tensor --bound
[ "$failures" -eq 0 ] && echo "differing records and counters are detected"
exit "$((failures > 0))"
