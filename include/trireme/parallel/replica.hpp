// Everything of one rank between a batch and an updated model, and the comparison of replicas.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/grid.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/ops/forwarding.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/parallel/gradient_reducer.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/state/offload.hpp"

namespace trireme::parallel {

struct StepSums {
  LossSum loss;
  double gradient_norm = 0;
};

class Replica {
 public:
  /// Collective over the grid. `model`, which serves one replica, `grid`, `recorder` and `ledger`,
  /// whose device holds the state and computes, must outlive it.
  Replica(const model::Transformer& model, const ReplicaOptions& options, comm::Grid& grid,
          Recorder& recorder, device::MemoryLedger& ledger);

  void initialize();  // collective
  /// Recomputes what units read, after something other than an update wrote parameters. Stochastic
  /// rounding is that of update `updates` − 1, counted from 0. Collective.
  void refresh(std::int64_t updates = 0);
  /// The number with which refresh reproduces what units read now.
  std::int64_t rounded_for() const { return rounded_for_; }
  /// Where the backend chooses among algorithms (ops::AlgorithmChoices), runs a step on zero tokens
  /// so that it sees all shapes. Then all ranks use, for each shape, the choice of the first rank
  /// that saw it. `documents`: the run's batches name the document of each token. The gradients it
  /// leaves are of no use. Collective over the grid, before the first step.
  void settle_choices(bool documents = false);
  /// Messages between stages pass by NCCL from now on, where comm.pipeline = nccl: see
  /// Grid::connect_stages. Collective over the grid, between two steps, after settle_choices.
  void connect_stages();
  /// What was chosen so far, the same on every rank after settle_choices.
  std::vector<ops::Choice> choices() const {
    return choosing_ == nullptr ? std::vector<ops::Choice>() : choosing_->describe_choices();
  }
  /// How this rank's attention is computed where a library may take it; see ops::AttentionChoice.
  std::vector<ops::AttentionChoice> attention_choices() const {
    return choosing_ == nullptr ? std::vector<ops::AttentionChoice>()
                                : choosing_->describe_attention();
  }
  /// With ReplicaOptions::trace starts to trace operations, at the first step.
  void begin_trace() {
    if (traced_ != nullptr) traced_->begin();
  }
  /// Queues forward and backward of a step: see Engine::start_step.
  void start(const std::vector<HostMicrobatch>& batches) { engine_.start_step(batches); }
  /// Queues the norm of the gradients, waits for the device (the only wait of a step) and returns
  /// both results, the same on every rank. Collective over the grid, or over the replica where it
  /// is alone, as are start and update.
  StepSums finish();
  StepSums backward(const std::vector<HostMicrobatch>& batches) {
    start(batches);
    return finish();
  }
  /// After something other than backward has changed own gradients.
  void gradients_changed();
  /// Update number `step` (from 0); collective. It is queued: the next wait is that of the next
  /// step. An offloaded optimizer waits for gradients to reach the host.
  void update(double learning_rate, std::int64_t step, double gradient_scale);
  /// Drops the step instead of an update; collective.
  void skip() { method_->skip(); }
  /// Waits for the device, and with ReplicaOptions::trace puts what it did since the last wait into
  /// the recorder.
  void wait();

  const Stage& stage() const { return stage_; }
  const state::ModelState& state() const { return state_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  const optim::Optimizer& optimizer() const { return optimizer_; }
  Engine& engine() { return engine_; }
  const Engine& engine() const { return engine_; }
  ops::Ops& ops() { return *ops_; }
  int threads() const { return options_.threads; }

 private:
  std::unique_ptr<ops::Ops> make_ops(device::MemoryLedger& ledger);
  EngineGroups groups();
  Tensor narrow_gradients() const;
  comm::Communicator& replicas();  // ranks with the same shard
  std::vector<std::unique_ptr<comm::Registration>> register_state();
  std::unique_ptr<DataParallel> make_method(device::MemoryLedger& ledger);

  ReplicaOptions options_;
  comm::Grid& grid_;
  std::unique_ptr<comm::Communicator> self_ = comm::make_self_communicator();
  comm::Communicator& members_;  // whose steps are one: the world, or this replica's ranks
  Recorder& recorder_;
  device::Device& device_;
  // Before ops_: make_ops sets them.
  ops::AlgorithmChoices* choosing_ = nullptr;  // null: the backend does not choose
  ops::TracedOps* traced_ = nullptr;           // null: no trace
  std::unique_ptr<ops::Ops> ops_;
  Stage stage_;
  state::ModelState state_;
  optim::Optimizer optimizer_;
  std::unique_ptr<state::Offload> offload_;  // absent: the device updates
  device::Buffer narrow_gradients_;          // of GradientSums; empty where they are sent in fp32
  std::vector<std::unique_ptr<comm::Registration>> registrations_;  // of state_'s memory
  std::unique_ptr<DataParallel> method_;
  Engine engine_;
  std::int64_t rounded_for_ = 0;
};

/// What is equal on all ranks of the data axis: all state, or only the parameters where workers
/// keep optimizer states of their own.
enum class Alike : std::uint8_t { state, parameters };

/// Compares every parameter and optimizer state that ranks hold as replicas:
/// - over the data axis everything, or shards over their replica group;
/// - over the tensor axis rows that are not split and shared key/value heads, where they are whole
///   (tensor ranks cut shards in different places);
/// - between the first and the last stage tied weights.
/// Collective over the grid. Throws AgreedError, the same on every rank, that names tensor, axis,
/// two ranks of the world and `step`, and the rank that differs where two or more others agree.
void check_replicas(const Replica& replica, comm::Grid& grid, std::int64_t step,
                    Alike alike = Alike::state);

/// A bit changed on purpose in what this rank holds of parameters and optimizer state.
struct Flip {
  std::string tensor;        // "" where the rank holds nothing; else as check_replicas names it
  std::int64_t element = 0;  // of the rank's part of the tensor
  int bit = 0;               // 0: the last of the fraction
  Tensor word;               // fp32 [1], the element itself
  device::Device* device = nullptr;
  /// Flips the bit. A second call restores it.
  void apply() const;
  std::string to_string() const;
};
/// Flips one bit. Tensor, element and bit are functions of (seed, number) and of what this rank
/// holds; every tensor, or tile of one, is equally likely. Not collective.
Flip flip_bit(const Replica& replica, std::uint64_t seed, std::uint64_t number);

}  // namespace trireme::parallel
