// The engine's walks through the units that are no training step: forward alone.
#include "trireme/parallel/engine.hpp"

namespace trireme::parallel {

using Kind = UnitAction::Kind;

void Engine::evaluate(const UnitAction& action) {
  const Section section(recorder_, "forward of evaluation");
  prepare(action, model::Mode::evaluate);
  compute(action, model::Mode::evaluate);
}

std::vector<LossSum> Engine::evaluate(const HostMicrobatch& batch) {
  const int leaves = memory_.plan().leaves().count;
  const int last = stage_.options().place.pipeline * stage_.options().virtual_stages - 1;
  batches_.take(batch);
  zero_losses();
  for (int chunk = 0; chunk < static_cast<int>(stage_.chunks().size()); ++chunk) {
    const int stages = stage_.options().place.pipeline;
    const int k = chunk * stages + stage_.options().place.stage;
    if (k > 0) {
      start_message({.kind = Kind::receive, .peer = stage_.stage_of(k - 1), .slot = 0});
    }
    const params::Range& units = stage_.chunks()[static_cast<std::size_t>(chunk)];
    for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
      UnitAction action{.kind = Kind::forward,
                        .micro_batch = 0,
                        .chunk = chunk,
                        .unit = static_cast<int>(unit),
                        .stash = 0};
      if (unit == units.begin && k > 0) action.input_slot = 0;
      if (unit + 1 == units.end && k < last) action.output_slot = 0;
      if (state_.values_sharded()) {
        for (int g : state_.layout().groups_of(action.unit)) exchange_.gather(g);
      }
      evaluate(action);
    }
    if (k < last) {
      start_message({.kind = Kind::send, .peer = stage_.stage_of(k + 1), .slot = 0});
      message_event(Message::send_activation, 0).wait();
    }
  }
  losses_read_.queue();
  device::wait_for(device_);
  const auto* sums = losses_read_.values().as<double>();  // zeros but on the last stage
  std::vector<LossSum> result;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    result.push_back({groups_.pipeline.all_reduce(sums[leaf], comm::Reduction::sum),
                      batch.weight(leaf, leaves)});
  }
  return result;
}

void Engine::extend(const model::Microbatch& tokens, std::vector<model::KeyValueCache>& caches,
                    const Tensor& logits) {
  TRIREME_ASSERT(!stage_.shares().sequence_parallel, "generation with sequence parallelism");
  const std::int64_t rows = tokens.tokens();
  const int stages = stage_.options().place.pipeline;
  const auto part = [&](const Tensor& t) { return t.slice(0, 0, rows); };
  for (int chunk = 0; chunk < static_cast<int>(stage_.chunks().size()); ++chunk) {
    const int k = chunk * stages + stage_.options().place.stage;
    const params::Range& units = stage_.chunks()[static_cast<std::size_t>(chunk)];
    Tensor x;
    if (k > 0) {
      x = part(memory_.message(Message::receive_activation, 0));
      groups_.activations.exchange({{x, stage_.stage_of(k - 1), false}}, tensor_stream_).wait();
    }
    for (std::int64_t u = units.begin; u < units.end; ++u) {
      const auto unit = static_cast<std::size_t>(u);
      UnitAction action{.kind = Kind::forward,
                        .micro_batch = 0,
                        .chunk = chunk,
                        .unit = static_cast<int>(u),
                        .stash = 0};
      if (state_.values_sharded()) {
        for (int g : state_.layout().groups_of(action.unit)) exchange_.gather(g);
        exchange_.need_values(action.unit);
      }
      const model::UnitMemory memory = memory_.unit(action, 0);
      if (action.unit == stage_.last_unit()) {
        model::Microbatch last = tokens;
        last.length = 1;
        stage_.model().head().logits(context(last, action, model::Mode::evaluate, 0), logits,
                                     x.slice(0, rows - 1, rows), memory);
        return;
      }
      model::UnitContext call = context(tokens, action, model::Mode::evaluate, 0);
      if (unit < caches.size() && !caches[unit].keys.empty()) call.cache = &caches[unit];
      const bool leaves = u + 1 == units.end;
      const Tensor y =
          part(leaves ? memory_.message(Message::send_activation, 0) : memory_.next_input(action));
      stage_.model().units()[unit]->forward(call, y, x, memory);
      x = y;
    }
    groups_.activations.exchange({{x, stage_.stage_of(k + 1), true}}, tensor_stream_).wait();
  }
}

void Engine::logits(const HostMicrobatch& batch, const Tensor& logits) {
  TRIREME_ASSERT(stage_.options().place.pipeline == 1, "logits on one stage");
  batches_.take(batch);
  for (int unit = 0; unit < stage_.last_unit(); ++unit) {
    evaluate({.kind = Kind::forward, .micro_batch = 0, .chunk = 0, .unit = unit, .stash = 0});
  }
  const UnitAction head{
      .kind = Kind::forward, .micro_batch = 0, .chunk = 0, .unit = stage_.last_unit(), .stash = 0};
  const Leaves& leaves = memory_.plan().leaves();
  const std::int64_t own = memory_.plan().own_rows();
  for (int leaf = 0; leaf < leaves.count; ++leaf) {
    const model::Microbatch tokens = leaf_of(batches_[0], leaf, leaves.count);
    stage_.model().head().logits(context(tokens, head, model::Mode::evaluate, 0),
                                 logits.slice(0, leaf * leaves.rows, (leaf + 1) * leaves.rows),
                                 memory_.input(head).slice(0, leaf * own, (leaf + 1) * own),
                                 memory_.unit(head, leaf));
  }
}

}  // namespace trireme::parallel
