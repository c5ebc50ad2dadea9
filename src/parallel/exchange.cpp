#include "trireme/parallel/exchange.hpp"

#include <algorithm>
#include <functional>

#include "trireme/core/pairwise.hpp"

namespace trireme::parallel {

namespace {

/// Notes the time at which the stream reaches it: what went before has finished.
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
    const bool exchanged = action.kind == UnitAction::Kind::exchange;
    if (action.kind != UnitAction::Kind::reduce && !exchanged) continue;
    const params::Range& own = layout.groups()[static_cast<std::size_t>(action.group)].elements;
    // Backward goes from the last unit to the first, and the flat buffer from first to last.
    if (open && !exchanged && buckets.back().elements.begin == own.end) {
      buckets.back().elements.begin = own.begin;
      buckets.back().group = action.group;
    } else {
      buckets.push_back({own, action.group});
    }
    open = !exchanged && buckets.back().elements.size() < elements;
  }
  return buckets;
}

StateExchange::StateExchange(const state::ModelState& state, const Program& program, ops::Ops& ops,
                             const StateGroups& groups, const model::TensorGroup& tensor,
                             DataParallel& method, Recorder& recorder, device::MemoryLedger& ledger,
                             std::int64_t bucket_elements, state::Offload* offload,
                             const std::vector<bool>& lent)
    : state_(state),
      ops_(ops),
      groups_(groups),
      tensor_(tensor),
      method_(method),
      recorder_(recorder),
      times_(ledger.device().is_host()),
      sums_(state, ledger),
      offload_(offload),
      lent_(lent),
      buckets_(plan_buckets(program, state.layout(), bucket_elements)),
      reductions_(state.layout().groups().size(), 0),
      stream_(ledger.device()) {
  for (const UnitAction& action : program.actions) {
    const bool reduces = action.kind == UnitAction::Kind::reduce;
    if (!reduces && action.kind != UnitAction::Kind::exchange) continue;
    ++reductions_[static_cast<std::size_t>(action.group)];
  }
  for (int g = 0; g < state_.shards().groups(); ++g) {
    const auto rooms = [&](int room, auto& list) {
      if (room >= static_cast<int>(list.size())) list.resize(static_cast<std::size_t>(room) + 1);
    };
    rooms(state_.value_room(g), values_);
    if (state_.options().train) rooms(state_.gradient_room(g), gradients_);
  }
}

void StateExchange::begin_step() {
  if (offload_ != nullptr) offload_->begin_step();
  left_ = reductions_;
  given_ = lent_;
  for (const Tensor& sum : state_.sums()) {
    if (lent_.empty() || sum.data() != state_.gradients().data()) ops_.fill(sum, 0);
  }
  for (std::size_t g = 0; g < lent_.size(); ++g) {
    if (!lent_[g]) ops_.fill(state_.group_gradient(static_cast<int>(g)), 0);
  }
  for (Collected& room : gradients_) room = {};
}

void StateExchange::gather(int group) {
  Gathered& room = values_[static_cast<std::size_t>(state_.value_room(group))];
  room.group = group;
  room.ready = groups_.shard.all_gather_v(state_.group_values(group), state_.own_values(group),
                                          state_.shards().counts(group), stream_);
}

void StateExchange::need_values(int unit) {
  if (!state_.values_sharded()) return;
  const Section section(recorder_, "wait for shards");
  for (int g : state_.layout().groups_of(unit)) {
    const Gathered& room = values_[static_cast<std::size_t>(state_.value_room(g))];
    TRIREME_ASSERT(room.group == g, "unit {} reads group {} where {} is", unit, g, room.group);
    room.ready.wait();
  }
}

void StateExchange::settle(int number) {
  Collected& room = gradients_[static_cast<std::size_t>(number)];
  if (room.reducing < 0) return;
  room.reduced.wait();
  // The reduction left this rank's shard at its own place in the room.
  const int group = room.reducing;
  const params::Range& own = state_.shards().own(group);
  const std::int64_t begin =
      own.begin - state_.layout().groups()[static_cast<std::size_t>(group)].elements.begin;
  const Tensor part = state_.group_gradient(group).slice(0, begin, begin + own.size());
  const Tensor sum = state_.own_gradient(group);
  ops_.add(sum, sum, part);
  room.reducing = -1;
  conclude(group);
}

/// One of the reductions of a sharded gradient is done; after the last one its shard is this shard
/// group's, and then the sum over all of them.
void StateExchange::conclude(int group) {
  if (--left_[static_cast<std::size_t>(group)] > 0) return;
  const Tensor own = state_.own_gradient(group);
  pending_.push_back(groups_.replica.all_reduce(own, comm::Reduction::sum, stream_));
  take(group);
}

void StateExchange::take(int group) {
  if (offload_ != nullptr) pending_.push_back(offload_->take(group, stream_));
}

void StateExchange::need_gradients(int unit) {
  if (!state_.gradients_sharded()) {
    for (int g : state_.layout().groups_of(unit)) {
      if (given_.empty() || !given_[static_cast<std::size_t>(g)]) continue;
      ops_.fill(state_.group_gradient(g), 0);
      given_[static_cast<std::size_t>(g)] = false;
    }
    return;
  }
  for (int g : state_.layout().groups_of(unit)) {
    const int number = state_.gradient_room(g);
    Collected& room = gradients_[static_cast<std::size_t>(number)];
    if (room.group == g) continue;
    TRIREME_ASSERT(room.group < 0, "unit {} displaces gradients of group {}", unit, room.group);
    if (room.reducing >= 0) {
      const Section section(recorder_, "wait for shards");
      room.reduced.wait();
    }
    settle(number);
    ops_.fill(state_.group_gradient(g), 0);
    room.group = g;
  }
}

void StateExchange::join(int group) {
  const int sets = state_.options().sets;
  for (int set = 0; set < sets; ++set) sums_.join(group, set, ops_, tensor_);
}

void StateExchange::start_reduction(int group) {
  const auto begin = std::make_shared<Recorder::Clock::time_point>();
  const auto started = [&] {
    if (!times_) return;
    stream_.enqueue(std::make_unique<Mark>([begin] { *begin = Recorder::Clock::now(); }));
  };
  // The operation's own event is kept by whoever must know that it succeeded.
  const auto ended = [&] {
    if (!times_) return;
    pending_.push_back(stream_.enqueue(std::make_unique<Mark>([this, begin] {
      recorder_.add("reduce gradients (overlapped)", 1, *begin, Recorder::Clock::now());
    })));
  };
  const state::ZeroPolicy& zero = state_.options().zero;
  if (zero.optimizer == state::Held::whole) {
    for (const Bucket& bucket : buckets_) {
      if (bucket.group != group) continue;
      started();
      pending_.push_back(method_.reduce(bucket.elements, stream_));
      ended();
      for (int g = 0; g < state_.shards().groups(); ++g) {
        const params::Range& own = state_.shards().own(g);
        const bool inside = own.begin >= bucket.elements.begin && own.end <= bucket.elements.end;
        if (inside) take(g);
      }
    }
    return;
  }
  const Tensor whole = state_.group_gradient(group);
  const params::Range& own = state_.shards().own(group);
  const std::int64_t first =
      own.begin - state_.layout().groups()[static_cast<std::size_t>(group)].elements.begin;
  const Tensor part = whole.slice(0, first, first + own.size());
  started();
  const device::Event reduced = groups_.shard.reduce_scatter_v(
      part, whole, state_.shards().counts(group), comm::Reduction::sum, stream_);
  if (state_.gradients_sharded()) {
    Collected& room = gradients_[static_cast<std::size_t>(state_.gradient_room(group))];
    room.reduced = reduced;
    room.reducing = group;
    room.group = -1;
    return ended();
  }
  pending_.push_back(reduced);
  pending_.push_back(groups_.replica.all_reduce(part, comm::Reduction::sum, stream_));
  ended();
  take(group);
}

void StateExchange::reduce(int group) {
  {
    const Section section(recorder_, "join gradients");
    join(group);
    // Sums over this rank's groups of sequences, as a tree that the one over ranks continues.
    add_pairwise(state_.options().sets, [&](std::int64_t to, std::int64_t from) {
      const Tensor sum = state_.group_gradient(group, static_cast<int>(to));
      ops_.add(sum, sum, state_.group_gradient(group, static_cast<int>(from)));
    });
  }
  start_reduction(group);
}

void StateExchange::exchange(int group) {
  if (state_.gradients_sharded()) {
    {
      const Section section(recorder_, "wait for gradients");
      settle(state_.gradient_room(group));
    }
    const Tensor own = state_.own_gradient(group);
    pending_.push_back(groups_.embedding.all_reduce(own, comm::Reduction::sum, stream_));
    return conclude(group);
  }
  const Section section(recorder_, "exchange tied gradients");
  for (int set = 0; set < state_.options().sets; ++set) {
    groups_.embedding.all_reduce(state_.group_gradient(group, set), comm::Reduction::sum, stream_)
        .wait();
  }
  reduce(group);
}

void StateExchange::finish() {
  const Section section(recorder_, "wait for gradients");
  for (std::size_t room = 0; room < gradients_.size(); ++room) settle(static_cast<int>(room));
  for (const device::Event& event : pending_) event.wait();
  pending_.clear();
}

void StateExchange::spread() {
  for (Gathered& room : values_) room.group = -1;
  const state::ZeroPolicy& zero = state_.options().zero;
  if (zero.optimizer == state::Held::whole || zero.parameters == state::Held::sharded) return;
  const Section section(recorder_, "gather parameters");
  for (int g = 0; g < state_.shards().groups(); ++g) {
    pending_.push_back(groups_.shard.all_gather_v(state_.group_values(g), state_.own_values(g),
                                                  state_.shards().counts(g), stream_));
  }
  for (const device::Event& event : pending_) event.wait();
  pending_.clear();
}

}  // namespace trireme::parallel
