# shellcheck shell=bash
# Tuolumne and El Capitan (LLNL): HPE Cray EX, Flux, Cray MPICH. A node: 4 MI300A of 24 cores each and 512 GB in all,
# of whose GPUs Trireme can make no use: CPUs only. From LLNL's public documentation. Not tested there.
#
#   TRIREME_SITE=tuolumne flux batch -N 8 -t 2h jobs/flux.sh --config run.toml
: "${TRIREME_RANKS_PER_NODE:=8}"
: "${TRIREME_THREADS:=10}"  # some cores are the system's
