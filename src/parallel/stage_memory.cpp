#include "trireme/parallel/stage_memory.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

namespace trireme::parallel {

using model::Area;

namespace {

using Kind = UnitAction::Kind;
constexpr auto float_bytes = static_cast<std::int64_t>(sizeof(float));

/// By group: the first action that adds to its gradient.
std::vector<std::size_t> first_additions(const Program& program, const params::Layout& layout,
                                         int last_unit) {
  std::vector<std::size_t> first(layout.groups().size(), std::numeric_limits<std::size_t>::max());
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const UnitAction& action = program.actions[i];
    if (!action.adds_to_gradients(last_unit)) continue;
    for (int g : layout.groups_of(action.unit)) {
      auto& place = first[static_cast<std::size_t>(g)];
      place = std::min(place, i);
    }
  }
  return first;
}

/// By part: the last action that reads it.
std::vector<std::size_t> last_reads(const Program& program, const std::vector<StashPart>& parts) {
  std::map<std::tuple<int, int, int>, std::size_t> last;  // by chunk, slot and unit
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const UnitAction& action = program.actions[i];
    if (action.unit >= 0) last[{action.chunk, action.stash, action.unit}] = i;
  }
  std::vector<std::size_t> result;
  result.reserve(parts.size());
  for (const StashPart& part : parts) result.push_back(last.at({part.chunk, part.slot, part.unit}));
  return result;
}

}  // namespace

Aliases plan_aliases(const Program& program, const params::Layout& layout, int last_unit,
                     const std::vector<StashPart>& parts) {
  Aliases aliases{std::vector<std::int64_t>(parts.size(), -1),
                  std::vector<bool>(layout.groups().size(), false)};
  const std::vector<std::size_t> additions = first_additions(program, layout, last_unit);
  const std::vector<std::size_t> reads = last_reads(program, parts);
  std::vector<std::size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return reads[a] < reads[b]; });
  // A part that is read later can alias no group that an earlier one cannot, so a group that one
  // part skips is of no use to those after it. Parts are placed from the end on: backward adds to
  // the last units' gradients first, and the groups that stay free longest are left for last.
  constexpr auto alignment = static_cast<std::int64_t>(device::alignment);
  std::int64_t limit = layout.elements() * float_bytes;
  for (const std::size_t part : order) {
    const auto bytes = static_cast<std::int64_t>(parts[part].bytes);
    if (bytes == 0) continue;
    std::int64_t begin = limit, end = limit;  // free for this part
    for (auto g = layout.groups().size(); g-- > 0 && end - begin < bytes;) {
      const params::Range& own = layout.groups()[g].elements;
      const std::int64_t first = own.begin * float_bytes, past = own.end * float_bytes;
      if (first >= end) continue;
      if (additions[g] <= reads[part]) {
        begin = end = first;
      } else {
        TRIREME_ASSERT(past >= begin, "groups {} bytes apart", begin - past);
        begin = first;
      }
    }
    end -= end % alignment;
    if (end - begin < bytes) continue;
    limit = end - bytes;
    aliases.places[part] = limit;
    for (std::size_t g = 0; g < layout.groups().size(); ++g) {
      const params::Range& own = layout.groups()[g].elements;
      if (own.begin * float_bytes < end && own.end * float_bytes > limit) aliases.aliased[g] = true;
    }
  }
  return aliases;
}

std::size_t StagePlan::activation_bytes() const {
  return device::aligned(static_cast<std::size_t>(leaves_.calls() * own_rows_ * width_) *
                         size_of(type_));
}

StagePlan::StagePlan(const model::Transformer& model, const std::vector<params::Range>& chunks,
                     const model::Shares& shares, const Leaves& leaves, const Program& program,
                     const params::Layout* gradients)
    : leaves_(leaves),
      own_rows_(shares.rows(leaves.call_rows()).size()),
      width_(model.config().width),
      type_(shares.compute) {
  const auto calls = static_cast<std::size_t>(leaves.calls());
  const std::size_t activation = activation_bytes();
  std::size_t largest_rebuilt = 0, largest_delta = 0, largest_scratch = 0;
  // A chunk may do some micro-batches' backward whole and split that of others (schedule files).
  const bool whole_backward = std::any_of(
      program.actions.begin(), program.actions.end(),
      [](const UnitAction& action) { return action.kind == UnitAction::Kind::backward; });
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    Chunk chunk{.units = chunks[c]};
    chunk.pending_slots = program.pending_slots[c];
    for (std::int64_t unit = chunks[c].begin; unit < chunks[c].end; ++unit) {
      model::UnitPlan plan(leaves.call_rows(), shares, chunk.pending_slots > 0, leaves.at_once);
      model.units()[static_cast<std::size_t>(unit)]->plan(plan);
      UnitSizes sizes{plan.bytes(Area::stash), plan.bytes(Area::rebuilt), plan.bytes(Area::delta),
                      plan.bytes(Area::scratch)};
      // Between I and W a unit keeps its output's gradient, what it recomputed and its deltas.
      sizes.pending_offset = chunk.pending_bytes;
      chunk.pending_bytes += activation + calls * (sizes.rebuilt + sizes.delta);
      largest_rebuilt = std::max(largest_rebuilt, sizes.rebuilt);
      largest_delta = std::max(largest_delta, sizes.delta);
      largest_scratch = std::max(largest_scratch, sizes.scratch);
      chunk.sizes.push_back(sizes);
    }
    chunks_.push_back(std::move(chunk));
  }
  place_stash(program, gradients, static_cast<int>(model.units().size()) - 1);
  const auto take = [&](std::size_t& place, std::size_t bytes) {
    place = work_bytes_;
    work_bytes_ += bytes;
  };
  const auto messages = [&](int slots) { return static_cast<std::size_t>(slots) * activation; };
  take(receive_activation_, messages(program.receive_activation_slots));
  take(receive_gradient_, messages(program.receive_gradient_slots));
  take(send_activation_, messages(program.send_activation_slots));
  take(send_gradient_, messages(program.send_gradient_slots));
  for (Chunk& chunk : chunks_) {
    take(chunk.pending_begin, chunk.pending_bytes * static_cast<std::size_t>(chunk.pending_slots));
  }
  // A gradient passes from unit to unit of a chunk.
  const bool passes = std::ranges::any_of(chunks, [](const auto& c) { return c.size() > 1; });
  take(passing_, passes ? 2 * activation : 0);
  // Pairs of chunks of a sequence are computed together.
  pairs_ = shares.context.count;
  const auto take_each = [&](Each& each, std::size_t bytes) {
    each.bytes = bytes;
    take(each.begin, bytes * static_cast<std::size_t>(pairs_));
  };
  take_each(rebuilt_, largest_rebuilt);
  take_each(delta_, whole_backward ? largest_delta : 0);
  take_each(scratch_, largest_scratch);
}

void StagePlan::place_stash(const Program& program, const params::Layout* gradients,
                            int last_unit) {
  std::vector<StashPart> parts;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const Chunk& chunk = chunks_[c];
    for (int slot = 0; slot < program.stash_slots[c]; ++slot) {
      for (std::int64_t unit = chunk.units.begin; unit < chunk.units.end; ++unit) {
        const UnitSizes& sizes = chunk.sizes[static_cast<std::size_t>(unit - chunk.units.begin)];
        StashPart part{static_cast<int>(c), slot, static_cast<int>(unit),
                       unit > 0 ? activation_bytes() : 0};
        parts.push_back(part);
        part.bytes = static_cast<std::size_t>(leaves_.calls()) * sizes.stash;
        parts.push_back(part);
      }
    }
  }
  Aliases aliases;
  if (gradients != nullptr) {
    aliases = plan_aliases(program, *gradients, last_unit, parts);
    aliased_ = aliases.aliased;
  }
  const auto place = [&](std::size_t part) {
    const bool alias = gradients != nullptr && aliases.places[part] >= 0;
    if (alias) return Place{true, static_cast<std::size_t>(aliases.places[part])};
    const Place own{false, stash_bytes_};
    stash_bytes_ += parts[part].bytes;
    return own;
  };
  for (std::size_t part = 0; part < parts.size(); part += 2) {
    std::vector<Kept>& kept = chunks_[static_cast<std::size_t>(parts[part].chunk)].kept;
    const Place input = place(part);
    kept.push_back({input, place(part + 1)});
  }
}

StageMemory::StageMemory(const StagePlan& plan, const Tensor& gradients,
                         device::MemoryLedger& ledger)
    : plan_(plan),
      stash_(ledger, device::Use::stash, plan.stash_bytes()),
      gradients_(gradients),
      work_(ledger, device::Use::workspace, plan.work_bytes()) {}

Tensor StageMemory::activation(device::Arena& arena, std::size_t offset) {
  return arena.view(plan_.type_, {plan_.leaves_.calls() * plan_.own_rows_, plan_.width_}, offset);
}

const StagePlan::Chunk& StageMemory::chunk(const UnitAction& action) const {
  return plan_.chunks_[static_cast<std::size_t>(action.chunk)];
}

const StagePlan::UnitSizes& StageMemory::sizes(const UnitAction& action) const {
  return chunk(action).sizes[static_cast<std::size_t>(action.unit - chunk(action).units.begin)];
}

const StagePlan::Kept& StageMemory::kept(const UnitAction& action) const {
  const StagePlan::Chunk& own = chunk(action);
  const auto slot = static_cast<std::size_t>(action.stash);
  return own
      .kept[slot * own.sizes.size() + static_cast<std::size_t>(action.unit - own.units.begin)];
}

Tensor StageMemory::message(Message kind, int slot) {
  const std::size_t begin[] = {plan_.receive_activation_, plan_.receive_gradient_,
                               plan_.send_activation_, plan_.send_gradient_};
  return activation(work_, begin[static_cast<std::size_t>(kind)] +
                               static_cast<std::size_t>(slot) * plan_.activation_bytes());
}

Tensor StageMemory::input(const UnitAction& action) {
  const StagePlan::Place& place = kept(action).input;
  return activation(arena(place), place.offset);
}

Tensor StageMemory::next_input(const UnitAction& action) {
  UnitAction next = action;
  ++next.unit;
  return input(next);
}

Tensor StageMemory::passing(const UnitAction& action, int unit) {
  if (action.pending < 0) {
    return activation(
        work_, plan_.passing_ + static_cast<std::size_t>(unit % 2) * plan_.activation_bytes());
  }
  UnitAction at = action;
  at.unit = unit;
  const StagePlan::Chunk& own = chunk(action);
  return activation(work_, own.pending_begin +
                               static_cast<std::size_t>(action.pending) * own.pending_bytes +
                               sizes(at).pending_offset);
}

Tensor StageMemory::output_gradient(const UnitAction& action) {
  return passing(action, action.unit);
}

Tensor StageMemory::input_gradient(const UnitAction& action) {
  return passing(action, action.unit - 1);
}

model::UnitMemory StageMemory::unit(const UnitAction& action, int call) {
  const StagePlan::Chunk& own = chunk(action);
  const StagePlan::UnitSizes& size = sizes(action);
  const auto number = static_cast<std::size_t>(call);
  const StagePlan::Place& stash = kept(action).stash;
  const auto pair = static_cast<std::size_t>(call % plan_.pairs_);
  std::size_t rebuilt = plan_.rebuilt_.of(pair), delta = plan_.delta_.of(pair);
  if (action.pending >= 0 && action.kind != UnitAction::Kind::forward) {
    rebuilt = own.pending_begin + static_cast<std::size_t>(action.pending) * own.pending_bytes +
              size.pending_offset + plan_.activation_bytes() + number * (size.rebuilt + size.delta);
    delta = rebuilt + size.rebuilt;
  }
  return model::UnitMemory({{{&arena(stash), stash.offset + number * size.stash},
                             {&work_, rebuilt},
                             {&work_, delta},
                             {&work_, plan_.scratch_.of(pair)}}});
}

}  // namespace trireme::parallel
