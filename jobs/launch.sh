#!/usr/bin/env bash
# Starts the program once on the ranks of this allocation or machine. TRIREME_DRY_RUN=1 prints the command:
#
#   TRIREME_RANKS=4 jobs/launch.sh evaluate --checkpoint run
set -euo pipefail
# shellcheck source=jobs/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = train ] && [ -z "${TRIREME_DRY_RUN:-}" ]; then
  shift
  trireme_prepare
  folder=
  trireme_output "$@" || exit
  trireme_train "$folder" "$@"
else
  trireme_launch "$@"
fi
