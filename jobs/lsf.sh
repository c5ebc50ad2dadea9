#!/usr/bin/env bash
# Trains under LSF. Three minutes before the limit LSF sends a signal; the run saves and exits with 75, and LSF
# requeues the job, as it does after a crash that left a later checkpoint.
#
#   TRIREME_RANKS_PER_NODE=6 TRIREME_THREADS=7 TRIREME_ARGUMENTS="--config run.toml" bsub -nnodes 4 -W 120 <jobs/lsf.sh
#
# Submit it in the folder above jobs, or name that of common.sh in TRIREME_JOBS.
#BSUB -J trireme
#BSUB -o trireme-%J.out
#BSUB -r
#BSUB -Q 75
#BSUB -wa USR1
#BSUB -wt 3
set -euo pipefail
# shellcheck source=jobs/common.sh
source "${TRIREME_JOBS:-${LS_SUBCWD:-$PWD}/jobs}/common.sh"
trireme_job "$@"
