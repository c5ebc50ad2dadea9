#!/usr/bin/env bash
# The launch command in each scheduler's environment, word by word, and refused mistakes. No scheduler is needed: the
# environment is simulated, and nothing is started.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir bin none
for tool in jsrun flux; do
  # shellcheck disable=SC2016
  printf '#!/bin/sh\n[ "$1 $2" != "resource list" ] || echo 2\n' >"bin/$tool"
  chmod +x "bin/$tool"
done
# The test's own environment must not show.
clean=(env -i "PATH=$PATH" TRIREME=trireme TRIREME_CORES=8 TRIREME_DRY_RUN=1 OMPI=1)
failures=0
check() { # description, expected line, VARIABLE=VALUE...
  local what=$1 expected=$2 found
  shift 2
  found=$("${clean[@]}" "$@" bash "$SOURCE/jobs/launch.sh" train --config a.toml 2>&1 | sed 's/ $//') || true
  if [ "$found" != "$expected" ]; then
    printf 'FAILED: %s\n  expected: %s\n  found:    %s\n' "$what" "$expected" "$found"
    failures=$((failures + 1))
  fi
}
slurm=(SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=4 SLURM_NTASKS=8 SLURM_NTASKS_PER_NODE=2 SLURM_CPUS_PER_TASK=16)
srun='--cpu-bind=cores --distribution=block:block --kill-on-bad-exit=0 --wait=60'

check "Slurm" "OMP_NUM_THREADS=16 srun --mpi=pmix --nodes=4 --ntasks=8 --ntasks-per-node=2 $srun trireme train --config a.toml" \
  "${slurm[@]}"
check "Slurm, tasks without a number per node" \
  "OMP_NUM_THREADS=1 srun --mpi=pmix --nodes=3 --ntasks=8 --ntasks-per-node=3 $srun trireme train --config a.toml" \
  SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=3 SLURM_NTASKS=8
check "Slurm, fewer ranks than the job has: fewest nodes" \
  "OMP_NUM_THREADS=16 srun --mpi=pmix --nodes=2 --ntasks=3 --ntasks-per-node=2 $srun trireme train --config a.toml" \
  "${slurm[@]}" TRIREME_RANKS=3
check "Slurm, one rank" \
  "OMP_NUM_THREADS=16 srun --mpi=pmix --nodes=1 --ntasks=1 --ntasks-per-node=1 $srun trireme train --config a.toml" \
  "${slurm[@]}" TRIREME_RANKS=1
check "Slurm, GPUs" \
  "OMP_NUM_THREADS=16 srun --mpi=pmix --nodes=4 --ntasks=8 --ntasks-per-node=2 $srun --gpus-per-node=2 --gpu-bind=none trireme train --config a.toml" \
  "${slurm[@]}" TRIREME_GPUS=2
check "Slurm, its own MPI and more options" \
  "OMP_NUM_THREADS=16 srun --nodes=4 --ntasks=8 --ntasks-per-node=2 $srun --exact -l trireme train --config a.toml" \
  "${slurm[@]}" TRIREME_SLURM_MPI=default "TRIREME_LAUNCH_OPTIONS=--exact -l"
check "Slurm that counts hardware threads" \
  "OMP_NUM_THREADS=8 srun --mpi=pmix --nodes=4 --ntasks=8 --ntasks-per-node=2 $srun trireme train --config a.toml" \
  "${slurm[@]}" TRIREME_HARDWARE_THREADS=2
check "ranks that would share GPUs" "jobs: error: 2 ranks on a node would share its 1 GPUs: use one rank for each GPU" \
  "${slurm[@]}" TRIREME_GPUS=1
check "ranks that do not fit" "jobs: error: 9 ranks do not fit 4 nodes with 2 on each" "${slurm[@]}" TRIREME_RANKS=9 TRIREME_NODES=4
check "not a number" "jobs: error: 'four' is not a number of nodes, ranks, threads or GPUs" "${slurm[@]}" TRIREME_THREADS=four

printf 'n1\nn1\nn2\nn2\n' >nodes
check "PBS, Open MPI" \
  "OMP_NUM_THREADS=8 mpirun -n 4 --map-by ppr:2:node:PE=8 --bind-to core --hostfile $work/nodes -x OMP_NUM_THREADS -x TRIREME_CORES -x TRIREME_DRY_RUN -x TRIREME_MPIRUN_STYLE trireme train --config a.toml" \
  PBS_JOBID=1.server "PBS_NODEFILE=$work/nodes" OMP_NUM_THREADS=8 TRIREME_MPIRUN_STYLE=openmpi
check "PBS, PALS" "OMP_NUM_THREADS=8 mpiexec -n 4 --ppn 2 --depth 8 --cpu-bind depth trireme train --config a.toml" \
  PBS_JOBID=1.server "PBS_NODEFILE=$work/nodes" OMP_NUM_THREADS=8 TRIREME_MPIRUN_STYLE=pals TRIREME_MPIRUN=mpiexec
check "PBS, MPICH and Intel MPI" "OMP_NUM_THREADS=8 mpirun -n 4 -ppn 2 -bind-to core:8 trireme train --config a.toml" \
  PBS_JOBID=1.server "PBS_NODEFILE=$work/nodes" OMP_NUM_THREADS=8 TRIREME_MPIRUN_STYLE=hydra
check "a style that is none" "jobs: error: TRIREME_MPIRUN_STYLE=mine: it is openmpi, hydra or pals" TRIREME_MPIRUN_STYLE=mine

printf 'batch1\nc1\nc1\nc2\nc2\n' >hosts
check "LSF, jsrun" \
  "OMP_NUM_THREADS=7 jsrun --nrs 2 --rs_per_host 1 --tasks_per_rs 6 --cpu_per_rs 42 --gpu_per_rs 6 --launch_distribution packed --bind packed:7 trireme train --config a.toml" \
  "PATH=$work/bin:$PATH" LSB_JOBID=3 "LSB_DJOB_HOSTFILE=$work/hosts" TRIREME_RANKS_PER_NODE=6 TRIREME_THREADS=7 TRIREME_GPUS=6
printf 'launcher\nbatch2\nbatch2\nbatch3\nbatch3\n' >hosts
check "LSF, jsrun, nodes that are named after batch" \
  "OMP_NUM_THREADS=1 jsrun --nrs 2 --rs_per_host 1 --tasks_per_rs 2 --cpu_per_rs 2 --gpu_per_rs 0 --launch_distribution packed --bind packed:1 trireme train --config a.toml" \
  "PATH=$work/bin:$PATH" LSB_JOBID=3 "LSB_DJOB_HOSTFILE=$work/hosts" TRIREME_RANKS_PER_NODE=2
printf 'batch1\nbatch2\nbatch2\n' >hosts
check "LSF, mpirun" "OMP_NUM_THREADS=1 mpirun -n 2 -ppn 1 -bind-to core:1 trireme train --config a.toml" \
  LSB_JOBID=3 "LSB_DJOB_HOSTFILE=$work/hosts" TRIREME_RANKS_PER_NODE=1 TRIREME_MPIRUN_STYLE=hydra
check "Flux, inside a Slurm job" \
  "OMP_NUM_THREADS=3 flux run --nodes 2 --ntasks 8 --cores-per-task 3 -o cpu-affinity=per-task --gpus-per-task 1 -o gpu-affinity=off trireme train --config a.toml" \
  "PATH=$work/bin:$PATH" FLUX_URI=local:///x SLURM_JOB_ID=7 TRIREME_RANKS_PER_NODE=4 TRIREME_THREADS=3 TRIREME_GPUS=4

check "this machine" "OMP_NUM_THREADS=2 mpirun -n 4 --map-by ppr:4:node:PE=2 --bind-to core trireme train --config a.toml" \
  TRIREME_RANKS=4 TRIREME_THREADS=2 TRIREME_MPIRUN_STYLE=openmpi
check "this machine, more threads than cores" \
  "OMP_NUM_THREADS=3 mpirun -n 4 --oversubscribe --bind-to none trireme train --config a.toml" \
  TRIREME_RANKS=4 TRIREME_THREADS=3 TRIREME_MPIRUN_STYLE=openmpi
check "a list of hosts" \
  "OMP_NUM_THREADS=3 mpirun -n 4 --map-by ppr:2:node:PE=3 --bind-to core -x OMP_NUM_THREADS -x TRIREME_CORES -x TRIREME_DRY_RUN -x TRIREME_LAUNCH_OPTIONS -x TRIREME_MPIRUN_STYLE -x TRIREME_NODES -x TRIREME_RANKS -x TRIREME_THREADS --hostfile hosts trireme train --config a.toml" \
  TRIREME_NODES=2 TRIREME_RANKS=4 TRIREME_THREADS=3 "TRIREME_LAUNCH_OPTIONS=--hostfile hosts" TRIREME_MPIRUN_STYLE=openmpi
check "no such site" "jobs: error: TRIREME_SITE=atlantis: there is no $SOURCE/jobs/sites/atlantis.sh" TRIREME_SITE=atlantis

# srun does not inherit --cpus-per-task: the variable that passes it is exported.
# shellcheck disable=SC2016
shown=$("${clean[@]}" "${slurm[@]}" bash -c 'source "$0/jobs/common.sh" && trireme_prepare && printenv SRUN_CPUS_PER_TASK' "$SOURCE" || true)
[ "$shown" = 16 ] || { echo "FAILED: SRUN_CPUS_PER_TASK is '$shown'"; failures=1; }

# A start that crashes before the run has a record is repeated; a crash of a started run is not.
cat >bin/mpirun <<'EOF2'
#!/bin/sh
shift 6  # -n 1 -ppn 1 -bind-to core:1
exec "$@"
EOF2
cat >bin/crashing <<'EOF2'
#!/bin/sh
echo start >>starts
[ "$(grep -c . starts)" -lt "$BEGINS" ] || mkdir -p run/attempts/0001
[ "$(grep -c . starts)" -lt "$WORKS" ] || exit 75
kill -SEGV $$
EOF2
chmod +x bin/mpirun bin/crashing
crashes() { # begins with start, works with start, starts expected, exit code expected
  local code=0
  rm -rf run starts
  env -i "PATH=$work/bin:$PATH" TRIREME=crashing TRIREME_MPIRUN_STYLE=hydra BEGINS="$1" WORKS="$2" \
    bash "$SOURCE/jobs/local.sh" --train.output run >out 2>&1 || code=$?
  if [ "$code" -ne "$4" ] || [ "$(grep -c . starts)" -ne "$3" ]; then
    echo "FAILED: begins with start $1, works with start $2: $(grep -c . starts) starts, exit code $code"
    cat out
    failures=$((failures + 1))
  fi
}
crashes 1 1 1 75
crashes 3 3 3 75
crashes 9 9 3 139
crashes 2 9 2 139

# The run folder, if only the configuration names it: the program is asked, and without its answer nothing is guessed.
# Under LSF the exit code is 75 only if the job must return to the queue.
cat >bin/asked <<'EOF2'
#!/bin/sh
if [ "$2" = --show ]; then
  [ -n "$FOLDER" ] && printf '%s\n' "$FOLDER" && exit 0
  echo 'trireme: error: run.toml: cannot be read' >&2
  exit 1
fi
echo start >>starts
[ -z "$STEP" ] || mkdir -p "$FOLDER/step-$STEP"
exit "$CODE"
EOF2
chmod +x bin/asked
job() { # what, exit code expected, words expected in the output, VARIABLE=VALUE...
  local what=$1 expected=$2 words=$3 code=0
  shift 3
  rm -rf 'a "run"' starts
  env -i "PATH=$work/bin:$PATH" TRIREME=asked TRIREME_MPIRUN_STYLE=hydra CODE=0 STEP='' FOLDER='a "run"' "$@" \
    bash "$SOURCE/jobs/local.sh" --config run.toml >out 2>&1 || code=$?
  if [ "$code" -ne "$expected" ] || [ "$(grep -cF -- "$words" out)" -eq 0 ]; then
    echo "FAILED: $what: exit code $code, and not $expected and '$words':"
    cat out
    failures=$((failures + 1))
  fi
}
lsf=(LSB_JOBID=3 "LSB_DJOB_HOSTFILE=$work/hosts" TRIREME_RANKS=1 TRIREME_NODES=1)
rm bin/jsrun
job "a folder that the file names" 75 "exit code 75, checkpoint of step 40" CODE=75 STEP=0040
[ -d 'a "run"/step-0040' ] || { echo "FAILED: the stub's folder"; failures=1; }
job "that folder, after a stop" 75 "submit it again" CODE=75 STEP=0040
job "a folder that the program does not report" 1 "jobs: error: asked does not report train.output" FOLDER= CODE=75
[ ! -e starts ] || { echo "FAILED: it was started with a guess"; failures=1; }
job "no program" 1 'jobs: error: missing: there is no such program; build it with' TRIREME=missing
job "no checkpoint" 3 "exit code 3, no checkpoint" CODE=3
job "LSF, saved" 75 "LSF takes the job back" "${lsf[@]}" CODE=75 STEP=0040
job "LSF, crashed after a checkpoint" 75 "LSF takes the job back" "${lsf[@]}" CODE=1 STEP=0040
job "LSF, nothing gained" 1 "exit code 1 in place of 75" "${lsf[@]}" CODE=75
job "LSF, not to go back" 1 "exit code 1 in place of 75" "${lsf[@]}" CODE=75 STEP=0040 TRIREME_REQUEUE=0
job "LSF, crashed with nothing gained" 3 "exit code 3" "${lsf[@]}" CODE=3
job "LSF, done" 0 "exit code 0" "${lsf[@]}" STEP=0040

# Slurm runs a copy of jobs/slurm.sh: common.sh is found through the submitted command line, spaces included.
mkdir 'a tree' spool
ln -s "$SOURCE/jobs" 'a tree/jobs'
cp "$SOURCE/jobs/slurm.sh" spool/script
# shellcheck disable=SC2016
printf '#!/bin/sh\nprintf "JobId=7 JobName=x\\n   Command=%%s\\n   WorkDir=/\\n" "$LINE"\n' >bin/scontrol
chmod +x bin/scontrol
for line in "$work/a tree/jobs/slurm.sh" "$work/a tree/jobs/slurm.sh --train.output x --config a b" "$SOURCE/jobs/slurm.sh --train.output x"; do
  found=$("${clean[@]}" "${slurm[@]}" "PATH=$work/bin:$PATH" "LINE=$line" bash spool/script --train.output x 2>&1) || true
  case $found in
    *"OMP_NUM_THREADS=16 srun --mpi=pmix"*) ;;
    *) echo "FAILED: slurm.sh submitted as $line: $found"; failures=1 ;;
  esac
done

# The tests under Slurm leave a cluster alone that they did not start.
if [ "$(id -u)" -eq 0 ]; then
  mkdir cluster
  echo 1 >cluster/count
  for tool in ip tc slurmctld slurmd munged sinfo; do printf '#!/bin/sh\nexit 0\n' >"bin/$tool" && chmod +x "bin/$tool"; done
  code=0
  PATH=$work/bin:$PATH TRIREME_CLUSTER_STATE=$work/cluster bash "$SOURCE/tests/slurm/run.sh" bin/sinfo unconnected >out 2>&1 || code=$?
  if [ "$code" -eq 0 ] || [ ! -s cluster/count ] || [ "$(grep -c "cluster.sh down" out)" -eq 0 ]; then
    echo "FAILED: a cluster that is up already: exit code $code"
    cat out
    failures=1
  fi
fi

# Every site's preset can be read inside a job of its scheduler and names the system.
for site in "$SOURCE"/jobs/sites/*.sh; do
  # shellcheck disable=SC2016
  "${clean[@]}" "${slurm[@]}" "TRIREME_SITE=$(basename "$site" .sh)" bash -c '
    module() { :; }
    source "$0/jobs/common.sh" && trireme_prepare >/dev/null && [ "${#launch[@]}" -gt 3 ]' "$SOURCE" ||
    { echo "FAILED: $site"; failures=$((failures + 1)); }
  grep -c 'Not tested there' "$site" >/dev/null || { echo "FAILED: $site does not state that it is untested"; failures=$((failures + 1)); }
done

# The scripts pass shellcheck.
if command -v shellcheck >/dev/null; then
  (cd "$SOURCE" && shellcheck -x jobs/*.sh jobs/sites/*.sh tests/jobs/*.sh tests/slurm/*.sh) || failures=$((failures + 1))
else
  echo "shellcheck is not installed: scripts are not checked"
fi
[ "$failures" -eq 0 ] || exit 1
echo ok
