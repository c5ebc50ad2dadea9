// How a worker's gradients are reduced, and what an update is: the interface of data-parallel
// methods, and all-reduce. Module data_parallel has the others.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/interface.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/gradient_sums.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/state/model_state.hpp"
#include "trireme/state/offload.hpp"
#include "trireme/state/update.hpp"

namespace trireme::parallel {

/// A data-parallel method on one rank: how gradients are reduced, and what an update is. The
/// computing thread calls it, on all ranks of the grid in the same order.
class DataParallel : public Interface {
 public:
  /// Gets what units read from the ranks that hold the model; nothing where this rank holds it.
  virtual void fetch() {}
  /// `gradient` is this rank's summed gradient of `elements` of the flat buffer, its own shard with
  /// ZeRO 1 to 3, once computation has done what it was given. Starts its reduction on `stream`;
  /// the event is done when the memory is the caller's again.
  virtual device::Event reduce(const params::Range& elements, const Tensor& gradient,
                               device::Stream& stream) = 0;
  /// Queues this rank's part of the norm of the summed gradients, after all events of the step.
  virtual void start_norm(ops::Ops& ops) = 0;
  /// The norm, once the device's work has been waited for: the same bits on every rank.
  virtual double finish_norm() = 0;
  /// Update number `step` (from 0) with the summed gradients times `gradient_scale`. Ends the step:
  /// from then on units read the new model.
  virtual void update(double learning_rate, std::int64_t step, double gradient_scale) = 0;
  /// Ends the step instead: its gradients are dropped.
  virtual void skip() {}
};

/// Data parallelism by all-reduce: every rank holds the model, or its shards of it (ZeRO), and
/// updates what it holds.
class AllReduce final : public DataParallel {
 public:
  /// What it works on, which outlives it. `offload` is null where the device updates.
  struct Parts {
    const Stage& stage;
    const state::ModelState& state;
    optim::Optimizer& optimizer;
    state::Offload* offload;
    ops::Ops& ops;
    GradientSums replicas;  // ranks that hold the same shard: with ZeRO 0 the data axis
    comm::Communicator& world;
    bool stochastic_rounding = false;  // as ReplicaOptions
  };
  AllReduce(const Parts& parts, device::MemoryLedger& ledger);

  /// An all-reduce over the replicas, in place.
  device::Event reduce(const params::Range& elements, const Tensor& gradient,
                       device::Stream& stream) override;
  void start_norm(ops::Ops& ops) override { norm_.start(ops); }
  double finish_norm() override { return norm_.finish(parts_.world); }
  void update(double learning_rate, std::int64_t step, double gradient_scale) override;

 private:
  Parts parts_;
  state::GradientNorm norm_;
  std::vector<optim::UpdateRange> ranges_;
};

}  // namespace trireme::parallel
