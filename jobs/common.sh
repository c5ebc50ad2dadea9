# shellcheck shell=bash
# Shared by the job scripts: detects the scheduler, starts ranks on it, and acts on their exit code. Scripts that start
# ranks on this machine alone use trireme_nproc and trireme_allow_local.
# Sourced by bash 4 or newer. Environment:
#
#   TRIREME                 the program (else build/release/trireme of this tree, else trireme in PATH)
#   TRIREME_SITE            a preset of jobs/sites, sourced first
#   TRIREME_RANKS           ranks; by default as many as the scheduler gives tasks
#   TRIREME_NODES           nodes they run on
#   TRIREME_RANKS_PER_NODE  ranks on each of them
#   TRIREME_THREADS         cores of a rank
#   TRIREME_HARDWARE_THREADS  Slurm's CPUs per core: 2 where Slurm counts hardware threads, else 1
#   TRIREME_GPUS            GPUs used on each node, 0 by default; a rank takes the GPU of its local rank
#   TRIREME_SLURM_MPI       srun --mpi=...: pmix by default; `default` omits the option
#   TRIREME_MPIRUN          mpirun, mpiexec, ...; TRIREME_MPIRUN_STYLE: openmpi, hydra or pals, detected by default
#   TRIREME_LAUNCH_OPTIONS  more options for the launcher
#   TRIREME_CORES           cores of this machine, without a scheduler; nproc's by default
#   TRIREME_START_RETRIES   how often a start that crashes before the run begins is repeated, 2 by default
#   TRIREME_REQUEUE         0: the job never requeues itself

trireme_report() { printf 'jobs: %s\n' "$*"; }
trireme_fail() {
  printf 'jobs: error: %s\n' "$*" >&2
  return 1
}

# Prints slurm, pbs, lsf, flux or local. Flux comes first: a Flux instance may run inside another scheduler's allocation.
trireme_scheduler() {
  if [ -n "${FLUX_URI:-}" ]; then
    echo flux
  elif [ -n "${SLURM_JOB_ID:-}" ]; then
    echo slurm
  elif [ -n "${PBS_JOBID:-}" ]; then
    echo pbs
  elif [ -n "${LSB_JOBID:-}" ]; then
    echo lsf
  else
    echo local
  fi
}

# Prints the first argument that is not empty.
trireme_first() {
  local word
  for word in "$@"; do
    if [ -n "$word" ]; then
      echo "$word"
      return
    fi
  done
}

# Prints the number of usable cores of this machine. nproc would report OMP_NUM_THREADS where it is set.
trireme_nproc() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }
trireme_cores() { echo "${TRIREME_CORES:-$(trireme_nproc)}"; }

# Open MPI refuses root unless these are set; other launchers ignore them.
trireme_allow_root() {
  if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
}

# For scripts that start ranks on this machine by mpirun: Open MPI also refuses more ranks than cores.
trireme_allow_local() { # ranks
  trireme_allow_root
  if [ "$(trireme_nproc)" -lt "$1" ]; then export OMPI_MCA_rmaps_base_oversubscribe=1; fi
}

trireme_unique_lines() { sort -u "$1" | grep -c .; }

# Prints a line for each slot. With jsrun the first slot is the launch node's, on which no ranks run.
trireme_lsf_nodes() { # file
  local first count
  first=$(head -n 1 "$1")
  count=$(trireme_unique_lines "$1")
  if [ "$count" -gt 1 ] && command -v jsrun >/dev/null && [ "$(grep -cxF -- "$first" "$1")" -eq 1 ]; then
    count=$((count - 1))
  fi
  echo "$count"
}

# Sets nodes, ranks, ranks_per_node and threads from the user's variables, else from the scheduler's.
trireme_shape() {
  local given_nodes='' given_ranks='' given_per_node='' given_threads=''
  case $(trireme_scheduler) in
    slurm)
      given_nodes=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-}}
      given_ranks=${SLURM_NTASKS:-}
      given_per_node=${SLURM_NTASKS_PER_NODE:-}
      [ -z "${SLURM_CPUS_PER_TASK:-}" ] || given_threads=$((SLURM_CPUS_PER_TASK / ${TRIREME_HARDWARE_THREADS:-1}))
      ;;
    pbs)
      if [ -r "${PBS_NODEFILE:-}" ]; then  # a line for each rank, where mpiprocs= asked for several
        given_nodes=$(trireme_unique_lines "$PBS_NODEFILE")
        given_ranks=$(grep -c . "$PBS_NODEFILE")
      fi
      given_threads=${OMP_NUM_THREADS:-${NCPUS:-}}
      ;;
    lsf)
      [ ! -r "${LSB_DJOB_HOSTFILE:-}" ] || given_nodes=$(trireme_lsf_nodes "$LSB_DJOB_HOSTFILE")
      ;;
    flux)
      given_nodes=$(flux resource list -n -o '{nnodes}' --states=free,allocated 2>/dev/null | tail -1)
      ;;
  esac
  nodes=$(trireme_first "${TRIREME_NODES:-}" "$given_nodes" 1)
  ranks_per_node=$(trireme_first "${TRIREME_RANKS_PER_NODE:-}" "$given_per_node")
  if [ -n "${TRIREME_RANKS:-}" ]; then
    ranks=$TRIREME_RANKS
  elif [ -n "${TRIREME_RANKS_PER_NODE:-}" ]; then
    ranks=$((nodes * ranks_per_node))
  else
    ranks=$(trireme_first "$given_ranks" $((nodes * ${ranks_per_node:-1})))
  fi
  # Fewer ranks than the allocation has slots use as few nodes as possible.
  if [ -z "${TRIREME_NODES:-}" ] && [ -n "$ranks_per_node" ]; then
    local enough=$(((ranks + ranks_per_node - 1) / ranks_per_node))
    [ "$enough" -ge "$nodes" ] || nodes=$enough
  fi
  local even=$(((ranks + nodes - 1) / nodes))
  if [ -z "$ranks_per_node" ] || [ "$ranks_per_node" -gt "$even" ]; then ranks_per_node=$even; fi
  threads=$(trireme_first "${TRIREME_THREADS:-}" "$given_threads" "${OMP_NUM_THREADS:-}" 1)
  local number
  for number in "$nodes" "$ranks" "$ranks_per_node" "$threads" "${TRIREME_GPUS:-0}"; do
    [[ $number =~ ^[0-9]+$ ]] || trireme_fail "'$number' is not a number of nodes, ranks, threads or GPUs" || return
  done
  if [ $((nodes * ranks_per_node)) -lt "$ranks" ]; then
    trireme_fail "$ranks ranks do not fit $nodes nodes with $ranks_per_node on each"
    return
  fi
  if [ "${TRIREME_GPUS:-0}" -gt 0 ] && [ "$ranks_per_node" -gt "$TRIREME_GPUS" ]; then
    trireme_fail "$ranks_per_node ranks on a node would share its $TRIREME_GPUS GPUs: use one rank for each GPU"
  fi
}

# Sets the array launch to the command that starts the ranks. Consecutive ranks share a node, as tensor groups should.
trireme_slurm() {
  # Since Slurm 22.05 srun does not inherit the job's --cpus-per-task. Without this each rank gets one core.
  export SRUN_CPUS_PER_TASK=$((threads * ${TRIREME_HARDWARE_THREADS:-1}))
  launch=(srun)
  [ "${TRIREME_SLURM_MPI:-pmix}" = default ] || launch+=("--mpi=${TRIREME_SLURM_MPI:-pmix}")
  # When a rank dies, the others must end soon. Killing the step at its
  # first exit code above 0 could cut off ranks that are about to exit with 75.
  launch+=("--nodes=$nodes" "--ntasks=$ranks" "--ntasks-per-node=$ranks_per_node" --cpu-bind=cores
    --distribution=block:block --kill-on-bad-exit=0 --wait=60)
  [ "${TRIREME_GPUS:-0}" -eq 0 ] || launch+=("--gpus-per-node=$TRIREME_GPUS" --gpu-bind=none)
}

trireme_mpirun_style() {
  local version
  if [ -n "${TRIREME_MPIRUN_STYLE:-}" ]; then
    echo "$TRIREME_MPIRUN_STYLE"
    return
  fi
  version=$("$1" --version 2>&1) || true
  case $version in
    *"Open MPI"* | *OpenRTE* | *PRRTE*) echo openmpi ;;
    *PALS*) echo pals ;;
    *) echo hydra ;;
  esac
}

trireme_mpirun() {
  local mpirun=${TRIREME_MPIRUN:-mpirun} name
  launch=("$mpirun" -n "$ranks")
  case $(trireme_mpirun_style "$mpirun") in
    openmpi)
      trireme_allow_root
      if [ "$(trireme_scheduler)" = local ] && [ $((ranks_per_node * threads)) -gt "$(trireme_cores)" ]; then
        launch+=(--oversubscribe --bind-to none)
      else
        launch+=(--map-by "ppr:$ranks_per_node:node:PE=$threads" --bind-to core)
      fi
      [ ! -r "${PBS_NODEFILE:-}" ] || launch+=(--hostfile "$PBS_NODEFILE")
      # By default it passes no variables to other nodes.
      if [ "$nodes" -gt 1 ]; then
        for name in $(compgen -e | grep -E '^(TRIREME|OMP|HDF5)_' | sort); do launch+=(-x "$name"); done
      fi
      ;;
    pals) launch+=(--ppn "$ranks_per_node" --depth "$threads" --cpu-bind depth) ;;
    hydra)
      export I_MPI_PIN_DOMAIN=$threads  # Intel's
      launch+=(-ppn "$ranks_per_node" -bind-to "core:$threads")
      ;;
    *) trireme_fail "TRIREME_MPIRUN_STYLE=$TRIREME_MPIRUN_STYLE: it is openmpi, hydra or pals" ;;
  esac
}

trireme_lsf() {
  if ! command -v jsrun >/dev/null; then
    trireme_mpirun
    return
  fi
  # One resource set a node, so that its ranks share memory and see every GPU.
  launch=(jsrun --nrs "$nodes" --rs_per_host 1 --tasks_per_rs "$ranks_per_node"
    --cpu_per_rs $((ranks_per_node * threads)) --gpu_per_rs "${TRIREME_GPUS:-0}" --launch_distribution packed
    --bind "packed:$threads")
}

trireme_flux() {
  launch=(flux run --nodes "$nodes" --ntasks "$ranks" --cores-per-task "$threads" -o cpu-affinity=per-task)
  [ "${TRIREME_GPUS:-0}" -eq 0 ] || launch+=(--gpus-per-task 1 -o gpu-affinity=off)
}

# Sets launch to everything before the program's arguments, and OMP_NUM_THREADS.
trireme_prepare() {
  local here tree
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  if [ -n "${TRIREME_SITE:-}" ]; then
    if [ ! -r "$here/sites/$TRIREME_SITE.sh" ]; then
      trireme_fail "TRIREME_SITE=$TRIREME_SITE: there is no $here/sites/$TRIREME_SITE.sh"
      return
    fi
    # shellcheck disable=SC1090
    source "$here/sites/$TRIREME_SITE.sh" || return
  fi
  tree=$(dirname "$here")/build/release/trireme
  program=${TRIREME:-}
  [ -n "$program" ] || program=$([ -x "$tree" ] && echo "$tree" || echo trireme)
  trireme_shape || return
  export OMP_NUM_THREADS=$threads
  launch=()
  case $(trireme_scheduler) in
    slurm) trireme_slurm ;;
    lsf) trireme_lsf ;;
    flux) trireme_flux ;;
    *) trireme_mpirun ;;
  esac || return
  local more=()
  read -r -a more <<<"${TRIREME_LAUNCH_OPTIONS:-}"
  launch+=("${more[@]}" "$program")
}

# Starts the program on all ranks and returns its exit code. Signals to this shell are forwarded to the launcher,
# which forwards them to the ranks. SIGTERM becomes SIGUSR1, since mpirun would not leave ranks the time to save.
trireme_launch() {
  local child code=0 signal=''
  trireme_prepare || return
  if [ -n "${TRIREME_DRY_RUN:-}" ]; then
    printf 'OMP_NUM_THREADS=%s ' "$threads"
    printf '%q ' "${launch[@]}" "$@"
    echo
    return
  fi
  trap 'signal=USR1; kill -USR1 "$child" 2>/dev/null || true' USR1 TERM
  trap 'signal=USR2; kill -USR2 "$child" 2>/dev/null || true' USR2
  "${launch[@]}" "$@" </dev/null &
  child=$!
  # A signal interrupts the wait before the child ends.
  while :; do
    signal=''
    code=0
    wait "$child" || code=$?
    [ -n "$signal" ] || break
  done
  trap - USR1 TERM USR2
  return "$code"
}

# Prints the newest attempt of a run folder, or nothing if there is none.
trireme_attempt() {
  local attempt newest=''
  for attempt in "$1"/attempts/*; do
    [ ! -d "$attempt" ] || newest=$attempt
  done
  echo "$newest"
}

# Trains on all ranks and returns the exit code. MPI libraries sometimes crash in MPI_Init, more often with more
# ranks. A start that dies so (SIGABRT, SIGBUS, SIGSEGV) before the run's record begins is repeated.
trireme_train() { # run folder, arguments
  local folder=$1 before code tries=${TRIREME_START_RETRIES:-2}
  shift
  while :; do
    before=$(trireme_attempt "$folder")
    code=0
    trireme_launch train "$@" || code=$?
    case $code in 134 | 135 | 139) ;; *) return "$code" ;; esac
    if [ "$tries" -le 0 ] || [ "$(trireme_attempt "$folder")" != "$before" ]; then return "$code"; fi
    tries=$((tries - 1))
    trireme_report "exit code $code before the run began: started again"
  done
}

# Sets folder to the run folder of train's arguments: from the flag or the variable, else as the program, on one rank,
# resolves it from the other sources.
trireme_output() {
  local word previous='' found='' errors
  for word in "$@"; do
    [ "$previous" != --train.output ] || found=$word
    case $word in --train.output=*) found=${word#*=} ;; esac
    previous=$word
  done
  folder=$(trireme_first "$found" "${TRIREME_TRAIN_OUTPUT:-}")
  [ -z "$folder" ] || return 0
  errors=$(mktemp) || return
  folder=$("$program" train --show train.output "$@" 2>"$errors" </dev/null) || folder=
  if [ -z "$folder" ]; then
    cat "$errors" >&2
    trireme_fail "$program does not report train.output; name the run folder with --train.output"
  fi
  rm -f "$errors"
  [ -n "$folder" ]
}

# Prints the step of the newest checkpoint of a run folder, -1 if there is none.
trireme_step() {
  local folder newest=-1 step
  for folder in "$1"/step-*; do
    step=${folder##*/step-}
    [[ $step =~ ^[0-9]+$ ]] || continue
    step=$((10#$step))
    [ "$step" -le "$newest" ] || newest=$step
  done
  echo "$newest"
}

trireme_counted() { # number, singular
  printf '%s %s%s' "$1" "$2" "$([ "$1" = 1 ] || echo s)"
}

trireme_checkpoint() { # step
  [ "$1" -ge 0 ] && echo "checkpoint of step $1" || echo "no checkpoint"
}

# Requeues the job by the scheduler's command. Where there is none, a chained job reads the exit code.
# Sets code if the scheduler requeues by exit code.
trireme_requeue() {
  case $(trireme_scheduler) in
    slurm)
      if scontrol requeue "$SLURM_JOB_ID"; then
        trireme_report "job $SLURM_JOB_ID goes back to the queue"
      else
        trireme_report "Slurm does not take the job back (was it submitted with --requeue?): submit it again"
      fi
      ;;
    lsf)
      code=75
      trireme_report "exit code 75: LSF takes the job back (bsub -Q 75)"
      ;;
    *) trireme_report "submit it again, or chain jobs with a dependency: it continues where it stopped" ;;
  esac
}

# LSF requeues a job because of its exit code alone.
trireme_stay() {
  [ "$code" -eq 75 ] && [ "$(trireme_scheduler)" = lsf ] || return 0
  code=1
  trireme_report "exit code 1 in place of 75, for which LSF would take the job back"
}

# Removes what killed jobs left on this job's nodes: srun reaches all of them, other schedulers' scripts the first.
trireme_clean() {
  local script
  script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/clean.sh
  if [ "$(trireme_scheduler)" = slurm ] && [ "$nodes" -gt 1 ]; then
    srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpus-per-task=1 bash "$script" </dev/null || true
  else
    bash "$script" || true
  fi
}

# Trains, and requeues the job when training ended before its last step: saved in time (75), or after a
# failure that left a later checkpoint than at the start. A start without progress is not repeated.
trireme_job() {
  local folder before after code=0 arguments=()
  if [ $# -eq 0 ]; then read -r -a arguments <<<"${TRIREME_ARGUMENTS:-}" && set -- "${arguments[@]}"; fi
  trireme_prepare || return
  # A launcher's option may name a container, which has its own files.
  if [ -z "${TRIREME_DRY_RUN:-}${TRIREME_LAUNCH_OPTIONS:-}" ] && ! command -v "$program" >/dev/null; then
    trireme_fail "$program: there is no such program; build it with \`make build\`, or name it in TRIREME"
    return
  fi
  trireme_output "$@" || return
  before=$(trireme_step "$folder")
  trireme_report "$(date -u +%Y-%m-%dT%H:%M:%SZ) $(trireme_counted "$ranks" rank) on $(trireme_counted "$nodes" node), $(trireme_counted "$threads" thread) each," \
    "$(trireme_checkpoint "$before"): $(printf '%q ' "${launch[@]}" train "$@")"
  [ -n "${TRIREME_DRY_RUN:-}" ] || trireme_clean
  trireme_train "$folder" "$@" || code=$?
  after=$(trireme_step "$folder")
  trireme_report "$(date -u +%Y-%m-%dT%H:%M:%SZ) exit code $code, $(trireme_checkpoint "$after")"
  [ "$code" -ne 0 ] || return 0
  if [ "$after" -gt "$before" ] && [ "${TRIREME_REQUEUE:-1}" != 0 ]; then
    trireme_requeue
  else
    if [ "$code" -eq 75 ] && [ "$after" -le "$before" ]; then
      trireme_report "no step was made in this start, so the next would do no better: give it a longer time limit"
    fi
    trireme_stay
  fi
  return "$code"
}
