// How long a run's steps should take on a machine, beside how long they took (train.predict).
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/comm/shape.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/plan/machine.hpp"
#include "trireme/train/job.hpp"

namespace trireme::train {

/// The machine of `file`, with so many ranks on a node. `host`: whether the ranks compute on CPUs.
/// Throws ConfigError where the machine computes on something else, and as plan::Machine::read.
plan::Machine read_machine(const std::string& file, bool host, int ranks_per_node);

/// The machine that the run is on, from a few steps of its layout with one layer on each (virtual)
/// stage, and from collectives of its groups. Takes about ten seconds where steps take less than
/// one. Its memory is in no ledger of the run. Collective over the workers; the same on every rank.
plan::Machine measure_machine(const Job& job, parallel::ReplicaOptions options,
                              const comm::GridShape& shape);

/// Seconds of a step on a machine: {"machine", "seconds", "parts"}. `source` is the machine's name.
/// Parts are averages over ranks, of "compute" and the axes of "communication wait"
/// (docs/timing.md). Leaves the model's units planned for another rank: make its replica
/// afterwards. Throws as plan::predict_step does, and Error where the layout is too long to be
/// planned.
nlohmann::json predict_step_time(const plan::Machine& machine, const std::string& source,
                                 const model::Transformer& model,
                                 const parallel::ReplicaOptions& options,
                                 const comm::GridShape& shape, bool documents);

/// {"machine", "predicted": {"seconds", "parts"}, "measured": the same} of at least one step:
/// measured are the median of their seconds and, on CPUs, averages of the ranks' accounts, scaled
/// to that step. On GPUs, whose waits the host does not see, there are no measured parts.
nlohmann::json compare_step_time(const nlohmann::json& predicted,
                                 const std::vector<nlohmann::json>& accounts,
                                 std::vector<double> seconds, bool host);

/// As lines of the closing tables.
std::vector<std::string> step_time_lines(const nlohmann::json& compared);

}  // namespace trireme::train
