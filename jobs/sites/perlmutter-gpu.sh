# shellcheck shell=bash
# Perlmutter's GPU nodes (NERSC): HPE Cray EX, Slurm, Cray MPICH. A node: one EPYC 7763 of 64 cores with two hardware
# threads each, 256 GB, 4 A100. From NERSC's public documentation. Not tested there.
#
#   module load PrgEnv-gnu cudatoolkit craype-accel-nvidia80 cray-hdf5 cudnn
#   TRIREME_SITE=perlmutter-gpu sbatch -A ACCOUNT -C gpu -q regular -N 8 --ntasks-per-node 4 --cpus-per-task 32 \
#     --gpus-per-node 4 -t 2:00:00 jobs/slurm.sh --device cuda ...
: "${TRIREME_HARDWARE_THREADS:=2}"  # of a core: Slurm counts them there, Trireme counts cores
: "${TRIREME_SLURM_MPI:=default}"
: "${TRIREME_GPUS:=4}"
export MPICH_GPU_SUPPORT_ENABLED=1  # MPI takes pointers of the GPU
