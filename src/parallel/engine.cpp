// Long because a walk, its messages and its sums share the state of one engine.
#include "trireme/parallel/engine.hpp"

#include <algorithm>

#include "trireme/core/pairwise.hpp"
#include "trireme/device/cuda.hpp"

namespace trireme::parallel {

using Kind = UnitAction::Kind;
namespace {

constexpr std::size_t message_kinds = 4;
/// Most actions of one graph. The cost of a launch is negligible over so many.
constexpr std::size_t most_together = 64;

}  // namespace

std::size_t Engine::loss_bytes(const Stage& stage) {
  return static_cast<std::size_t>(stage.options().micro_batches) *
         static_cast<std::size_t>(stage.memory().leaves().count) * sizeof(double);
}

std::size_t Engine::batch_bytes(const Stage& stage, bool host) {
  const std::size_t losses = loss_bytes(stage);
  if (host) return losses;
  const StageOptions& options = stage.options();
  return 2 *
         (losses + DeviceBatches::bytes(options.micro_batches, options.sequences,
                                        stage.model().config().sequence, stage.shares().context));
}

Engine::Engine(const Stage& stage, const state::ModelState& state, ops::Ops& ops,
               const EngineGroups& groups, DataParallel& method, Recorder& recorder,
               device::MemoryLedger& ledger, const ReplicaOptions& options, state::Offload* offload)
    : stage_(stage),
      state_(state),
      ops_(ops),
      device_(ledger.device()),
      groups_(groups),
      recorder_(recorder),
      options_(options),
      memory_(stage.memory(), state.gradients(), ledger),
      tensor_stream_(device_),
      state_stream_(device_),
      tensor_{groups.tensor, groups.kv, tensor_stream_, nullptr, nullptr, &groups.context},
      gathered_(static_cast<std::size_t>(state.gather_buffers().count)),
      gradients_({.state = state,
                  .stage = stage,
                  .ops = ops,
                  .tensor = tensor_,
                  .context = groups.context,
                  .shard = GradientSums(groups.shard, groups.narrow_gradients),
                  .embedding = groups.embedding,
                  .method = method,
                  .offload = offload,
                  .recorder = recorder,
                  .stream = state_stream_,
                  .bucket_elements = options.bucket_elements},
                 ledger),
      batches_(stage.options().micro_batches, stage.options().sequences,
               stage.model().config().sequence, stage.shares().context, ledger,
               stage.options().planned),
      loss_buffer_(ledger, device::Use::batch, loss_bytes(stage)),
      losses_(loss_buffer_.view(DType::f64,
                                {stage.options().micro_batches, stage.memory().leaves().count})),
      losses_read_(ledger, device::Use::batch, losses_),
      set_sums_(static_cast<std::size_t>(stage.sets())),
      frequencies_(stage.model().frequencies()),
      graphs_(ledger, options.graphs && !options.trace),
      continuing_(find_continuing()) {
  tensor_stream_.record_waits(recorder, "wait for tensor ranks");
  if (frequencies_ && !device_.is_host()) {
    frequency_buffer_ = device::Buffer(ledger, device::Use::workspace, frequencies_.bytes());
    frequencies_ = frequency_buffer_.view(DType::f32, frequencies_.shape());
    device::write(device_, frequencies_, stage.model().frequencies().data());
  }
  std::vector<device::Stream*> streams;
  if (options.overlap) streams = {&tensor_stream_, &state_stream_};
  for (std::size_t kind = 0; kind < message_kinds; ++kind) {
    message_streams_.push_back(std::make_unique<device::Stream>(device_));
    streams.push_back(message_streams_.back().get());
  }
  const Program& program = stage.program();
  message_events_ = {
      std::vector<device::Event>(static_cast<std::size_t>(program.receive_activation_slots)),
      std::vector<device::Event>(static_cast<std::size_t>(program.receive_gradient_slots)),
      std::vector<device::Event>(static_cast<std::size_t>(program.send_activation_slots)),
      std::vector<device::Event>(static_cast<std::size_t>(program.send_gradient_slots))};
  for (const auto& unit : stage.model().units()) {
    forward_names_.push_back("forward " + unit->name());
    backward_names_.push_back("backward " + unit->name());
  }
  // Messages between stages must progress while this rank waits for something else.
  const bool messages = groups.pipeline.size() > 1;
  const bool reduces = groups.data.size() > 1 || stage.options().served;
  const bool tensor = groups.tensor.size() > 1 || groups.context.size() > 1;
  const bool moves = messages || ((reduces || tensor) && options.overlap);
  if (moves && !stage.options().planned) {
    progress_ = std::make_unique<comm::Progress>(streams);
  }
  if (tensor && options.overlap) tensor_.progress = progress_.get();
}

void Engine::zero_losses() { ops_.fill(losses_.reshape({losses_.elements()}), 0); }

device::Event& Engine::message_event(Message kind, int slot) {
  return message_events_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(slot)];
}

Tensor Engine::incoming(Message kind, int slot) {
  const Section section(recorder_, "wait for pipeline");
  message_event(kind, slot).wait();
  return rows_of(memory_.message(kind, slot));
}

void Engine::start_message(const UnitAction& action) {
  const bool send = action.kind == Kind::send;
  const Message kind = action.gradient
                           ? (send ? Message::send_gradient : Message::receive_gradient)
                           : (send ? Message::send_activation : Message::receive_activation);
  comm::Communicator& channel = action.gradient ? groups_.gradients : groups_.activations;
  message_event(kind, action.slot) =
      channel.exchange({{rows_of(memory_.message(kind, action.slot)), action.peer, send}},
                       *message_streams_[static_cast<std::size_t>(kind)]);
}

void Engine::wait_for_messages() {
  const Section section(recorder_, "wait for pipeline");
  for (auto& events : message_events_) {
    for (device::Event& event : events) event.wait();
  }
}

Engine::Gathered& Engine::gathered(int group) {
  const int buffer = state_.gather_buffers().buffer[static_cast<std::size_t>(group)];
  return gathered_[static_cast<std::size_t>(buffer)];
}

device::Event Engine::start_gather(int group) {
  return groups_.shard.all_gather_v(state_.group_values(group), state_.own_values(group),
                                    state_.shards().counts(group), state_stream_);
}

void Engine::wait_for_parameters(int unit) {
  if (!state_.values_sharded()) return;
  const Section section(recorder_, "wait for shards");
  for (int g : state_.layout().groups_of(unit)) {
    const Gathered& buffer = gathered(g);
    TRIREME_ASSERT(buffer.group == g, "unit {} reads group {} where {} is", unit, g, buffer.group);
    buffer.ready.wait();
  }
}

void Engine::gather_updated() {
  for (Gathered& buffer : gathered_) buffer.group = -1;
  if (!state_.options().optimizer_sharded() || state_.values_sharded()) return;
  const Section section(recorder_, "gather parameters");
  std::vector<device::Event> gathers;
  for (int g = 0; g < state_.shards().groups(); ++g) gathers.push_back(start_gather(g));
  for (const device::Event& gather : gathers) gather.wait();
}

bool Engine::writes_gradients(const UnitAction& action, int leaf) const {
  if (walk_.mode != model::Mode::train || !action.adds_to_gradients(stage_.last_unit())) {
    return false;
  }
  const std::ptrdiff_t index = &action - walk_.program->actions.data();
  return gradients_.writes(static_cast<std::size_t>(index), leaf);
}

void Engine::prepare(const UnitAction& action) {
  const bool forward = action.kind == Kind::forward;
  if (action.kind != Kind::backward_weight) wait_for_parameters(action.unit);
  if (walk_.mode == model::Mode::train && action.adds_to_gradients(stage_.last_unit())) {
    gradients_.prepare(action.unit, writes_gradients(action, 0));
  }
  if (action.input_slot >= 0 && action.kind != Kind::recompute) {
    const Tensor message = incoming(
        forward ? Message::receive_activation : Message::receive_gradient, action.input_slot);
    const Tensor input = rows_of(forward ? memory_.input(action) : output_gradient(action));
    if (input && input.data() != message.data()) ops_.copy(input, message);
  }
  const bool passes_on =
      forward || action.kind == Kind::backward || action.kind == Kind::backward_input;
  if (action.output_slot >= 0 && passes_on) {
    const Section section(recorder_, "wait for pipeline");
    // The earlier send from this slot.
    message_event(forward ? Message::send_activation : Message::send_gradient, action.output_slot)
        .wait();
  }
}

void Engine::start(const UnitAction& action) {
  switch (action.kind) {
    case Kind::receive:
    case Kind::send:
      start_message(action);
      break;
    case Kind::gather: {
      const device::Range range("gather parameters");
      Gathered& buffer = gathered(action.group);
      buffer.group = action.group;
      buffer.ready = start_gather(action.group);
      break;
    }
    case Kind::reduce: {
      const device::Range range("reduce gradients");
      gradients_.reduce(action.group);
      break;
    }
    case Kind::reduce_tied: {
      const device::Range range("reduce tied gradients");
      gradients_.reduce_tied(action.group);
      break;
    }
    case Kind::forward:
    case Kind::backward:
    case Kind::recompute:
    case Kind::backward_input:
    case Kind::backward_weight:
      no_case_for(action.kind);  // computed, not started
  }
  if (progress_) progress_->wake();
}

std::vector<bool> Engine::find_continuing() const {
  const std::vector<UnitAction>& actions = stage_.program().actions;
  std::vector<bool> aliased = stage_.memory().aliased();  // by group
  std::vector<bool> continuing;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const UnitAction& action = actions[i];
    bool alone = !action.is_compute() || i == 0 || !actions[i - 1].is_compute() ||
                 action.input_slot >= 0 || action.output_slot >= 0 || state_.values_sharded();
    if (action.is_compute() && action.adds_to_gradients(stage_.last_unit())) {
      alone = alone || state_.gradients_sharded();
      for (const int g : stage_.layout().groups_of(action.unit)) {
        if (aliased.empty() || !aliased[static_cast<std::size_t>(g)]) continue;
        aliased[static_cast<std::size_t>(g)] = false;
        alone = true;
      }
    }
    continuing.push_back(!alone);
  }
  return continuing;
}

std::size_t Engine::compute_from(std::size_t begin) {
  const std::vector<UnitAction>& actions = walk_.program->actions;
  const bool train = walk_.mode == model::Mode::train;
  std::size_t end = begin + 1;
  bool forward = actions[begin].kind == Kind::forward, backward = !forward;
  for (; train && graphs_.active() && end < actions.size() && end - begin < most_together &&
         continuing_[end];
       ++end) {
    (actions[end].kind == Kind::forward ? forward : backward) = true;
  }
  const Section section(recorder_, !train      ? "forward of evaluation"
                                   : !backward ? "forward"
                                   : !forward  ? "backward"
                                               : "forward and backward");
  prepare(actions[begin]);
  const auto work = [&](device::GraphSequence* capture) {
    tensor_.capture = capture;
    for (std::size_t i = begin; i < end; ++i) compute(actions[i]);
    tensor_.capture = nullptr;
  };
  if (train) {
    graphs_.queue(begin, work);
  } else {
    work(nullptr);
  }
  if (progress_ && state_.gradients_sharded()) progress_->wake();  // prepare may have enqueued
  return end;
}

void Engine::run(const Walk& walk) {
  walk_ = walk;
  const std::vector<UnitAction>& actions = walk.program->actions;
  for (std::size_t i = 0; i < actions.size();) {
    if (options_.watchdog != nullptr) options_.watchdog->beat(to_string(actions[i]));
    if (actions[i].is_compute()) {
      i = compute_from(i);
    } else {
      start(actions[i++]);
    }
  }
}

double Engine::sum_sets() {
  const Section section(recorder_, "sum loss and norm");
  stage_.add_sets(
      [&](std::int64_t to, std::int64_t from) {
        set_sums_[static_cast<std::size_t>(to)] += set_sums_[static_cast<std::size_t>(from)];
      },
      [&](std::int64_t set) {
        double& sum = set_sums_[static_cast<std::size_t>(set)];
        sum = groups_.context.all_reduce(sum, comm::Reduction::sum);
        if (groups_.context.rank() > 0) sum = -0.0;  // the sum over all copies has it once
      });
  return groups_.data.all_reduce(set_sums_.front(), comm::Reduction::sum);
}

void Engine::start_step(const std::vector<HostMicrobatch>& whole) {
  TRIREME_ASSERT(static_cast<int>(whole.size()) == stage_.options().micro_batches,
                 "{} micro-batches for a program of {}", whole.size(),
                 stage_.options().micro_batches);
  const std::vector<HostMicrobatch>& batches = own_parts(whole);
  const int leaves = memory_.plan().leaves().count;
  std::fill(set_sums_.begin(), set_sums_.end(), 0.0);
  for (std::size_t m = 0; m < batches.size(); ++m) {
    for (int leaf = 0; leaf < leaves; ++leaf) {
      set_sums_[static_cast<std::size_t>(stage_.set_of(static_cast<int>(m), leaf))] +=
          batches[m].weight(leaf, leaves);
    }
  }
  const LossSum sum{.weight = sum_sets()};
  denominator_ = sum.weight;
  {
    const Section section(recorder_, "zero gradients");
    // A step without targets (loss weights of a dataset) has gradients 0.
    batches_.take(batches, denominator_ == 0 ? 0 : loss_scale_ / denominator_);
    zero_losses();
    gradients_.begin_step();
  }
  StepGraphs::Pattern pattern;  // what attention and dropout depend on
  for (const HostMicrobatch& batch : batches) {
    pattern.push_back((batch.view().plain ? 1 : 0) + (batch.view().documents ? 2 : 0));
  }
  graphs_.begin_step(pattern);
  run({.program = &stage_.program(), .mode = model::Mode::train});
  if (options_.watchdog != nullptr) options_.watchdog->beat("wait for gradients");
  {
    const device::Range range("wait for gradients");
    gradients_.finish();
  }
  wait_for_messages();
  losses_read_.queue();
}

LossSum Engine::step_sums() {
  const int leaves = memory_.plan().leaves().count;
  const auto* parts = losses_read_.values().as<double>();
  std::fill(set_sums_.begin(), set_sums_.end(), 0.0);
  for (int m = 0; m < stage_.options().micro_batches; ++m) {
    for (int leaf = 0; leaf < leaves; ++leaf) {
      set_sums_[static_cast<std::size_t>(stage_.set_of(m, leaf))] += parts[m * leaves + leaf];
    }
  }
  const double own = sum_sets();  // zero but on the last stage
  const Section section(recorder_, "sum loss and norm");
  return {groups_.pipeline.all_reduce(own, comm::Reduction::sum), denominator_};
}

const std::vector<HostMicrobatch>& Engine::own_parts(std::span<const HostMicrobatch> batches) {
  taken_.clear();
  for (const HostMicrobatch& batch : batches) taken_.push_back(batch.cut(stage_.shares().context));
  return taken_;
}

std::vector<LossSum> Engine::evaluate(const HostMicrobatch& whole) {
  const HostMicrobatch& batch = own_parts({&whole, 1}).front();
  batches_.take(batch);
  zero_losses();
  run({.program = &stage_.forward_program()});
  wait_for_messages();
  losses_read_.queue();
  device::wait_for(device_);
  const int leaves = memory_.plan().leaves().count;
  const auto* sums = losses_read_.values().as<double>();  // zeros but on the last stage
  const int pairs = stage_.shares().context.count;
  std::vector<LossSum> result;
  for (int first = 0; first < leaves; first += pairs) {
    std::vector<LossSum> parts;
    for (int leaf = first; leaf < first + pairs; ++leaf) {
      parts.push_back({sums[leaf], batch.weight(leaf, leaves)});
    }
    add_pairwise(pairs, [&](std::int64_t to, std::int64_t from) {
      parts[static_cast<std::size_t>(to)].loss += parts[static_cast<std::size_t>(from)].loss;
      parts[static_cast<std::size_t>(to)].weight += parts[static_cast<std::size_t>(from)].weight;
    });
    const auto add = [](comm::Communicator& group, double sum) {
      return group.all_reduce(sum, comm::Reduction::sum);
    };
    result.push_back({add(groups_.pipeline, add(groups_.context, parts.front().loss)),
                      add(groups_.context, parts.front().weight)});
  }
  return result;
}

void Engine::extend(const model::Microbatch& tokens, std::vector<model::KeyValueCache>& caches,
                    const Tensor& logits) {
  TRIREME_ASSERT(!stage_.shares().sequence_parallel, "generation with sequence parallelism");
  TRIREME_ASSERT(memory_.plan().leaves().count == 1, "generation with {} sequences at once",
                 memory_.plan().leaves().count);
  batches_.use(tokens);
  run({.program = &stage_.forward_program(), .caches = &caches, .logits = logits});
  wait_for_messages();
}

void Engine::logits(const HostMicrobatch& batch, const Tensor& logits) {
  TRIREME_ASSERT(!stage_.shares().context.cuts(), "logits of cut sequences");
  batches_.take(batch);
  run({.program = &stage_.forward_program(), .logits = logits});
  wait_for_messages();
}

}  // namespace trireme::parallel
