#!/usr/bin/env bash
# Removes files that killed jobs left on this node, if no process uses them: this user's segments of Open MPI 4 and MPICH in
# /dev/shm, and Open MPI 4's session folders. The job scripts run it before each start. On all nodes of an allocation:
#
#   srun --ntasks-per-node=1 jobs/clean.sh
set -uo pipefail
shared=${TRIREME_SHARED_MEMORY:-/dev/shm}

# A segment exists for a moment before its owner maps it.
old() { [ -O "$1" ] && [ -n "$(find "$1" -maxdepth 0 -mmin "+${TRIREME_CLEAN_MINUTES:-2}" 2>/dev/null)" ]; }

for segment in "$shared"/vader_segment.* "$shared"/osc_sm.* "$shared"/mpich_shar_tmp*; do
  if [ -f "$segment" ] && old "$segment" && ! grep -qsF -- "$segment" /proc/[0-9]*/maps; then rm -f -- "$segment"; fi
done

# Named after the process id of mpirun.
for session in "${TMPDIR:-/tmp}/ompi.$(hostname -s).$(id -u)"/pid.*; do
  if [ -d "$session" ] && old "$session" && [ ! -e "/proc/${session##*.}" ]; then
    rm -rf -- "$session"
    rmdir -- "${session%/*}" 2>/dev/null
  fi
done
exit 0
