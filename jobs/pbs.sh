#!/usr/bin/env bash
# Trains under PBS, saves before the time limit and exits with 75. PBS neither warns nor requeues by
# itself: the run gets the time limit, and a second job depends on the first ending unfinished.
#
#   id=$(qsub -l select=4:ncpus=128:mpiprocs=8:ompthreads=16 -l walltime=4:00:00 \
#     -v TRIREME_ARGUMENTS="--config run.toml" jobs/pbs.sh)
#   qsub -W depend=afternotok:$id ...the same
#
# Submit it in the folder above jobs, or name that of common.sh in TRIREME_JOBS.
#PBS -N trireme
#PBS -j oe
#PBS -r y
set -euo pipefail
cd "$PBS_O_WORKDIR"
# shellcheck source=jobs/common.sh
source "${TRIREME_JOBS:-$PBS_O_WORKDIR/jobs}/common.sh"
limit=$(qstat -f "$PBS_JOBID" 2>/dev/null | sed -n 's/^ *Resource_List.walltime = //p')
[ -z "$limit" ] || export TRIREME_TRAIN_TIME_LIMIT=${TRIREME_TRAIN_TIME_LIMIT:-$limit}
trireme_job "$@"
