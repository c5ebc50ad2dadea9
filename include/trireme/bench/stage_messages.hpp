// Messages between neighboring pipeline stages, by the channels that a run uses.
#pragma once

#include "trireme/bench/collectives.hpp"

namespace trireme::bench {

struct StageMessageOptions {
  Sizes sizes;
  std::vector<DType> types;
  Rounds rounds;
  bool check = true;
};

/// For each size: `ping-pong` (half of there and back, between the pairs of neighbors that the
/// stages form), `activations` (each stage sends to the next), `gradients` (to the one before) and
/// `both` at once. Collective over the world. Throws AgreedError where the grid has one stage.
void bench_stage_messages(const Place& place, comm::Grid& grid, const StageMessageOptions& options,
                          Sheet& sheet);

}  // namespace trireme::bench
