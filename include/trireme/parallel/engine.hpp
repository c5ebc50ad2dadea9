// Walks the programs of this rank's stage: a training step, evaluation, or generation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <typeindex>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/device/device.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/gradient_reducer.hpp"
#include "trireme/parallel/microbatch.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/parallel/stage_memory.hpp"
#include "trireme/parallel/step_graphs.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::parallel {

/// Sums over one or more micro-batches.
struct LossSum {
  double loss = 0;                                                 // Σ weight·nll
  double weight = 0;                                               // Σ weight
  double mean() const { return weight == 0 ? 0 : loss / weight; }  // 0 without targets
};

struct EngineGroups {
  comm::Communicator& tensor;
  comm::Communicator& kv;  // tensor ranks among which a key/value head may be shared
  comm::Communicator& context;
  comm::Communicator& data;         // copies of the parameters: along the context axis too
  comm::Communicator& shard;        // of these, those among which state is sharded
  comm::Communicator& embedding;    // the first and the last stage
  comm::Communicator& pipeline;     // agreement along the stages
  comm::Communicator& activations;  // the same ranks, once for each direction of messages
  comm::Communicator& gradients;
  Tensor narrow_gradients;  // for GradientSums over data ranks
};

/// Makes the operations of a device for a rank of so many threads, with work space in the ledger.
using MakeOps = std::function<std::unique_ptr<ops::Ops>(device::MemoryLedger& ledger, int threads,
                                                        bool reproducible)>;

/// Makes a method other than all-reduce, of a rank's parts, which outlive it.
using MakeMethod =
    std::function<std::unique_ptr<DataParallel>(const Stage& stage, const state::ModelState& state,
                                                ops::Ops& ops, device::MemoryLedger& ledger)>;

/// All that the calls of an action depend on, but for addresses and random numbers.
struct ActionKind {
  UnitAction::Kind kind;
  int chunk;  // what its units keep depends on its schedule
  std::type_index unit;
  std::vector<bool> writes_gradients;                   // by leaf
  auto operator<=>(const ActionKind&) const = default;  // NOLINT(modernize-use-nullptr)
};
/// Plans: computes an action by `compute`, or replays the recorded calls of an earlier action of
/// the same kind.
using ComputeAction =
    std::function<void(const ActionKind& kind, const std::function<void()>& compute)>;

struct ReplicaOptions {
  StageOptions stage;                  // its place is taken from the grid
  const Pipeline* pipeline = nullptr;  // of these options, where it is known already
  optim::OptimConfig optim;
  int threads = 1;                         // at least 1
  std::int64_t bucket_elements = 2 << 20;  // also what an offloaded optimizer updates at once
  bool overlap = true;                     // reduce while backward runs
  std::uint64_t seed = 0;                  // of initial weights, dropout and stochastic rounding
  /// Round the bf16 weights that units read stochastically, with the same bits in every layout.
  bool stochastic_rounding = false;
  comm::Watchdog* watchdog = nullptr;
  MakeOps make_ops;              // absent: those of the CPU
  MakeMethod make_method;        // absent: AllReduce
  ComputeAction compute_action;  // absent: each is computed
  bool trace = false;            // record operations of the device as spans; see begin_trace
  /// Capture what a training step computes, where the device captures and no messages of a tensor
  /// group are in between; see StepGraphs. Not with a trace, which cannot see into graphs.
  bool graphs = false;
  /// An independent worker (see Averaging). Its data axis has one rank, so steps and updates
  /// involve only the ranks of this replica. Without ZeRO.
  bool alone = false;
};

class Engine {
 public:
  /// `stage` and `state` describe the same rank; `offload` is null where the optimizer is not
  /// offloaded. All arguments outlive the engine.
  Engine(const Stage& stage, const state::ModelState& state, ops::Ops& ops,
         const EngineGroups& groups, DataParallel& method, Recorder& recorder,
         device::MemoryLedger& ledger, const ReplicaOptions& options, state::Offload* offload);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Queues forward and backward of all micro-batches of this replica; waits only for messages.
  /// Afterwards the state's own gradients are those of the mean loss over the global batch (of a
  /// worker that is alone, over its share), times the loss scale. On the host `batches` are read
  /// until then.
  void start_step(const std::vector<HostMicrobatch>& batches);
  /// The sums over the global batch of the step that was started last, the same on every rank, once
  /// the device's work has been waited for (device::wait_for). Collective.
  LossSum step_sums();
  /// Multiplies gradients, but not losses. Initially 1.
  void set_loss_scale(double scale) { loss_scale_ = scale; }
  /// After an update of own shards: gathers what is kept whole (ZeRO 1 and 2). What ZeRO 3 gathered
  /// is stale.
  void gather_updated();
  /// Forward alone: the sums of the micro-batch, in reproducible mode of each sequence, on every
  /// rank of the replica.
  std::vector<LossSum> evaluate(const HostMicrobatch& batch);

  /// Forward of the next tokens of one sequence, whose earlier keys and values `caches` hold (by
  /// unit of the model; empty for units that are not here or are no blocks): logits [1, V] of the
  /// last token, on every rank of the last stage. All in the device's memory. Without sequence
  /// parallelism.
  void extend(const model::Microbatch& tokens, std::vector<model::KeyValueCache>& caches,
              const Tensor& logits);

  /// logits [R, V] of every token, fp32, on every rank of the last stage: for comparison.
  void logits(const HostMicrobatch& batch, const Tensor& logits);

  const StageMemory& memory() const { return memory_; }
  StepGraphs& graphs() { return graphs_; }
  const StepGraphs& graphs() const { return graphs_; }
  /// Bytes of Use::batch: a loss for each leaf of a step. On other devices than the host also the
  /// micro-batches, and as much again of staging memory.
  static std::size_t batch_bytes(const Stage& stage, bool host);

 private:
  using Message = StageMemory::Message;
  /// A buffer that a group's sharded parameters are gathered into before they are read (ZeRO 3).
  struct Gathered {
    int group = -1;
    device::Event ready;
  };
  struct Walk {
    const Program* program;
    model::Mode mode = model::Mode::evaluate;
    std::vector<model::KeyValueCache>* caches = nullptr;  // generation: by unit
    Tensor logits;  // what the last unit writes; absent: it adds to the loss
  };
  static std::size_t loss_bytes(const Stage& stage);
  void run(const Walk& walk);
  void wait_for_messages();
  device::Event start_gather(int group);
  Gathered& gathered(int group);
  void wait_for_parameters(int unit);
  void start(const UnitAction& action);
  /// Computes action `begin` and those after it that need nothing in between. Returns the next one.
  std::size_t compute_from(std::size_t begin);
  /// For each action of the training program: whether it may share a graph with the action before,
  /// because it needs only what was computed before it.
  std::vector<bool> find_continuing() const;
  /// See model::UnitContext.
  bool writes_gradients(const UnitAction& action, int leaf) const;
  void prepare(const UnitAction& action);
  void compute(const UnitAction& action);
  void forward(const UnitAction& action);
  /// visit(calls' tokens, number of the first call) for each group of calls that a unit gets at
  /// once: a sequence's pairs of chunks, or one call where sequences are whole.
  template <class Visit>
  void for_each_group(const UnitAction& action, const Visit& visit);
  void compute_logits(const UnitAction& action, model::Microbatch tokens, int call, Tensor x);
  void backward(const UnitAction& action);
  void start_message(const UnitAction& action);
  device::Event& message_event(Message kind, int slot);
  Tensor incoming(Message kind, int slot);
  model::UnitContext context(const model::Microbatch& tokens, const UnitAction& action, int call);
  Tensor output_gradient(const UnitAction& action);
  std::int64_t own_rows() const;
  /// The rows of an activation [calls · plan rows, C] that this walk uses, or those of one call.
  Tensor rows_of(const Tensor& activation) const;
  Tensor call_rows(const Tensor& activation, int call) const;
  void zero_losses();
  /// What this rank computes of micro-batches; kept in taken_.
  const std::vector<HostMicrobatch>& own_parts(std::span<const HostMicrobatch> batches);
  double sum_sets();

  const Stage& stage_;
  const state::ModelState& state_;
  ops::Ops& ops_;
  device::Device& device_;
  EngineGroups groups_;
  Recorder& recorder_;
  const ReplicaOptions& options_;
  StageMemory memory_;
  device::Stream tensor_stream_, state_stream_;
  model::TensorGroup tensor_;
  std::vector<Gathered> gathered_;  // see ModelState::gather_buffers
  GradientReducer gradients_;
  // One stream for each kind of message: a send must not wait for a receive.
  std::vector<std::unique_ptr<device::Stream>> message_streams_;  // by Message
  std::vector<std::vector<device::Event>> message_events_;        // by Message and slot
  std::vector<HostMicrobatch> taken_;
  DeviceBatches batches_;
  device::Buffer loss_buffer_, frequency_buffer_;
  Tensor losses_;  // f64 [micro-batches, leaves]
  device::Readback losses_read_;
  std::vector<double> set_sums_;  // of weights, then of losses, by set
  Tensor frequencies_;            // [D/2], absent without rotary positions
  double denominator_ = 1, loss_scale_ = 1;
  StepGraphs graphs_;
  std::vector<bool> continuing_;                             // by action; see find_continuing
  Walk walk_{};                                              // the current one
  std::vector<std::string> forward_names_, backward_names_;  // of units' ranges in profilers
  std::unique_ptr<comm::Progress> progress_;
};

}  // namespace trireme::parallel
