# shellcheck shell=bash
# Perlmutter's CPU nodes (NERSC): HPE Cray EX, Slurm, Cray MPICH. A node: two EPYC 7763, 128 cores with two hardware
# threads each, 512 GB, 8 NUMA domains. From NERSC's public documentation. Not tested there.
#
#   module load PrgEnv-gnu cray-hdf5            # and oneDNN of your own: cmake -DDNNL_ROOT=...
#   TRIREME_SITE=perlmutter-cpu sbatch -A ACCOUNT -C cpu -q regular -N 8 --ntasks-per-node 8 --cpus-per-task 32 \
#     -t 2:00:00 jobs/slurm.sh ...              # 16 cores
: "${TRIREME_HARDWARE_THREADS:=2}"  # of a core: Slurm counts them there, Trireme counts cores
: "${TRIREME_SLURM_MPI:=default}"
