# shellcheck shell=bash
# MareNostrum 5, general purpose partition (BSC): Slurm, InfiniBand. A node: two Xeon Platinum 8480+, 112 cores with
# AMX, 256 GB and more. From BSC's public documentation. Not tested there.
#
#   module load gcc openmpi hdf5                # names and versions: module avail
#   TRIREME_SITE=marenostrum5-gpp sbatch -A ACCOUNT -q gp_QUEUE -N 8 --ntasks-per-node 8 --cpus-per-task 14 \
#     -t 2:00:00 jobs/slurm.sh ...
: "${TRIREME_SLURM_MPI:=pmix}"
