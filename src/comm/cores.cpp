#include "trireme/comm/cores.hpp"

#include <array>
#include <fstream>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <sched.h>

namespace trireme::comm {

namespace {

/// Physical cores of the mask: hardware threads that the system calls siblings count once, each for
/// itself where it says nothing.
int count_cores(const cpu_set_t& mask) {
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    std::ifstream file(
        fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

}  // namespace

Cores find_cores(MPI_Comm node) {
  cpu_set_t own;
  CPU_ZERO(&own);
  const bool known = ::sched_getaffinity(0, sizeof own, &own) == 0;
  int ranks = 1;
  mpi_check(MPI_Comm_size(node, &ranks), "MPI_Comm_size");
  std::vector<cpu_set_t> all(static_cast<std::size_t>(ranks));
  mpi_check(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, node),
            "MPI_Allgather");
  if (!known) return {};
  Cores cores{count_cores(own), 0};
  for (const cpu_set_t& other : all) {
    cpu_set_t common;
    CPU_AND(&common, &own, &other);
    if (CPU_COUNT(&common) > 0) ++cores.ranks;
  }
  return cores;
}

std::string core_warning(const Session& session, int threads) {
  const Cores own = session.cores();
  // Threads beyond the cores of the worst rank, with it.
  std::array<int, 2> mine{threads * own.ranks - own.usable, session.rank()}, worst{};
  mpi_check(MPI_Allreduce(mine.data(), worst.data(), 1, MPI_2INT, MPI_MAXLOC, session.world()),
            "MPI_Allreduce");
  if (worst[0] <= 0) return {};
  std::array<int, 3> facts{own.usable, own.ranks, threads};
  mpi_check(MPI_Bcast(facts.data(), 3, MPI_INT, worst[1], session.world()), "MPI_Bcast");
  return fmt::format(
      "ranks share cores: {} of {} thread{} each on {} core{} (rank {}'s); start fewer ranks, bind "
      "them apart, or lower parallel.threads",
      facts[1], facts[2], facts[2] == 1 ? "" : "s", facts[0], facts[0] == 1 ? "" : "s", worst[1]);
}

}  // namespace trireme::comm
