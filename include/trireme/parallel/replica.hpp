// Everything of one rank between a batch and an updated model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "trireme/comm/grid.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/state/offload.hpp"
#include "trireme/state/update.hpp"

namespace trireme::parallel {

/// Makes the operations of a device for a rank of so many threads, with work space in the ledger.
using MakeOps = std::function<std::unique_ptr<ops::Ops>(device::MemoryLedger& ledger, int threads,
                                                        bool reproducible)>;

struct ReplicaOptions {
  StageOptions stage;  // whose place the grid gives
  optim::OptimConfig optim;
  int threads = 1;
  std::int64_t bucket_elements = 2 << 20;  // also what an offloaded optimiser updates at once
  bool overlap = true;
  std::uint64_t seed = 0;  // of initial weights and dropout
  comm::Watchdog* watchdog = nullptr;
  MakeOps make_ops;  // absent: those of the CPU
};

class Replica {
 public:
  /// Collective over the grid. `model`, which serves one replica, `grid`, `recorder` and `ledger`,
  /// whose device holds the state and computes, must outlive it.
  Replica(const model::Transformer& model, const ReplicaOptions& options, comm::Grid& grid,
          Recorder& recorder, device::MemoryLedger& ledger);

  /// Writes first values into the parameters. Collective.
  void initialise();
  /// Makes what units read of parameters that were written otherwise than by an update. Collective.
  void refresh();
  /// See Engine::step.
  LossSum backward(const std::vector<HostMicrobatch>& batches) { return engine_.step(batches); }
  /// Of the gradients that backward left; collective over the grid.
  double gradient_norm();
  /// After other computation than backward has changed own gradients.
  void gradients_changed();
  /// Update number `step` (from 0); collective.
  void update(double learning_rate, std::int64_t step, double gradient_scale);

  const Stage& stage() const { return stage_; }
  const state::ModelState& state() const { return state_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  const optim::Optimizer& optimizer() const { return optimizer_; }
  Engine& engine() { return engine_; }
  ops::Ops& ops() { return *ops_; }

 private:
  ReplicaOptions options_;
  comm::Grid& grid_;
  Recorder& recorder_;
  std::unique_ptr<ops::Ops> ops_;
  Stage stage_;
  state::ModelState state_;
  optim::Optimizer optimizer_;
  std::unique_ptr<state::Offload> offload_;  // absent: the device updates
  Engine engine_;
  state::GradientNorm norm_;
  std::vector<optim::UpdateRange> ranges_;
  device::Stream norm_stream_;
};

/// The place of this rank in a grid.
Place place_of(comm::Grid& grid);

}  // namespace trireme::parallel
