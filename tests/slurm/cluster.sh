#!/usr/bin/env bash
# A Slurm cluster of several nodes on one machine, for tests; needs root. A node is a network namespace with its own
# address, host name, /tmp and /dev/shm, and a real slurmd; slurmctld and munged run outside. Jobs use sbatch, srun
# --mpi=pmix and TCP between nodes, as on a cluster.
#
#   cluster.sh up [NODES=4] [CPUS]     start it; each node claims CPUS cores, 4 by default. With this machine's number
#                                      tasks are bound to cores; otherwise they cannot be
#   cluster.sh down                    stop it and remove what it left
#   cluster.sh owner                   what TRIREME_CLUSTER_OWNER was when it was started; nothing when it is down
#   cluster.sh status                  sinfo and squeue
#   cluster.sh rate RATE               limit what each node sends: 1gbit, 100mbit, 10mbit; off: no limit
#   cluster.sh sent                    lines "node bytes": what each node has sent since it came up
#   cluster.sh kill N                  end every process on node N at once, as a crash does
#   cluster.sh revive N                start its slurmd again
#   cluster.sh on N COMMAND...         run a command on node N
#
# Slurm's own commands find it by its configuration: export SLURM_CONF=$(cluster.sh conf). A Slurm or munge that
# the machine runs otherwise is not touched. /tmp and /dev/shm are private to each node: files of jobs go elsewhere.
set -euo pipefail
state=${TRIREME_CLUSTER_STATE:-/var/lib/trireme-test-cluster}
network=${TRIREME_CLUSTER_NETWORK:-10.77.83}
prefix=trm  # of namespaces and links
export SLURM_CONF=$state/slurm.conf

fail() {
  echo "cluster.sh: $*" >&2
  exit 1
}
node_count() { if [ -s "$state/count" ]; then cat "$state/count"; else echo 0; fi; }
each_node() { seq "$(node_count)"; }
space() { echo "${prefix}node$1"; }
checked_node() {
  if ! [[ ${1:-} =~ ^[1-9][0-9]*$ ]] || [ "$1" -gt "$(node_count)" ]; then
    fail "'${1:-}' is not a node of 1 to $(node_count)"
  fi
}

write_configuration() {
  local nodes=$1 cpus=$2 binding=none i
  [ "$cpus" -ne "$(nproc)" ] || binding=affinity
  {
    echo "127.0.0.1 localhost"
    echo "$network.1 head"
    for i in $(seq "$nodes"); do echo "$network.$((100 + i)) node$i"; done
  } >"$state/hosts"
  cat >"$SLURM_CONF" <<CONF
ClusterName=trireme
SlurmctldHost=head($network.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$state/munge/socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/$binding
ReturnToService=2
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/%n.pid
SlurmdSpoolDir=$state/spool.%n
StateSaveLocation=$state/controller
SlurmctldLogFile=$state/log/slurmctld
SlurmdLogFile=$state/log/%n
SlurmdParameters=config_overrides
SlurmdTimeout=20
KillWait=10
MinJobAge=3600
SchedulerParameters=sched_interval=5,bf_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PartitionName=debug Nodes=node[1-$nodes] Default=YES MaxTime=INFINITE State=UP
CONF
  for i in $(seq "$nodes"); do
    echo "NodeName=node$i NodeAddr=$network.$((100 + i)) CPUs=$cpus RealMemory=4000 State=UNKNOWN" >>"$SLURM_CONF"
  done
  printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$state/cgroup.conf"
}

start_munge() {
  mkdir -p "$state/munge"
  chmod 755 "$state" "$state/munge"
  (umask 077 && head -c 1024 /dev/urandom >"$state/munge/key")
  munged --force --socket="$state/munge/socket" --key-file="$state/munge/key" --pid-file="$state/munge/pid" \
    --log-file="$state/munge/log" --seed-file="$state/munge/seed"
}

# Congestion control is Reno, which every kernel has: nodes would inherit the host's, and exchanges take longer with BBR
# (docs/scaling-studies.md).
add_network() {
  local i
  ip link add "${prefix}bridge" type bridge
  ip addr add "$network.1/24" dev "${prefix}bridge"
  ip link set "${prefix}bridge" up
  for i in $(each_node); do
    ip netns add "$(space "$i")"
    ip link add "${prefix}link$i" type veth peer name eth0 netns "$(space "$i")"
    ip link set "${prefix}link$i" master "${prefix}bridge" up
    ip -n "$(space "$i")" addr add "$network.$((100 + i))/24" dev eth0
    ip -n "$(space "$i")" link set eth0 up
    ip -n "$(space "$i")" link set lo up
    ip netns exec "$(space "$i")" sh -c 'echo reno >/proc/sys/net/ipv4/tcp_congestion_control'
  done
}

start_node() {
  # Leftover PMIx sockets of a crash would prevent a restart of the same step of the same job.
  rm -rf "$state/spool.node$1"
  mkdir -p "$state/spool.node$1"
  # shellcheck disable=SC2016  # expanded by the inner shell
  ip netns exec "$(space "$1")" unshare --uts --mount sh -c '
    mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm && mount --bind "$2/hosts" /etc/hosts &&
      hostname "node$1" && exec slurmd -N "node$1"' sh "$1" "$state"
}

up() {
  local nodes=${1:-4} cpus=${2:-4} i idle=
  [ "$(id -u)" -eq 0 ] || fail "network namespaces need root"
  for i in slurmctld slurmd munged ip tc; do
    command -v "$i" >/dev/null || fail "$i is missing: scripts/deps.sh slurm installs it"
  done
  # The folder is the lock: its creator owns the cluster.
  mkdir -p "$(dirname "$state")"
  mkdir "$state" 2>/dev/null || fail "$state is there: a cluster is up, or was left behind; 'cluster.sh down' first"
  echo "${TRIREME_CLUSTER_OWNER:-}" >"$state/owner"
  mkdir "$state/controller" "$state/log"
  echo "$nodes" >"$state/count"
  write_configuration "$nodes" "$cpus"
  start_munge
  add_network
  # shellcheck disable=SC2016
  unshare --uts --mount sh -c 'mount --bind "$1/hosts" /etc/hosts && hostname head && exec slurmctld -c' sh "$state"
  for i in $(each_node); do start_node "$i"; done
  for _ in $(seq 120); do
    idle=$(sinfo -h -t idle -o %D 2>/dev/null | head -1 || true)
    [ "$idle" != "$nodes" ] || return 0
    sleep 0.5
  done
  sinfo >&2 || true
  fail "${idle:-0} of $nodes nodes came up; logs are in $state/log"
}

end_process() {
  if [ -s "$1" ]; then kill "$(cat "$1")" 2>/dev/null || true; fi
}

kill_node() {
  local p
  # Processes may start others meanwhile.
  for _ in 1 2 3; do
    for p in $(ip netns pids "$(space "$1")" 2>/dev/null); do kill -KILL "$p" 2>/dev/null || true; done
  done
  rm -f "$state/node$1.pid"
}

down() {
  local i
  for i in $(each_node); do
    kill_node "$i"
    ip netns del "$(space "$i")" 2>/dev/null || true
  done
  end_process "$state/slurmctld.pid"
  end_process "$state/munge/pid"
  ip link del "${prefix}bridge" 2>/dev/null || true
  for _ in $(seq 50); do  # slurmctld saves its state as it ends
    { [ -s "$state/slurmctld.pid" ] && kill -0 "$(cat "$state/slurmctld.pid")" 2>/dev/null; } || break
    sleep 0.1
  done
  rm -rf "$state"
}

# A node's own card does not drop what the node sends, so neither does the limit. The bucket is small: after a pause its
# bytes pass at once, as they would not on a real link.
rate() {
  local i burst=80k  # more than the largest packet, which else is cut on the cores that compute
  case $1 in
    100mbit) burst=8k ;;
    10mbit) burst=2k ;;
  esac
  for i in $(each_node); do
    tc -n "$(space "$i")" qdisc del dev eth0 root 2>/dev/null || true
    [ "$1" = off ] || tc -n "$(space "$i")" qdisc add dev eth0 root tbf rate "$1" burst $burst limit 16m
  done
}

sent() {
  local i
  for i in $(each_node); do
    echo "node$i $(ip netns exec "$(space "$i")" cat /proc/net/dev | awk '$1 == "eth0:" { print $10 }')"
  done
}

command=${1:-help}
[ $# -eq 0 ] || shift
case $command in
  up) up "$@" ;;
  down) down ;;
  conf) echo "$SLURM_CONF" ;;
  owner) [ ! -r "$state/owner" ] || cat "$state/owner" ;;
  status) sinfo && squeue ;;
  rate) rate "${1:?1gbit, 100mbit, 10mbit or off}" ;;
  sent) sent ;;
  kill) checked_node "${1:-}" && kill_node "$1" ;;
  revive)
    checked_node "${1:-}"
    start_node "$1"
    scontrol update nodename="node$1" state=resume 2>/dev/null || true
    ;;
  on)
    checked_node "${1:-}"
    node=$1
    shift
    # shellcheck disable=SC2016
    exec ip netns exec "$(space "$node")" unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "node$node" "$@"
    ;;
  *)
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p'
    exit 2
    ;;
esac
