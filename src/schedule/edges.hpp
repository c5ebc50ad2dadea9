// Who needs whose result, across virtual stages.
#pragma once

#include <cstddef>
#include <optional>

#include "trireme/schedule/schedule.hpp"

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

/// Where the input of `action` on `stage` is made; none for the first virtual stage's F, the last
/// one's B and I, and any W.
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

}  // namespace trireme::schedule
