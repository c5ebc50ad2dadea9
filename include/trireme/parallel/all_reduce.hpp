// Data parallelism by all-reduce: every rank holds the model, or its shards of it (ZeRO), and
// updates what it holds.
#pragma once

#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/data_parallel.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/state/offload.hpp"
#include "trireme/state/update.hpp"

namespace trireme::parallel {

class AllReduce final : public DataParallel {
 public:
  /// What it works on, which outlives it. `offload` is null where the device updates.
  struct Parts {
    const Stage& stage;
    const state::ModelState& state;
    optim::Optimizer& optimizer;
    state::Offload* offload;
    ops::Ops& ops;
    comm::Communicator& replicas;  // ranks that hold the same shard: with ZeRO 0 the data axis
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
