// The time of a training step of a layout on a machine.
#pragma once

#include "trireme/plan/step_simulation.hpp"

namespace trireme::plan {

/// Simulates what trace_stages gives. `documents`: as trace_step has it. Throws Error as they do.
StepTimes predict_step(const model::Transformer& model, const parallel::ReplicaOptions& options,
                       const comm::GridShape& shape, const Machine& machine,
                       bool documents = false);

/// The first data rank of each pipeline stage and of each kind of tensor rank: with equal tiles, in
/// key/value groups of equal ranks. Other data ranks do the same, but for shards that do not divide
/// evenly.
struct StageClasses {
  std::vector<RankClass> classes;
  ClassOf class_of;
};
StageClasses trace_stages(const model::Transformer& model, const parallel::ReplicaOptions& options,
                          const comm::GridShape& shape, bool host, bool documents = false);

}  // namespace trireme::plan
