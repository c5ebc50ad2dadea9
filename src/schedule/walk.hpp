// Who needs whose result, across virtual stages; and the walk over all stages' lists that decides
// when each step starts and ends.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "trireme/schedule/simulate.hpp"

namespace trireme::schedule {

inline std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// The far end of a dependency between neighboring virtual stages, for the same micro-batch.
struct FarEnd {
  int stage = 0;
  int chunk = 0;
  bool gradient = false;  // else an activation
};

inline FarEnd far_end(const Schedule& schedule, int virtual_stage, bool gradient) {
  return {virtual_stage % schedule.stages, virtual_stage / schedule.stages, gradient};
}

/// Where `action`'s input is made; none for the first virtual stage's F, the last's B and I, any W.
inline std::optional<FarEnd> input_of(const Schedule& schedule, int stage, const Action& action) {
  const int here = schedule.virtual_stage(stage, action.chunk);
  if (action.kind == Kind::forward && here > 0) return far_end(schedule, here - 1, false);
  if (action.makes_gradient() && here + 1 < schedule.virtual_stages())
    return far_end(schedule, here + 1, true);
  return std::nullopt;
}

/// Where the result of `action` on `stage` is needed.
inline std::optional<FarEnd> output_of(const Schedule& schedule, int stage, const Action& action) {
  const int here = schedule.virtual_stage(stage, action.chunk);
  if (action.kind == Kind::forward && here + 1 < schedule.virtual_stages())
    return far_end(schedule, here + 1, false);
  if (action.makes_gradient() && here > 0) return far_end(schedule, here - 1, true);
  return std::nullopt;
}

/// Walks all lists together, each stage as far as the others let it. A message ends `latency`
/// after the later of its two starts.
class Walk {
 public:
  Walk(const Schedule& schedule, const std::vector<StageSteps>& lists, const Costs& costs);

  /// Continues until nothing moves; true when every list is at its end.
  bool run();

  /// Of the computes that ran. [stages][…]
  const std::vector<std::vector<Span>>& spans() const { return spans_; }

  /// After run() gave true: the fewest send slots of `stage` in a direction with which no compute
  /// of this walk would have waited for one.
  int send_slots(int stage, bool gradient) const;

  /// After run() gave false: which stages wait for what.
  std::string waits() const;

 private:
  /// Start times of one channel's messages, in order.
  struct Channel {
    std::vector<double> sent, received;
  };
  struct Stage {
    std::size_t next = 0;  // step
    double clock = 0;      // end of the last compute
    // By direction (activation, gradient) and slot: which message of its channel is or was there.
    std::array<std::vector<int>, 2> incoming, outgoing;
  };

  bool take(int stage, const Step& step);
  bool compute(int stage, const Step& step);
  double cost(int stage, const Action& action) const;
  int sender_to(int stage, bool gradient) const;
  int receiver_of(int stage, bool gradient) const;
  std::string wait_of(int stage) const;

  const Schedule& schedule_;
  const std::vector<StageSteps>& lists_;
  const Costs& costs_;
  std::vector<std::array<Channel, 2>> channels_;  // by receiver
  std::vector<Stage> stages_;
  std::vector<std::vector<Span>> spans_;
};

}  // namespace trireme::schedule
