// Detection of shared cores, with affinity masks that the test sets.
#include <cstring>

#include <gtest/gtest.h>
#include <sched.h>

#include "trireme/comm/session.hpp"

namespace trireme::comm {
namespace {

/// This process's mask, restored at the end.
class Mask {
 public:
  Mask() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    // All processors of the system, not only the launcher's.
    std::memset(&all_, 0xff, sizeof all_);
    EXPECT_EQ(::sched_setaffinity(0, sizeof all_, &all_), 0);
    EXPECT_EQ(::sched_getaffinity(0, sizeof all_, &all_), 0);
  }
  Mask(const Mask&) = delete;
  Mask& operator=(const Mask&) = delete;
  ~Mask() { ::sched_setaffinity(0, sizeof before_, &before_); }
  int cpus() const { return CPU_COUNT(&all_); }
  /// Leaves only the n-th processor.
  void leave(int n) const {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all_) && n-- == 0) CPU_SET(cpu, &one);
    }
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }

 private:
  cpu_set_t before_, all_;
};

int smallest_mask(int own) {
  int least = own;
  MPI_Allreduce(&own, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return least;
}

TEST(Cores, RanksOnOneCoreShareIt) {
  const Mask mask;
  mask.leave(0);
  const Session session(MPI_COMM_WORLD);
  EXPECT_EQ(session.cores().usable, 1);
  EXPECT_EQ(session.cores().ranks, session.node_size());
  EXPECT_EQ(core_warning(session, 1).empty(), session.size() == 1);
  const std::string warning = core_warning(session, 2);
  const char* expected = session.size() == 1 ? "threads: 2 on 1 core (rank 0's)"
                                             : "of 2 threads each on 1 core (rank ";
  EXPECT_NE(warning.find(expected), std::string::npos) << warning;
}

TEST(Cores, RanksOnCoresOfTheirOwnShareNone) {
  const Mask mask;
  int ranks = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (smallest_mask(mask.cpus()) < ranks) GTEST_SKIP() << "fewer cores than ranks";
  mask.leave(rank);
  const Session session(MPI_COMM_WORLD);
  EXPECT_EQ(session.cores().usable, 1);
  EXPECT_EQ(session.cores().ranks, 1);
  EXPECT_EQ(core_warning(session, 1), "");
  EXPECT_NE(core_warning(session, 2), "");
}

}  // namespace
}  // namespace trireme::comm
