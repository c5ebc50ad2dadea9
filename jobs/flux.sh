#!/usr/bin/env bash
# Trains under Flux, saves before the time limit and exits with 75. The run gets the remaining time; a second
# job depends on the first ending unfinished.
#
#   id=$(TRIREME_RANKS_PER_NODE=8 TRIREME_THREADS=7 flux batch -N 4 -t 2h jobs/flux.sh --config run.toml)
#   ... flux batch --dependency=afternotok:$id ...the same
#
# Submit it in the folder above jobs, or name that of common.sh in TRIREME_JOBS.
#flux: --job-name=trireme
#flux: --exclusive
set -euo pipefail
# shellcheck source=jobs/common.sh
source "${TRIREME_JOBS:-$PWD/jobs}/common.sh"
left=$(flux job timeleft 2>/dev/null || true)  # seconds
if [[ $left =~ ^[0-9]+$ ]]; then export TRIREME_TRAIN_TIME_LIMIT=${TRIREME_TRAIN_TIME_LIMIT:-$left}; fi
trireme_job "$@"
