// Operations that compute nothing and take as long as a machine file says: for the messages of a
// layout, on fewer cores than it has ranks.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "trireme/ops/forwarding.hpp"
#include "trireme/plan/machine.hpp"

namespace trireme::plan {

/// Each call returns when the operation would have ended, within a fifth of a millisecond. What the
/// system wakes it too late is taken from the next waits.
class WaitingOps final : public ops::ForwardingOps<WaitingOps> {
 public:
  /// `machine` computes on CPUs and outlives this.
  explicit WaitingOps(const Machine& machine) : machine_(machine) {}

  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::* /*operation*/)(Parameters...),
               const Arguments&... arguments) {
    using namespace std::chrono;
    constexpr auto least = microseconds(200);
    const duration<double> work(machine_.seconds(work_of(name, arguments...)));
    // The rank may have waited for others since the last operation.
    end_ = std::max(end_, Clock::now() - late_) + duration_cast<Clock::duration>(work);
    late_ = {};
    if (end_ - Clock::now() < least) return;
    std::this_thread::sleep_until(end_);
    late_ = Clock::now() - end_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Machine& machine_;
  Clock::time_point end_{};
  Clock::duration late_{};
};

}  // namespace trireme::plan
