#include <algorithm>
#include <array>
#include <fstream>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <omp.h>
#include <sched.h>

#include "trireme/comm/session.hpp"

namespace trireme::comm {

namespace {

/// Leaves of each core only its first hardware thread, whichever the mask held, so that cores can
/// be counted and compared. A hardware thread whose siblings are unknown is a core of its own.
cpu_set_t cores_of(const cpu_set_t& mask) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    std::ifstream file(
        fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    int first = cpu;  // "0,32" or "0-1"
    if (!(file >> first) || first < 0 || first >= CPU_SETSIZE) first = cpu;
    CPU_SET(first, &cores);
  }
  return cores;
}

/// The processors that this process was given. OpenMP has by now bound this thread to the first of
/// its places where it was asked to bind: then the places hold what the mask has lost.
bool find_processors(cpu_set_t& processors) {
  CPU_ZERO(&processors);
  const bool known = ::sched_getaffinity(0, sizeof processors, &processors) == 0;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> cpus(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, cpus.data());
    for (const int cpu : cpus) {
      if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &processors);
    }
  }
  return known || CPU_COUNT(&processors) > 0;
}

}  // namespace

Cores find_cores(MPI_Comm node) {
  cpu_set_t processors;
  const bool known = find_processors(processors);
  const cpu_set_t own = cores_of(processors);
  int ranks = 1;
  mpi_check(MPI_Comm_size(node, &ranks), "MPI_Comm_size");
  std::vector<cpu_set_t> all(static_cast<std::size_t>(ranks));
  mpi_check(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, node),
            "MPI_Allgather");
  // More processors than a mask of fixed size holds: all count as shared by all.
  if (!known) return {std::max(1, static_cast<int>(std::thread::hardware_concurrency())), ranks};
  Cores cores{CPU_COUNT(&own), 0};
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
  if (facts[1] == 1) {
    return fmt::format(
        "threads: {} on {} core{} (rank {}'s) are more than one a core; lower parallel.threads or "
        "OMP_NUM_THREADS",
        facts[2], facts[0], facts[0] == 1 ? "" : "s", worst[1]);
  }
  return fmt::format(
      "ranks share cores: {} of {} thread{} each on {} core{} (rank {}'s); start fewer ranks, bind "
      "them apart, or lower parallel.threads",
      facts[1], facts[2], facts[2] == 1 ? "" : "s", facts[0], facts[0] == 1 ? "" : "s", worst[1]);
}

}  // namespace trireme::comm
