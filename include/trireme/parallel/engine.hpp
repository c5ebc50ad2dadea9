// Runs a step: walks the program of this rank's stage, and with it the micro-batches through the
// units, the messages between stages, and the reductions of gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/device/readback.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/microbatch.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/parallel/stage_memory.hpp"
#include "trireme/parallel/step_graphs.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::parallel {

/// Sums over one or more micro-batches.
struct LossSum {
  double loss = 0;    // Σ weight·nll
  double weight = 0;  // Σ weight
  double mean() const { return loss / weight; }
};

/// The communicators of one rank.
struct EngineGroups {
  comm::Communicator& tensor;
  StateGroups state;
  comm::Communicator& pipeline;     // agreement along the stages
  comm::Communicator& activations;  // the same ranks, once for each direction of messages
  comm::Communicator& gradients;
};

struct EngineOptions {
  std::int64_t bucket_elements = 2 << 20;
  bool overlap = true;                 // reduce while backward runs
  std::uint64_t seed = 0;              // of dropout
  comm::Watchdog* watchdog = nullptr;  // is told of every action, where there is one
  state::Offload* offload = nullptr;   // takes final gradients, where there is one
  /// What a step computes is captured, where the device captures and no tensor group's messages are
  /// in between; see StepGraphs.
  bool graphs = false;
};

class Engine {
 public:
  /// `stage` and `state` describe the same rank; the former's program is walked.
  Engine(const Stage& stage, const state::ModelState& state, ops::Ops& ops,
         const EngineGroups& groups, DataParallel& method, Recorder& recorder,
         device::MemoryLedger& ledger, const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// Queues forward and backward of all micro-batches of this replica, and waits for nothing but
  /// messages. Afterwards the own gradients of the state are those of the mean loss over the global
  /// batch. On the host `batches` are read until then.
  void start_step(const std::vector<HostMicrobatch>& batches);
  /// The sums over the global batch of the step that was started last, the same on every rank, once
  /// the device's work has been waited for (device::wait_for). Collective.
  LossSum step_sums();
  /// Multiplies all gradients of the steps that follow (1 at first), and no loss.
  void set_loss_scale(double scale) { loss_scale_ = scale; }
  /// After an update: parameters are whole again where they are kept whole.
  void spread() { exchange_.spread(); }
  /// Forward alone; the sums of each leaf of the micro-batch, on every rank of the replica.
  std::vector<LossSum> evaluate(const HostMicrobatch& batch);

  /// Forward of the next tokens of one sequence, whose earlier keys and values `caches` hold (by
  /// unit of the model; empty for units that are not here or are no blocks): logits [1, V] of the
  /// last token, on every rank of the last stage. All in the device's memory. Without sequence
  /// parallelism.
  void extend(const model::Microbatch& tokens, std::vector<model::KeyValueCache>& caches,
              const Tensor& logits);

  /// logits [R, V] of every token of the micro-batch, R·V fp32 in the device's memory, where there
  /// is one stage: for comparison with other programs.
  void logits(const HostMicrobatch& batch, const Tensor& logits);

  const StageMemory& memory() const { return memory_; }
  StepGraphs& graphs() { return graphs_; }
  const StepGraphs& graphs() const { return graphs_; }
  /// What it enters in the ledger as batch: a loss for each leaf of a step; where the device is not
  /// the host, the micro-batches too, and as much staging memory as all that.
  static std::size_t batch_bytes(const Stage& stage, bool host);

 private:
  using Message = StageMemory::Message;
  static std::size_t loss_bytes(const Stage& stage);
  void start(const UnitAction& action);
  /// Computation from action `begin` on: of as many actions as need nothing in between; where the
  /// next one is.
  std::size_t compute_from(std::size_t begin);
  /// For each action of the program whether it computes, needs nothing but what was computed before
  /// it, and so may share a graph with the one before.
  std::vector<bool> find_continuing() const;
  bool adds_to_gradients(const UnitAction& action) const;
  /// Waits and moves before an action's computation.
  void prepare(const UnitAction& action, model::Mode mode);
  void compute(const UnitAction& action, model::Mode mode);
  void evaluate(const UnitAction& action);
  void forward(const UnitAction& action, model::Mode mode);
  void backward(const UnitAction& action);
  void backward_leaf(const UnitAction& action, const model::UnitContext& context, int leaf,
                     const Tensor& dx, const Tensor& dy, const Tensor& x);
  void start_message(const UnitAction& action);
  device::Event& message_event(Message kind, int slot);
  Tensor incoming(Message kind, int slot);
  model::UnitContext context(const model::Microbatch& leaf, const UnitAction& action,
                             model::Mode mode, int set);
  Tensor output_gradient(const UnitAction& action);
  void zero_losses();
  int set_of(int micro_batch, int leaf) const;
  /// Adds up set_sums_, over the data ranks too.
  double sum_sets();

  const Stage& stage_;
  const state::ModelState& state_;
  ops::Ops& ops_;
  device::Device& device_;
  EngineGroups groups_;
  Recorder& recorder_;
  EngineOptions options_;
  StageMemory memory_;
  device::Stream tensor_stream_;
  model::TensorGroup tensor_;
  StateExchange exchange_;
  // One stream for each kind of message: a send must not wait for a receive.
  std::vector<std::unique_ptr<device::Stream>> message_streams_;  // by Message
  std::vector<std::vector<device::Event>> message_events_;        // by Message and slot
  DeviceBatches batches_;
  device::Buffer loss_buffer_, frequency_buffer_;
  Tensor losses_;  // f64 [micro-batches, leaves]
  device::Readback losses_read_;
  std::vector<double> set_sums_;  // of weights, then of losses, by set
  Tensor frequencies_;            // [D/2], absent without rotary positions
  double denominator_ = 1, loss_scale_ = 1;
  StepGraphs graphs_;
  std::vector<bool> continuing_;     // by action; see find_continuing
  std::vector<std::string> labels_;  // of the program's actions, for the watchdog
  /// What profilers call the work of each unit of the model.
  std::vector<std::string> forward_names_, backward_names_;
  std::unique_ptr<comm::Progress> progress_;
};

}  // namespace trireme::parallel
