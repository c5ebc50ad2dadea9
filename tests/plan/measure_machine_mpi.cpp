// What messages cost computation on the same core.
#include <algorithm>

#include <gtest/gtest.h>
#include <sched.h>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/plan/measure_machine.hpp"

namespace trireme::plan {
namespace {

/// Leaves this process one of its cores until the end: another than its neighbor's, if it has two.
class OneCore {
 public:
  explicit OneCore(int rank) {
    EXPECT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    int left = rank % CPU_COUNT(&before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &before_) && left-- == 0) CPU_SET(cpu, &one);
    }
    EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;
  ~OneCore() { ::sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};

TEST(MeasuredMachine, HasTheSlowdownOfCopiesOnTheCoreThatComputes) {
  const comm::Session session(nullptr, nullptr);
  if (session.size() != 2) GTEST_SKIP() << "for two ranks";
  const OneCore core(session.rank());
  device::MemoryLedger ledger;
  comm::Grid grid(session, comm::make_grid_shape(session.size(), {}), ledger);
  const auto ops = ops::make_cpu_ops(1, &ledger);
  // The core copies for nearly as long as the message takes alone. Other programs disturb some
  // measurements: one of ten has to see it.
  double longest = 0;
  for (int i = 0; i < 10 && longest < 0.75; ++i) {
    const Interference beside =
        measure_interference(grid, comm::GroupKind::world, 64 << 20, *ops, device::host_device());
    longest = std::max(longest, beside.stretch * (1 - 1 / beside.slowdown));
  }
  EXPECT_GE(longest, 0.75);
}

}  // namespace
}  // namespace trireme::plan
