// A machine's constants, measured on it: training steps, operation by operation, and collectives.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/grid.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/plan/machine.hpp"
#include "trireme/plan/timed_ops.hpp"

namespace trireme::plan {

/// `sequences` windows of tokens drawn evenly from the model's vocabulary, in one document each.
parallel::HostMicrobatch random_batch(const model::ModelConfig& config, std::int64_t sequences,
                                      bool documents = false);

/// Of a replica of one rank on a device that is the host or not, which computes in `compute` on
/// micro-batches of so many sequences.
parallel::ReplicaOptions one_rank_options(bool host, DType compute, std::int64_t sequences,
                                          model::Recompute recompute);

/// The operations of a training step, and seconds until the host and the device ended it.
struct TimedStep {
  std::vector<TimedCall> calls;
  double seconds = 0;
};

/// `steps` steps of a new replica of these options, after `warm_up` ones, on random tokens; fewer,
/// but one at least, where that takes longer than `most_seconds`.
/// Its memory is in no other ledger, and given back. Collective over the grid. `model` serves no
/// other replica.
std::vector<TimedStep> time_steps(const model::Transformer& model, parallel::ReplicaOptions options,
                                  comm::Grid& grid, device::Device& device, int warm_up, int steps,
                                  double most_seconds, bool documents = false);

/// Of all calls of equal work on all ranks: the mean of the ranks' medians, weighted by their
/// calls; and half of the range of the middle 80 % as a part of it. `share`: of the time of all
/// works.
struct MeasuredWork {
  Work work;
  double seconds = 0, spread = 0, share = 0;
};
/// The same on every rank; collective over `world`.
std::vector<MeasuredWork> measured_works(comm::Communicator& world,
                                         const std::vector<TimedStep>& steps);

/// A collective of a group, likewise.
struct MeasuredOperation {
  comm::PlannedOperation operation;
  Placement placement;
  double seconds = 0, spread = 0;
};
/// All-reduce, reduce-scatter and all-gather of fp32 numbers of 4 KiB to `largest` bytes, or to
/// what takes a tenth of a second; all groups of the kind at once. The same on every rank;
/// collective over the grid.
std::vector<MeasuredOperation> measure_collectives(comm::Grid& grid, comm::GroupKind kind,
                                                   const Placement& placement,
                                                   device::Device& device, std::int64_t largest);

/// How many times as long as alone computation and messages take beside each other; 1 to 20.
struct Interference {
  double slowdown = 1, stretch = 1;  // of computation, and of messages
};
/// Of products, and an all-reduce of so many bytes until which they are computed. The same on every
/// rank; collective over the grid.
Interference measure_interference(comm::Grid& grid, comm::GroupKind kind, std::int64_t bytes,
                                  ops::Ops& ops, device::Device& device);

/// The host's seconds to queue an operation of the device, or of a group, that does next to
/// nothing.
double measure_launch(ops::Ops& ops, device::Device& device);
double measure_launch(comm::Communicator& group, device::Device& device);

}  // namespace trireme::plan
