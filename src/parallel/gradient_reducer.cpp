#include "trireme/parallel/gradient_reducer.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace trireme::parallel {

namespace {

using Kind = UnitAction::Kind;

bool reduces(const UnitAction& action) {
  return action.kind == Kind::reduce || action.kind == Kind::reduce_tied;
}

/// The elements of a group in neighboring ranges of blocks of which `is` is equally true. What lies
/// between blocks belongs to those of which it is not.
template <class Is>
std::vector<std::pair<params::Range, bool>> split_by_row(const params::Layout& layout,
                                                         const params::Group& group, const Is& is) {
  std::vector<std::pair<params::Range, bool>> ranges;
  const auto add = [&](params::Range range, bool value) {
    if (range.size() <= 0) return;
    if (!ranges.empty() && ranges.back().second == value) {
      ranges.back().first.end = range.end;
    } else {
      ranges.emplace_back(range, value);
    }
  };
  std::int64_t end = group.elements.begin;
  for (std::int64_t b = group.blocks.begin; b < group.blocks.end; ++b) {
    const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
    if (!is(layout.table().row(block.row))) continue;
    add({end, block.offset}, false);
    end = block.offset + block.elements();
    add({block.offset, end}, true);
  }
  add({end, group.elements.end}, false);
  return ranges;
}

class Mark final : public device::Operation {
 public:
  explicit Mark(std::function<void()> reached) : reached_(std::move(reached)) {}
  void start() override { reached_(); }
  bool test() override { return true; }

 private:
  std::function<void()> reached_;
};

}  // namespace

std::vector<Bucket> plan_buckets(const Program& program, const params::Layout& layout,
                                 std::int64_t elements) {
  std::vector<Bucket> buckets;
  bool open = false;
  for (const UnitAction& action : program.actions) {
    if (!reduces(action)) continue;
    const bool tied = action.kind == Kind::reduce_tied;
    const params::Range& own = layout.groups()[static_cast<std::size_t>(action.group)].elements;
    // Backward goes from the last unit to the first, and the flat buffer from first to last.
    if (open && !tied && buckets.back().elements.begin == own.end) {
      buckets.back().elements.begin = own.begin;
      buckets.back().group = action.group;
    } else {
      buckets.push_back({own, action.group});
    }
    open = !tied && buckets.back().elements.size() < elements;
  }
  return buckets;
}

std::vector<std::vector<bool>> find_writers(const Stage& stage) {
  const params::Layout& layout = stage.layout();
  // By set and group.
  std::vector<std::vector<bool>> holds(static_cast<std::size_t>(stage.sets()),
                                       std::vector<bool>(layout.groups().size(), false));
  std::vector<std::vector<bool>> writers;
  for (const UnitAction& action : stage.program().actions) {
    writers.emplace_back();
    if (reduces(action)) {
      for (std::vector<bool>& held : holds) held[static_cast<std::size_t>(action.group)] = false;
    }
    if (!action.adds_to_gradients(stage.last_unit())) continue;
    const bool last = action.unit == stage.last_unit();
    for (int leaf = 0; leaf < stage.memory().leaves().count; ++leaf) {
      // The head's products are in forward, and the embedding has none.
      bool writes = action.unit != 0 && last == (action.kind == Kind::forward);
      std::vector<bool>& held =
          holds[static_cast<std::size_t>(stage.set_of(action.micro_batch, leaf))];
      for (const int g : layout.groups_of(action.unit)) {
        writes = writes && !held[static_cast<std::size_t>(g)];
        held[static_cast<std::size_t>(g)] = true;
      }
      writers.back().push_back(writes);
    }
  }
  return writers;
}

GradientReducer::GradientReducer(const Parts& parts, device::MemoryLedger& ledger)
    : state_(parts.state),
      parts_(parts),
      ops_(parts.ops),
      sums_(parts.state, ledger),
      writers_(find_writers(parts.stage)),
      written_first_(find_written_first()),
      zeros_(plan_zeros()),
      reductions_(parts.state.layout().groups().size(), 0),
      buffers_(static_cast<std::size_t>(parts.state.gradient_buffers().count)) {
  for (const UnitAction& action : parts.stage.program().actions) {
    if (reduces(action)) ++reductions_[static_cast<std::size_t>(action.group)];
  }
  if (!state_.options().optimizer_sharded()) {
    buckets_ = plan_buckets(parts.stage.program(), state_.layout(), parts.bucket_elements);
    return;
  }
  for (int g = 0; g < state_.shards().groups(); ++g) {
    buckets_.push_back({state_.shards().own(g), g});
  }
}

std::vector<std::vector<bool>> GradientReducer::find_written_first() const {
  const std::vector<UnitAction>& actions = parts_.stage.program().actions;
  const std::size_t groups = state_.layout().groups().size();
  const auto sets = static_cast<std::size_t>(state_.options().sets);
  std::vector<std::vector<bool>> first(sets, std::vector<bool>(groups, false)), seen = first;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    for (std::size_t leaf = 0; leaf < writers_[i].size(); ++leaf) {
      const int s = parts_.stage.set_of(actions[i].micro_batch, static_cast<int>(leaf));
      const auto set = static_cast<std::size_t>(s);
      for (const int g : state_.layout().groups_of(actions[i].unit)) {
        const auto group = static_cast<std::size_t>(g);
        // A head with a sum of its own for a tied weight does not write the group's.
        if (!seen[set][group]) first[set][group] = writers_[i][leaf] && !state_.tied_gradient(g, s);
        seen[set][group] = true;
      }
    }
  }
  return first;
}

std::vector<std::vector<params::Range>> GradientReducer::plan_zeros() const {
  const params::Layout& layout = state_.layout();
  std::vector<std::vector<params::Range>> zeros;
  for (const params::Group& group : layout.groups()) {
    std::vector<params::Range>& own = zeros.emplace_back();
    for (const auto& [range, in_products] : split_by_row(
             layout, group, [](const params::Parameter& row) { return row.in_products; })) {
      if (!in_products) own.push_back(range);
    }
  }
  return zeros;
}

std::vector<params::Range> GradientReducer::zeros_of(int group, bool writes) const {
  if (writes) return zeros_[static_cast<std::size_t>(group)];
  return {state_.layout().groups()[static_cast<std::size_t>(group)].elements};
}

bool GradientReducer::writes(std::size_t action, int leaf) const {
  return writers_[action][static_cast<std::size_t>(leaf)];
}

GradientReducer::Collected& GradientReducer::buffer_of(int group) {
  const int buffer = state_.gradient_buffers().buffer[static_cast<std::size_t>(group)];
  return buffers_[static_cast<std::size_t>(buffer)];
}

Tensor GradientReducer::shard_of(int group) const {
  const params::Range& own = state_.shards().own(group);
  const std::int64_t begin =
      own.begin - state_.layout().groups()[static_cast<std::size_t>(group)].elements.begin;
  return state_.group_gradient(group).slice(0, begin, begin + own.size());
}

void GradientReducer::timed(const std::function<void()>& start) {
  // A mark would hold up what a device queues.
  if (!parts_.stream.device().immediate()) return start();
  const auto begin = std::make_shared<Recorder::Clock::time_point>();
  parts_.stream.enqueue(std::make_unique<Mark>([begin] { *begin = Recorder::Clock::now(); }));
  start();
  pending_.push_back(parts_.stream.enqueue(std::make_unique<Mark>([&to = parts_.recorder, begin] {
    to.add("reduce gradients (overlapped)", 1, *begin, Recorder::Clock::now());
  })));
}

void GradientReducer::begin_step() {
  if (parts_.offload != nullptr) parts_.offload->begin_step();
  left_ = reductions_;
  unzeroed_ = parts_.stage.memory().aliased();
  for (const Tensor& sum : state_.other_sums()) ops_.fill(sum, 0);
  for (int set = 0; !state_.gradients_sharded() && set < state_.options().sets; ++set) {
    zero_set(set);
  }
  for (Collected& buffer : buffers_) buffer = {};
}

void GradientReducer::zero_set(int set) {
  params::Range open;  // adjacent ranges are one call
  const auto fill = [&] {
    if (open.size() > 0) ops_.fill(state_.flat_gradients(set).slice(0, open.begin, open.end), 0);
  };
  const std::vector<bool>& written = written_first_[static_cast<std::size_t>(set)];
  for (std::size_t g = 0; g < written.size(); ++g) {
    if (!unzeroed_.empty() && unzeroed_[g]) continue;
    for (const params::Range& range : zeros_of(static_cast<int>(g), written[g])) {
      if (range.begin != open.end) {
        fill();
        open.begin = range.begin;
      }
      open.end = range.end;
    }
  }
  fill();
}

void GradientReducer::prepare(int unit, bool writes) {
  for (int g : state_.layout().groups_of(unit)) {
    if (!state_.gradients_sharded()) {
      if (unzeroed_.empty() || !unzeroed_[static_cast<std::size_t>(g)]) continue;
      unzeroed_[static_cast<std::size_t>(g)] = false;
      TRIREME_ASSERT(!writes || !state_.tied_gradient(g, 0),
                     "the head of group {} writes a sum of its own", g);
    } else {
      Collected& buffer = buffer_of(g);
      if (buffer.group == g) continue;
      TRIREME_ASSERT(buffer.group < 0, "unit {} displaces gradients of group {}", unit,
                     buffer.group);
      if (buffer.scattering >= 0) {
        const Section section(parts_.recorder, "wait for shards");
        accumulate(buffer);
      }
      buffer.group = g;
    }
    const std::int64_t first = state_.layout().groups()[static_cast<std::size_t>(g)].elements.begin;
    for (const params::Range& range : zeros_of(g, writes)) {
      ops_.fill(state_.group_gradient(g).slice(0, range.begin - first, range.end - first), 0);
    }
  }
}

void GradientReducer::add_up(int group) {
  const Section section(parts_.recorder, "join gradients");
  const int sets = state_.options().sets;
  for (int set = 0; set < sets; ++set) sums_.join(group, set, ops_, parts_.tensor);
  const auto of_set = [&](std::int64_t set) {
    return state_.group_gradient(group, static_cast<int>(set));
  };
  // Over this rank's sets, as a tree that the one over ranks continues.
  if (!parts_.stage.joins_context()) {
    const params::Layout& layout = state_.layout();
    const params::Group& own = layout.groups()[static_cast<std::size_t>(group)];
    const auto in_first = [&](const params::Parameter& row) {
      return parts_.stage.joined_sets(row) > 1;
    };
    for (const auto& [range, first] : split_by_row(layout, own, in_first)) {
      std::vector<Tensor> all;
      for (int set = 0; set < sets; set += first ? parts_.stage.sets_of_call() : 1) {
        all.push_back(
            of_set(set).slice(0, range.begin - own.elements.begin, range.end - own.elements.begin));
      }
      ops_.add_up(all);
    }
    return;
  }
  parts_.stage.add_sets(
      [&](std::int64_t to, std::int64_t from) { ops_.add(of_set(to), of_set(to), of_set(from)); },
      [&](std::int64_t set) {
        const Tensor sum = of_set(set);
        parts_.context.all_reduce(sum, comm::Reduction::sum, parts_.stream).wait();
        // The sum over all copies of the parameters has it once.
        if (parts_.context.rank() > 0) ops_.fill(sum, -0.0F);
      });
}

void GradientReducer::reduce(int group) {
  add_up(group);
  scatter(group);
  if (!state_.gradients_sharded()) hand_over(group);
}

void GradientReducer::scatter(int group) {
  device::Event scattered;
  if (state_.options().optimizer_sharded()) {
    timed([&] {
      scattered = parts_.shard.reduce_scatter_v(shard_of(group), state_.group_gradient(group),
                                                state_.shards().counts(group), parts_.stream);
    });
  }
  if (state_.gradients_sharded()) {
    buffer_of(group) = {.group = -1, .scattering = group, .scattered = scattered};
  } else {
    pending_.push_back(scattered);
  }
}

void GradientReducer::accumulate(Collected& buffer) {
  if (buffer.scattering < 0) return;
  buffer.scattered.wait();
  const int group = std::exchange(buffer.scattering, -1);
  const Tensor sum = state_.own_gradient(group);
  ops_.add(sum, sum, shard_of(group));
  count_contribution(group);
}

void GradientReducer::count_contribution(int group) {
  if (--left_[static_cast<std::size_t>(group)] == 0) hand_over(group);
}

void GradientReducer::hand_over(int group) {
  for (const Bucket& bucket : buckets_) {
    if (bucket.group != group) continue;
    const bool whole = !state_.options().optimizer_sharded();
    const Tensor gradient =
        whole ? state_.gradients().slice(0, bucket.elements.begin, bucket.elements.end)
              : state_.own_gradient(group);
    timed([&] {
      pending_.push_back(parts_.method.reduce(bucket.elements, gradient, parts_.stream));
    });
    if (parts_.offload == nullptr) continue;
    for (int g = 0; g < state_.shards().groups(); ++g) {
      const params::Range& own = state_.shards().own(g);
      const bool inside = own.begin >= bucket.elements.begin && own.end <= bucket.elements.end;
      if (inside) pending_.push_back(parts_.offload->take(g, parts_.stream));
    }
  }
}

void GradientReducer::reduce_tied(int group) {
  if (state_.gradients_sharded()) {
    {
      const Section section(parts_.recorder, "wait for gradients");
      accumulate(buffer_of(group));
    }
    const Tensor own = state_.own_gradient(group);
    pending_.push_back(parts_.embedding.all_reduce(own, comm::Reduction::sum, parts_.stream));
    return count_contribution(group);
  }
  {
    const Section section(parts_.recorder, "exchange tied gradients");
    for (int set = 0; set < state_.options().sets; ++set) {
      const Tensor gradient = state_.group_gradient(group, set);
      parts_.embedding.all_reduce(gradient, comm::Reduction::sum, parts_.stream).wait();
    }
  }
  reduce(group);
}

void GradientReducer::finish() {
  const Section section(parts_.recorder, "wait for gradients");
  for (Collected& buffer : buffers_) accumulate(buffer);
  for (const device::Event& event : pending_) event.wait();
  pending_.clear();
}

}  // namespace trireme::parallel
