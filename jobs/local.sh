#!/usr/bin/env bash
# Trains on this machine, each rank bound to its cores. SIGUSR1 or SIGTERM saves and ends with exit code 75.
#
#   TRIREME_RANKS=4 TRIREME_THREADS=8 jobs/local.sh --config run.toml
set -euo pipefail
# shellcheck source=jobs/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
trireme_job "$@"
