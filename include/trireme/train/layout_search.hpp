// The layout with the shortest predicted step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/plan/machine.hpp"
#include "trireme/plan/step_simulation.hpp"
#include "trireme/train/config.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

/// A layout that was simulated.
struct FoundLayout {
  RunConfig config;  // validated, with the layout's keys
  comm::GridShape shape;
  plan::StepTimes times;
  std::int64_t memory = 0;  // bytes of the fullest traced rank's device
};

struct LayoutSearch {
  std::vector<FoundLayout> fitting;  // that fit into memory, the fastest first; at most ten
  /// What is often taken first: tensor ranks fill a node, and the fewest stages that fit. Absent
  /// where none of these fits.
  std::vector<FoundLayout> usual;  // one or none
  FoundLayout nearest;             // the least memory of all, where none fits
  int simulated = 0, legal = 0;    // layouts judged; those of the first round
};

/// First every tensor degree that divides the heads, pipeline degree, and micro-batch of a power of
/// two that is legal on facts.world ranks, with ZeRO 1, sequence parallelism, and the least
/// recomputation that fits into `memory` bytes of a rank's device. A layout is judged by its first
/// micro-batches; whole steps are simulated of those that may be among the best ten. Then the best
/// five with other ZeRO stages, schedules, virtual stages, recomputation and sequence parallelism,
/// as long as one such change makes a layout faster. `config`: model and batch; its layout is
/// replaced. `progress` gets the number of layouts judged. Throws AgreedError where no layout is
/// legal.
LayoutSearch search_layouts(const RunConfig& config, const LayoutFacts& facts,
                            const plan::Machine& machine, std::int64_t memory,
                            const std::function<void(int simulated)>& progress);

/// The keys that a search sets: {"parallel": {"tensor": 2, …}, "train": {"micro_batch": 4}}.
nlohmann::ordered_json layout_keys(const RunConfig& config);

}  // namespace trireme::train
