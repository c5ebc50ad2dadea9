// The engine's computation of one action: a unit's forward or backward, leaf by leaf.
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
          .writes_gradients = writes_gradients(action, leaf),
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
void Engine::for_each_sequence(const UnitAction& action, const Visit& visit) {
  const int leaves = memory_.plan().leaves().count, pairs = stage_.shares().context.count;
  for (int first = 0; first < leaves; first += pairs) {
    std::vector<model::Microbatch> tokens;
    for (int leaf = first; leaf < first + pairs; ++leaf) {
      tokens.push_back(leaf_of(batches_[action.micro_batch], leaf, leaves));
    }
    visit(std::span<const model::Microbatch>(tokens), first);
  }
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
  if (last && walk_.logits) {
    for (int leaf = 0; leaf < leaves; ++leaf) {
      compute_logits(action, leaf_of(batches_[action.micro_batch], leaf, leaves), leaf,
                     leaf_rows(x, leaf));
    }
    return;
  }
  for_each_sequence(action, [&](std::span<const model::Microbatch> pairs, int first) {
    std::vector<model::ForwardCall> calls;
    for (const model::Microbatch& tokens : pairs) {
      const int leaf = first + static_cast<int>(calls.size());
      const int set =
          walk_.mode == model::Mode::train ? stage_.set_of(action.micro_batch, leaf) : 0;
      model::UnitContext call = context(tokens, action, leaf, set);
      if (walk_.caches != nullptr && !(*walk_.caches)[unit].keys.empty()) {
        call.cache = &(*walk_.caches)[unit];
      }
      call.loss = losses_.slice(0, action.micro_batch, action.micro_batch + 1)
                      .slice(1, leaf, leaf + 1)
                      .reshape({1});
      calls.push_back({call, leaf_rows(y, leaf), leaf_rows(x, leaf)});
    }
    stage_.model().units()[unit]->forward_pairs(calls);
  });
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
  const model::Unit& unit = *stage_.model().units()[static_cast<std::size_t>(action.unit)];
  const bool whole = action.kind == Kind::backward, input = action.kind == Kind::backward_input;
  const Tensor dy = output_gradient(action);
  Tensor x, dx;
  if (action.unit > 0) x = memory_.input(action);
  if ((whole || input) && action.unit > 0) {
    dx = action.output_slot >= 0 ? memory_.message(Message::send_gradient, action.output_slot)
                                 : memory_.input_gradient(action);
  }
  for_each_sequence(action, [&](std::span<const model::Microbatch> pairs, int first) {
    std::vector<model::BackwardCall> calls;
    for (const model::Microbatch& tokens : pairs) {
      const int leaf = first + static_cast<int>(calls.size());
      const int set = stage_.set_of(action.micro_batch, leaf);
      calls.push_back({context(tokens, action, leaf, set), leaf_rows(dx, leaf), leaf_rows(dy, leaf),
                       leaf_rows(x, leaf)});
    }
    if (whole || action.kind == Kind::recompute) unit.recompute_pairs(calls);
    if (action.kind != Kind::recompute) unit.backward_pairs(calls, part_of(action.kind));
  });
}

}  // namespace trireme::parallel
