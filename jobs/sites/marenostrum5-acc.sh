# shellcheck shell=bash
# MareNostrum 5, accelerated partition (BSC): Slurm, InfiniBand. A node: two Xeon Platinum 8460Y+, 80 cores, 512 GB,
# 4 H100 of 64 GB; 20 cores are to be asked for with each GPU. From BSC's public documentation. Not tested there.
#
#   module load gcc openmpi hdf5 cuda cudnn     # names and versions: module avail
#   TRIREME_SITE=marenostrum5-acc sbatch -A ACCOUNT -q acc_QUEUE -N 8 --ntasks-per-node 4 --cpus-per-task 20 \
#     --gres gpu:4 -t 2:00:00 jobs/slurm.sh --device cuda ...
: "${TRIREME_SLURM_MPI:=pmix}"
: "${TRIREME_GPUS:=4}"
