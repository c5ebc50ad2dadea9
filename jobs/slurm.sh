#!/usr/bin/env bash
# Trains under Slurm. Three minutes before the limit the ranks are signaled; they save, and the job is requeued and
# continues, with the same job id and output file, until its last step:
#
#   sbatch --nodes 4 --ntasks-per-node 8 --cpus-per-task 16 --time 4:00:00 jobs/slurm.sh --config run.toml
#
# GPUs: --gpus-per-node 8, TRIREME_GPUS=8 and TRIREME=build/cuda/trireme. Arguments are those of `trireme train`;
# jobs/common.sh has the variables.
#SBATCH --job-name=trireme
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@180
set -euo pipefail
# Slurm runs a copy of this file, in another folder than common.sh. scontrol has the submitted command, which begins
# with the path of the file.
here=${TRIREME_JOBS:-}
if [ -z "$here" ]; then
  line=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')
  line=${line%%$'\n'*}
  script=${line%% *}
  while [ ! -f "$script" ] && [ "$script" != "$line" ]; do
    rest=${line#"$script "}
    script="$script ${rest%% *}"
  done
  here=$(dirname "$script")
fi
# shellcheck source=jobs/common.sh
source "$here/common.sh"
trireme_job "$@"
