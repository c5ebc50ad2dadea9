// The time of a training step of a layout on a machine.
#pragma once

#include "trireme/plan/step_simulation.hpp"

namespace trireme::plan {

/// Traces the first rank of each pipeline stage and simulates their step: the other tensor and data
/// ranks of a stage do the same but for shards and tiles that do not divide evenly, of which the
/// first rank's are among the largest. `documents`, `spans`: as trace_step and simulate have them.
/// Throws Error as they do.
StepTimes predict_step(const model::Transformer& model, const parallel::ReplicaOptions& options,
                       const comm::GridShape& shape, const Machine& machine, bool documents = false,
                       bool spans = false);

/// What predict_step simulates.
struct StageClasses {
  std::vector<RankClass> classes;
  ClassOf class_of;
};
StageClasses trace_stages(const model::Transformer& model, const parallel::ReplicaOptions& options,
                          const comm::GridShape& shape, bool host, bool documents = false);

}  // namespace trireme::plan
