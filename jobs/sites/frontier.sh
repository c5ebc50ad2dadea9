# shellcheck shell=bash
# Frontier (OLCF): HPE Cray EX, Slurm, Cray MPICH. A node: one EPYC 7A53 of 64 cores, of which 56 are left to jobs by
# default (the first of each L3 group is the system's), 512 GB, 8 GPU dies of 4 MI250X, which Trireme cannot use: CPUs
# only. From OLCF's public user guide. Not tested there.
#
#   module load PrgEnv-gnu cray-hdf5            # and oneDNN of your own: cmake -DDNNL_ROOT=...
#   TRIREME_SITE=frontier sbatch -A ACCOUNT -N 8 --ntasks-per-node 8 --cpus-per-task 7 -t 2:00:00 jobs/slurm.sh ...
: "${TRIREME_SLURM_MPI:=default}"  # Cray MPICH starts by Slurm's own
