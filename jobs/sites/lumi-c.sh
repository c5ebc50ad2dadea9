# shellcheck shell=bash
# LUMI-C (CSC): HPE Cray EX, Slurm, Cray MPICH. A node: two EPYC 7763, 128 cores, 256 GB and more, 8 NUMA domains. The
# GPUs of LUMI-G are MI250X, which Trireme cannot use. From LUMI's public documentation. Not tested there.
#
#   module load LUMI partition/C cpeGNU cray-hdf5   # and oneDNN of your own: cmake -DDNNL_ROOT=...
#   TRIREME_SITE=lumi-c sbatch -A project_NUMBER -p standard -N 8 --ntasks-per-node 8 --cpus-per-task 16 \
#     -t 2:00:00 jobs/slurm.sh ...
: "${TRIREME_SLURM_MPI:=default}"
