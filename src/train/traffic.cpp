#include "trireme/train/traffic.hpp"

#include <algorithm>

namespace trireme::train {

namespace {

using Kind = parallel::UnitAction::Kind;

/// Of n ranks' part of a reduce-scatter or an all-gather of `bytes`.
double share(int n, double bytes) { return bytes * (n - 1) / n; }

class Count {
 public:
  explicit Count(const parallel::Stage& stage)
      : stage_(stage), place_(stage.options().place), shards_(stage.options().zero > 0) {}

  std::map<std::string, double> total() {
    for (const parallel::UnitAction& action : stage_.program().actions) add(action);
    const state::StateOptions state = stage_.state_options();
    for (int group = 0; shards_ && group < stage_.shards().groups(); ++group) {
      // Shards are added over shard groups once a step, and whole parameters made whole again.
      add("replica", 2 * share(place_.data / place_.shard, gradient_bytes(group) / place_.shard));
      if (!state.values_sharded()) add("shard", share(place_.shard, value_bytes(group)));
    }
    std::erase_if(bytes_, [](const auto& entry) { return entry.second == 0; });
    return bytes_;
  }

 private:
  void add(const std::string& name, double bytes) { bytes_[name] += bytes; }
  double elements(int group) const {
    const auto& all = stage_.layout().groups();
    return static_cast<double>(all[static_cast<std::size_t>(group)].elements.size());
  }
  double gradient_bytes(int group) const { return elements(group) * sizeof(float); }
  double value_bytes(int group) const {
    return elements(group) * static_cast<double>(size_of(stage_.options().compute));
  }

  void add(const parallel::UnitAction& action) {
    switch (action.kind) {
      case Kind::send:
        return add(action.gradient ? "gradients" : "activations", message_bytes());
      case Kind::gather:
        return add("shard", share(place_.shard, value_bytes(action.group)));
      case Kind::reduce_tied:
        add("embedding",
            2 * share(2, gradient_bytes(action.group) / (gradients_split() ? place_.shard : 1)));
        if (gradients_split()) return;
        [[fallthrough]];
      case Kind::reduce:
        if (shards_) return add("shard", share(place_.shard, gradient_bytes(action.group)));
        return add("data", 2 * share(place_.data, gradient_bytes(action.group)));
      case Kind::forward:
        return add_tensor(action, true);
      case Kind::backward:
      case Kind::backward_input:
        return add_tensor(action, false);
      case Kind::receive:
      case Kind::recompute:
      case Kind::backward_weight:
        return;
    }
  }
  double message_bytes() const {
    const parallel::StagePlan& plan = stage_.memory();
    return static_cast<double>(plan.leaves().count * plan.own_rows() *
                               stage_.model().config().width) *
           static_cast<double>(size_of(stage_.options().compute));
  }
  bool gradients_split() const { return stage_.state_options().gradients_sharded(); }

  void add_tensor(const parallel::UnitAction& action, bool forward) {
    const bool first = action.unit == 0, last = action.unit == stage_.last_unit();
    const int sums = first ? static_cast<int>(forward) : last ? static_cast<int>(!forward) : 2;
    const parallel::StageOptions& options = stage_.options();
    const auto& model = stage_.model().config();
    const double activation =
        static_cast<double>(options.sequences * model.sequence * model.width) *
        static_cast<double>(size_of(options.compute));
    add("tensor", sums * 2 * share(place_.tensor, activation));
  }

  const parallel::Stage& stage_;
  parallel::Place place_;
  bool shards_;
  std::map<std::string, double> bytes_;
};

}  // namespace

std::map<std::string, double> least_traffic(const parallel::Stage& stage) {
  return Count(stage).total();
}

double average_traffic(const parallel::Stage& stage, int workers, std::int64_t buffers) {
  const auto elements = static_cast<double>(buffers * stage.layout().elements());
  return 2 * share(workers, elements * sizeof(float));
}

}  // namespace trireme::train
