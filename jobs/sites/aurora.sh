# shellcheck shell=bash
# Aurora (ALCF): HPE Cray EX, PBS, MPICH started by PALS' mpiexec. A node: two Xeon Max 9470C, 104 cores with AMX, 6
# GPUs of Intel's, which Trireme cannot use: CPUs only. From ALCF's public documentation. Not tested there.
#
#   TRIREME_SITE must reach the job: qsub -A PROJECT -q prod -l select=8 -l walltime=2:00:00 -l filesystems=flare \
#     -v TRIREME_SITE=aurora,TRIREME_NODES=8,TRIREME_ARGUMENTS="--config run.toml" jobs/pbs.sh
: "${TRIREME_MPIRUN:=mpiexec}"
: "${TRIREME_MPIRUN_STYLE:=pals}"
: "${TRIREME_RANKS_PER_NODE:=8}"
: "${TRIREME_THREADS:=13}"
