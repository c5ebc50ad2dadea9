// How long a run's steps should take on a machine, beside how long they took (train.predict).
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/comm/shape.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/parallel/engine.hpp"

namespace trireme::train {

/// Seconds of a step on the machine of `file`, with so many ranks on a node: {"machine", "seconds",
/// "parts"}. Parts are averages over ranks, of "compute" and the axes of "communication wait"
/// (docs/timing.md). `host`: whether the ranks compute on CPUs. Throws ConfigError where the
/// machine computes on something else, as plan::Machine::read and plan::predict_step do, and Error
/// where the layout is too long to be planned.
nlohmann::json predict_step_time(const std::string& file, const model::Transformer& model,
                                 const parallel::ReplicaOptions& options,
                                 const comm::GridShape& shape, bool host, int ranks_per_node,
                                 bool documents);

/// {"machine", "predicted": {"seconds", "parts"}, "measured": the same} of at least one step:
/// measured are the median of their seconds and, on CPUs, averages of the ranks' accounts, scaled
/// to that step. On GPUs, whose waits the host does not see, there are no measured parts.
nlohmann::json compare_step_time(const nlohmann::json& predicted,
                                 const std::vector<nlohmann::json>& accounts,
                                 std::vector<double> seconds, bool host);

/// As lines of the closing tables.
std::vector<std::string> step_time_lines(const nlohmann::json& compared);

}  // namespace trireme::train
