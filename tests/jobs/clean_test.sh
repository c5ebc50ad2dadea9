#!/usr/bin/env bash
# jobs/clean.sh removes what killed jobs left, and nothing that a process uses or that is not an MPI library's.
set -euo pipefail
work=$(mktemp -d)
trap 'kill "$holder" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
sessions="tmp/ompi.$(hostname -s).$(id -u)"
bash -c 'exit 0' & dead=$!
wait "$dead"
mkdir -p shm "$sessions/pid.$dead/0" "$sessions/pid.$$"
for name in vader_segment.host.0.1.0 vader_segment.host.0.2.0 vader_segment.host.0.3.0 osc_sm.host.1.0.7 mpich_shar_tmpA other; do
  head -c 4096 /dev/zero >"shm/$name"
  touch -d '-1 hour' "shm/$name"
done
touch shm/vader_segment.host.0.3.0  # just made: its owner is about to map it
touch -d '-1 hour' "$sessions"/pid.*
python3 -c '
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("held", flush=True)
time.sleep(60)' "$work/shm/vader_segment.host.0.2.0" >holder &
holder=$!
for _ in $(seq 100); do [ ! -s holder ] || break; sleep 0.1; done
TRIREME_SHARED_MEMORY="$work/shm" TMPDIR="$work/tmp" bash "$SOURCE/jobs/clean.sh"
left=$(cd shm && echo *)
[ "$left" = "other vader_segment.host.0.2.0 vader_segment.host.0.3.0" ] || { echo "left in shared memory: $left"; exit 1; }
if [ -e "$sessions/pid.$dead" ] || [ ! -d "$sessions/pid.$$" ]; then
  echo "sessions:"
  ls -R tmp
  exit 1
fi
kill "$holder"
wait "$holder" 2>/dev/null || true
touch -d '-1 hour' shm/vader_segment.host.0.2.0
TRIREME_SHARED_MEMORY="$work/shm" TMPDIR="$work/tmp" bash "$SOURCE/jobs/clean.sh"
[ ! -e shm/vader_segment.host.0.2.0 ] || { echo "a segment of a dead process is left"; exit 1; }
echo "leftovers removed, what is used kept"
