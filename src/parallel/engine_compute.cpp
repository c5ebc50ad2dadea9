// Parts of the engine: gathers of parameters, graphs of a step, and the computation of one action
// (a unit's forward or backward, leaf by leaf).
#include "trireme/device/cuda.hpp"
#include "trireme/parallel/engine.hpp"

namespace trireme::parallel {

using Kind = UnitAction::Kind;

namespace {

model::BackwardPart part_of(Kind kind) {
  switch (kind) {
    case Kind::backward:
      return model::BackwardPart::all;
    case Kind::backward_input:
      return model::BackwardPart::input;
    case Kind::backward_weight:
      return model::BackwardPart::weight;
    case Kind::recompute:
    case Kind::forward:
    case Kind::receive:
    case Kind::send:
    case Kind::gather:
    case Kind::reduce:
    case Kind::reduce_tied:
      break;
  }
  no_case_for(kind);
}

}  // namespace

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

StepGraphs::StepGraphs(device::MemoryLedger& ledger, bool wanted)
    : ledger_(ledger), device_(wanted && ledger.device().captures() ? &ledger.device() : nullptr) {}

void StepGraphs::forget() {
  steps_.clear();
  current_ = nullptr;
}

void StepGraphs::begin_step(const Pattern& pattern) {
  if (!active()) return;
  if (current_ != nullptr) current_->queued = true;
  const auto known = steps_.find(pattern);
  if (known != steps_.end()) {
    current_ = &known->second;
  } else {
    current_ = steps_.size() < most_patterns ? &steps_[pattern] : nullptr;
  }
}

void StepGraphs::queue(std::size_t number, const std::function<void()>& work) {
  if (current_ == nullptr || !current_->queued) return work();
  const std::uint64_t added = ledger_.times_added(device::Use::workspace);
  if (added != added_) {
    for (auto& [known, step] : steps_) step.graphs.clear();
  }
  added_ = added;
  std::unique_ptr<device::Graph>& graph = current_->graphs[number];
  if (graph == nullptr) {
    try {
      graph = device::capture(*device_, work);
      ++captured_;
    } catch (const Error& error) {
      // Nothing was executed. Graphs that were launched keep their resources until they end.
      refusal_ = error.what();
      device_ = nullptr;
      forget();
      return work();
    }
  }
  const device::Range range("launch of a graph");
  graph->launch();
  ++launched_;
}

std::int64_t Engine::own_rows() const {
  return stage_.shares().rows(batches_[0].tokens() / memory_.plan().leaves().count).size();
}

Tensor Engine::rows_of(const Tensor& activation) const {
  return activation ? activation.slice(0, 0, memory_.plan().leaves().count * own_rows()) : Tensor();
}

Tensor Engine::leaf_rows(const Tensor& activation, int leaf) const {
  const std::int64_t own = own_rows();
  return activation ? activation.slice(0, leaf * own, (leaf + 1) * own) : Tensor();
}

model::UnitContext Engine::context(const model::Microbatch& tokens, const UnitAction& action,
                                   int leaf, int set) {
  const bool last_unit = action.unit == stage_.last_unit();
  return {.ops = ops_,
          .batch = tokens,
          .shares = stage_.shares(),
          .tensor = tensor_,
          .values = state_.values(),
          .gradients = state_.gradients(set, last_unit),
          .memory = memory_.unit(action, leaf),
          .mode = walk_.mode,
          .seed = options_.seed,
          .gradient_factor = batches_.factor(),
          .frequencies = frequencies_};
}

Tensor Engine::output_gradient(const UnitAction& action) {
  if (action.unit == stage_.last_unit() || action.kind == Kind::recompute) return {};
  // Where backward is split the gradient must last until the part for weights.
  const bool stays = action.input_slot >= 0 && action.pending < 0;
  return stays ? memory_.message(Message::receive_gradient, action.input_slot)
               : memory_.output_gradient(action);
}

void Engine::forward(const UnitAction& action) {
  const device::Range range(forward_names_[static_cast<std::size_t>(action.unit)]);
  const auto unit = static_cast<std::size_t>(action.unit);
  const bool last = action.unit == stage_.last_unit();
  const int leaves = memory_.plan().leaves().count;
  Tensor x, y;
  if (action.unit > 0) x = memory_.input(action);
  if (!last) {
    y = action.output_slot >= 0 ? memory_.message(Message::send_activation, action.output_slot)
                                : memory_.next_input(action);
  }
  for (int leaf = 0; leaf < leaves; ++leaf) {
    const model::Microbatch tokens = leaf_of(batches_[action.micro_batch], leaf, leaves);
    const Tensor own = leaf_rows(x, leaf);
    if (last && walk_.logits) {
      compute_logits(action, tokens, leaf, own);
      continue;
    }
    const int set = walk_.mode == model::Mode::train ? set_of(action.micro_batch, leaf) : 0;
    model::UnitContext call = context(tokens, action, leaf, set);
    if (walk_.caches != nullptr && !(*walk_.caches)[unit].keys.empty()) {
      call.cache = &(*walk_.caches)[unit];
    }
    call.loss = losses_.slice(0, action.micro_batch, action.micro_batch + 1)
                    .slice(1, leaf, leaf + 1)
                    .reshape({1});
    stage_.model().units()[unit]->forward(call, leaf_rows(y, leaf), own);
  }
}

void Engine::compute_logits(const UnitAction& action, model::Microbatch tokens, int leaf,
                            Tensor x) {
  const std::int64_t rows = tokens.tokens();
  Tensor logits = walk_.logits;
  if (walk_.caches == nullptr) {
    logits = logits.slice(0, leaf * rows, (leaf + 1) * rows);
  } else {  // of the last token
    tokens.length = 1;
    x = x.slice(0, rows - 1, rows);
  }
  stage_.model().head().logits(context(tokens, action, leaf, 0), logits, x);
}

void Engine::backward(const UnitAction& action) {
  const device::Range range(backward_names_[static_cast<std::size_t>(action.unit)]);
  const int leaves = memory_.plan().leaves().count;
  const model::Unit& unit = *stage_.model().units()[static_cast<std::size_t>(action.unit)];
  const bool whole = action.kind == Kind::backward, input = action.kind == Kind::backward_input;
  const Tensor dy = output_gradient(action);
  Tensor x, dx;
  if (action.unit > 0) x = memory_.input(action);
  if ((whole || input) && action.unit > 0) {
    dx = action.output_slot >= 0 ? memory_.message(Message::send_gradient, action.output_slot)
                                 : memory_.input_gradient(action);
  }
  for (int leaf = 0; leaf < leaves; ++leaf) {
    const model::Microbatch tokens = leaf_of(batches_[action.micro_batch], leaf, leaves);
    const model::UnitContext call = context(tokens, action, leaf, set_of(action.micro_batch, leaf));
    const Tensor own = leaf_rows(x, leaf);
    if (whole || action.kind == Kind::recompute) unit.recompute(call, own);
    if (action.kind == Kind::recompute) continue;
    unit.backward(call, part_of(action.kind), leaf_rows(dx, leaf), leaf_rows(dy, leaf), own);
  }
}

}  // namespace trireme::parallel
