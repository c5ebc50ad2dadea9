#!/usr/bin/env bash
# Regenerates docs/example-report: a scaling study over 1, 2 and 4 ranks in three layouts, as jobs of a Slurm of four
# nodes on this machine (tests/slurm/cluster.sh; needs root and scripts/deps.sh slurm report), and its report.
#   scripts/example-report.sh [PROGRAM] [FOLDER]     build/release/trireme; the study stays in FOLDER, which is kept when given
# All four nodes share one machine's cores: the report shows the tool, not how the program scales.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
program=$(realpath "${1:-$source/build/release/trireme}")
if [ -n "${2:-}" ]; then
  work=$(mkdir -p "$2" && realpath "$2")
else
  work=$(mktemp -d /var/tmp/trireme-example.XXXXXX)  # nodes have a /tmp of their own
fi
cluster=$source/tests/slurm/cluster.sh
SLURM_CONF=$("$cluster" conf)
export SLURM_CONF TRIREME=$work/trireme TRIREME_CLUSTER_OWNER=$work TRIREME_POLL_SECONDS=2 PYTHONDONTWRITEBYTECODE=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive
# Each node would bind its rank to its first core, which is the same core of the machine for all of them.
export TRIREME_LAUNCH_OPTIONS=--cpu-bind=none
finish() {
  [ "$("$cluster" owner)" != "$work" ] || "$cluster" down
  [ -n "$kept" ] || rm -rf "$work"
}
kept=${2:-}
trap finish EXIT
trap 'exit 143' TERM INT HUP
cp "$program" "$work/trireme"
cp -r "$source/jobs" "$work"
"$cluster" up 4
"$cluster" rate 1gbit
cd "$work"
printf '%s\n' data 'zero1      --parallel.zero 1' 'pipeline2  --parallel.pipeline 2 --train.micro_batch 4' >layouts.txt
study() { # more flags
  jobs/scaling-study --mode strong --ranks 1,2,4 --batch 64 --steps 24 --repeats 3 --layouts layouts.txt --launcher slurm \
    --submit-option=--time=10 --output strong "$@" -- --model.layers 4 --model.width 128 --model.heads 4 --model.sequence 128 \
    --train.peak none
}
study | tee study.out || study --retry-failed | tee -a study.out
# The first round alone, to keep the page small; the table of all of them is in study.out.
(cd strong/runs && "$TRIREME" report strong-*-1 --html report.html --csv report.csv --json report.json | tee report.txt)
mv strong/runs/report.{html,csv,json} "$source/docs/example-report/"
mv strong/runs/report.txt .
echo "docs/example-report is new: look at its pictures, and name the machine in its README.md"
