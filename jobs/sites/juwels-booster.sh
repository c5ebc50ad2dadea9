# shellcheck shell=bash
# JUWELS Booster (JSC): Slurm with ParaStation's psslurm, InfiniBand. A node: two EPYC 7402, 48 cores with two hardware
# threads each, 512 GB, 4 A100 of 40 GB. From JSC's public documentation. Not tested there.
#
#   module load GCC OpenMPI HDF5 CUDA cuDNN     # and oneDNN of your own: cmake -DDNNL_ROOT=...
#   TRIREME_SITE=juwels-booster sbatch -A ACCOUNT -p booster -N 8 --ntasks-per-node 4 --cpus-per-task 24 \
#     --gres gpu:4 -t 2:00:00 jobs/slurm.sh --device cuda ...
: "${TRIREME_HARDWARE_THREADS:=2}"  # of a core: Slurm counts them there, Trireme counts cores
: "${TRIREME_SLURM_MPI:=pspmix}"  # psslurm's; with ParaStation MPI instead of Open MPI: default
: "${TRIREME_GPUS:=4}"
