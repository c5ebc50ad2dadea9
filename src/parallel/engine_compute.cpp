// The engine's computation of one action: a unit's forward or backward, call by call.
#include "trireme/device/cuda.hpp"
#include "trireme/parallel/engine.hpp"

namespace trireme::parallel {

using Kind = UnitAction::Kind;

namespace {

model::BackwardPart backward_part(Kind kind) {
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

std::int64_t Engine::own_rows() const {
  return stage_.shares().rows(batches_[0].tokens() / memory_.plan().leaves().calls()).size();
}

Tensor Engine::rows_of(const Tensor& activation) const {
  return activation ? activation.slice(0, 0, memory_.plan().leaves().calls() * own_rows())
                    : Tensor();
}

Tensor Engine::call_rows(const Tensor& activation, int call) const {
  const std::int64_t own = own_rows();
  return activation ? activation.slice(0, call * own, (call + 1) * own) : Tensor();
}

model::UnitContext Engine::context(const model::Microbatch& tokens, const UnitAction& action,
                                   int call) {
  const bool train = walk_.mode == model::Mode::train;
  const int at_once = memory_.plan().leaves().at_once;
  TRIREME_ASSERT(tokens.tokens() % at_once == 0, "{} tokens in {} leaves", tokens.tokens(),
                 at_once);
  std::vector<model::LeafSums> leaves;
  for (int leaf = call * at_once; leaf < (call + 1) * at_once; ++leaf) {
    model::LeafSums sums{.writes_gradients = writes_gradients(action, leaf)};
    if (train) {
      sums.gradients = &state_.gradients(stage_.set_of(action.micro_batch, leaf),
                                         action.unit == stage_.last_unit());
    }
    if (action.kind == Kind::forward) {
      sums.loss = losses_.slice(0, action.micro_batch, action.micro_batch + 1)
                      .slice(1, leaf, leaf + 1)
                      .reshape({1});
    }
    leaves.push_back(sums);
  }
  return {.ops = ops_,
          .batch = tokens,
          .shares = stage_.shares(),
          .tensor = tensor_,
          .values = state_.values(),
          .leaves = std::move(leaves),
          .whole_sums = stage_.sets_of_call() > 1,
          .memory = memory_.unit(action, call),
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

void Engine::compute(const UnitAction& action) {
  const auto now = [&] { action.kind == Kind::forward ? forward(action) : backward(action); };
  if (!options_.compute_action) return now();
  const model::Unit& unit = *stage_.model().units()[static_cast<std::size_t>(action.unit)];
  ActionKind kind{
      .kind = action.kind, .chunk = action.chunk, .unit = typeid(unit), .writes_gradients = {}};
  for (int leaf = 0; leaf < memory_.plan().leaves().count; ++leaf) {
    kind.writes_gradients.push_back(writes_gradients(action, leaf));
  }
  options_.compute_action(kind, now);
}

template <class Visit>
void Engine::for_each_group(const UnitAction& action, const Visit& visit) {
  const int all = memory_.plan().leaves().calls(), pairs = stage_.shares().context.count;
  for (int first = 0; first < all; first += pairs) {
    std::vector<model::Microbatch> tokens;
    for (int call = first; call < first + pairs; ++call) {
      tokens.push_back(part_of(batches_[action.micro_batch], call, all));
    }
    visit(std::span<const model::Microbatch>(tokens), first);
  }
}

void Engine::forward(const UnitAction& action) {
  const device::Range range(forward_names_[static_cast<std::size_t>(action.unit)]);
  const auto unit = static_cast<std::size_t>(action.unit);
  const bool last = action.unit == stage_.last_unit();
  const int all = memory_.plan().leaves().calls();
  Tensor x, y;
  if (action.unit > 0) x = memory_.input(action);
  if (!last) {
    y = action.output_slot >= 0 ? memory_.message(Message::send_activation, action.output_slot)
                                : memory_.next_input(action);
  }
  if (last && walk_.logits) {
    for (int call = 0; call < all; ++call) {
      compute_logits(action, part_of(batches_[action.micro_batch], call, all), call,
                     call_rows(x, call));
    }
    return;
  }
  for_each_group(action, [&](std::span<const model::Microbatch> parts, int first) {
    std::vector<model::ForwardCall> calls;
    for (const model::Microbatch& tokens : parts) {
      const int call = first + static_cast<int>(calls.size());
      calls.push_back({context(tokens, action, call), call_rows(y, call), call_rows(x, call)});
      if (walk_.caches != nullptr && !(*walk_.caches)[unit].keys.empty()) {
        calls.back().context.cache = &(*walk_.caches)[unit];
      }
    }
    stage_.model().units()[unit]->forward_pairs(calls);
  });
}

void Engine::compute_logits(const UnitAction& action, model::Microbatch tokens, int call,
                            Tensor x) {
  const std::int64_t rows = tokens.tokens();
  Tensor logits = walk_.logits;
  if (walk_.caches == nullptr) {
    logits = logits.slice(0, call * rows, (call + 1) * rows);
  } else {  // of the last token
    tokens.length = 1;
    x = x.slice(0, rows - 1, rows);
  }
  stage_.model().head().logits(context(tokens, action, call), logits, x);
}

void Engine::backward(const UnitAction& action) {
  const device::Range range(backward_names_[static_cast<std::size_t>(action.unit)]);
  const model::Unit& unit = *stage_.model().units()[static_cast<std::size_t>(action.unit)];
  const bool whole = action.kind == Kind::backward, input = action.kind == Kind::backward_input;
  const Tensor dy = output_gradient(action);
  Tensor x, dx;
  if (action.unit > 0) x = memory_.input(action);
  if ((whole || input) && action.unit > 0) {
    dx = action.output_slot >= 0 ? memory_.message(Message::send_gradient, action.output_slot)
                                 : memory_.input_gradient(action);
  }
  for_each_group(action, [&](std::span<const model::Microbatch> parts, int first) {
    std::vector<model::BackwardCall> calls;
    for (const model::Microbatch& tokens : parts) {
      const int call = first + static_cast<int>(calls.size());
      calls.push_back({context(tokens, action, call), call_rows(dx, call), call_rows(dy, call),
                       call_rows(x, call)});
    }
    if (whole || action.kind == Kind::recompute) unit.recompute_pairs(calls);
    if (action.kind != Kind::recompute) unit.backward_pairs(calls, backward_part(action.kind));
  });
}

}  // namespace trireme::parallel
