#include "trireme/train/account.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "trireme/model/block.hpp"
#include "trireme/train/setup.hpp"

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
      add("replica", 2 * share(place_.data / place_.shard, sent_bytes(group) / place_.shard));
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
  double sent_bytes(int group) const {  // over the data axis
    return elements(group) * static_cast<double>(size_of(stage_.options().sent_gradients));
  }
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
        return add_reduction(action.group);
      case Kind::reduce:
        add_heads(action.group);
        return add_reduction(action.group);
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
  void add_reduction(int group) {
    if (shards_) return add("shard", share(place_.shard, sent_bytes(group)));
    add("data", 2 * share(place_.data, sent_bytes(group)));
  }
  /// Key/value heads that several tensor ranks hold.
  void add_heads(int group) {
    const int ranks = place_.kv == 0 ? place_.tensor : place_.kv;
    const auto messages = state::TensorSums::messages_of(
        stage_.layout(), stage_.layout().groups()[static_cast<std::size_t>(group)],
        stage_.shares());
    add("kv",
        2 * share(ranks, static_cast<double>(stage_.sets() * messages.heads) * sizeof(float)));
  }
  double message_bytes() const {
    const parallel::StagePlan& plan = stage_.memory();
    return static_cast<double>(plan.leaves().calls() * plan.own_rows() *
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
        static_cast<double>(options.sequences * model.sequence * model.width) / place_.context *
        static_cast<double>(size_of(options.compute));
    add("tensor", sums * 2 * share(place_.tensor, activation));
    if (first || last) return;
    // Keys and values are gathered in forward and in backward, and their gradients summed.
    std::int64_t width = 0;
    for (const std::int64_t keys : model::Attention::key_widths(model, stage_.shares().tiles)) {
      width += 2 * keys;
    }
    const double keys = static_cast<double>(options.sequences * model.sequence * width) *
                        static_cast<double>(size_of(options.compute));
    add("context", (forward ? 1 : 2) * share(place_.context, keys));
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

void StepAccount::begin() {
  recorder_.reset();
  grid_.reset_traffic();
  traffic_.clear();
  left_out_.clear();
}

void StepAccount::count_traffic() {
  const auto now = grid_.traffic();
  traffic_.resize(now.size());
  for (std::size_t i = 0; i < now.size(); ++i) {
    traffic_[i].first = now[i].first;
    traffic_[i].second += now[i].second.total();
  }
  grid_.reset_traffic();
}

StepAccount::Pause::Pause(StepAccount& account, bool sections)
    : account_(account), sections_(sections) {
  account_.count_traffic();
  if (sections_) before_ = account_.recorder_.seconds();
}

StepAccount::Pause::~Pause() {
  account_.grid_.reset_traffic();
  if (!sections_) return;
  for (const auto& [name, seconds] : account_.recorder_.seconds()) {
    account_.left_out_[name] += seconds - before_[name];
  }
}

nlohmann::json StepAccount::to_json(std::int64_t steps,
                                    const std::map<std::string, double>& least) const {
  const auto count = static_cast<double>(std::max<std::int64_t>(1, steps));
  nlohmann::json sections = nlohmann::json::object(), traffic = nlohmann::json::object();
  for (const auto& [name, seconds] : recorder_.seconds()) {
    const auto found = left_out_.find(name);
    const double outside = found == left_out_.end() ? 0 : found->second;
    if (seconds > outside) sections[name] = seconds - outside;
  }
  for (const auto& [name, total] : traffic_) {
    const auto found = least.find(name);
    const double needed = found == least.end() ? 0 : found->second;
    if (total.bytes == 0 && needed == 0) continue;
    traffic[name] = {{"bytes_per_step", static_cast<double>(total.bytes) / count},
                     {"seconds_per_step", total.seconds / count},
                     {"least_bytes_per_step", needed}};
  }
  return {{"sections", sections}, {"communication", traffic}, {"padding", padding_}};
}

nlohmann::json memory_account(const MemoryPrediction& predicted,
                              const device::MemoryLedger& ledger) {
  nlohmann::json memory = nlohmann::json::object();
  for (int u = 0; u < static_cast<int>(device::Use::count); ++u) {
    const auto use = static_cast<device::Use>(u);
    const auto found = predicted.bytes.find(use);
    const std::int64_t expected = found == predicted.bytes.end() ? 0 : found->second;
    const std::int64_t measured = ledger.peak(use);
    if (expected == 0 && measured == 0) continue;
    nlohmann::json& bytes = memory[std::string(device::name_of(use))];
    bytes = {{"predicted", expected}, {"measured", measured}};
    if (predicted.in_part.contains(use)) bytes["in_part"] = true;
  }
  return memory;
}

Closing close_job(comm::Communicator& everyone, const Recorder& recorder,
                  const nlohmann::json& account, Ending ending) {
  Closing closing;
  closing.ranks = report::gather_json(account, everyone);
  closing.resident = everyone.all_reduce(resident_peak(), comm::Reduction::max);
  closing.sections = report::gather_sections(recorder, everyone);
  closing.trace = report::gather_trace(recorder, everyone);
  closing.ending = static_cast<Ending>(
      everyone.all_reduce(static_cast<std::int64_t>(ending), comm::Reduction::max));
  return closing;
}

nlohmann::json prediction_json(const std::map<device::Use, std::int64_t>& predicted) {
  nlohmann::json json;
  for (const auto& [use, bytes] : predicted) json[std::string(device::name_of(use))] = bytes;
  return json;
}

nlohmann::json memory_json(const std::vector<report::MemoryRow>& rows) {
  nlohmann::json json;
  for (const auto& row : rows) {
    json[row.name] = {{"predicted", row.predicted}, {"measured", row.measured}};
    if (row.in_part) json[row.name]["in_part"] = true;
  }
  return json;
}

nlohmann::json sections_json(const std::vector<report::SectionTimes>& sections) {
  nlohmann::json json;
  for (const auto& each : sections) {
    json[each.name] = {{"min", each.minimum}, {"average", each.average}, {"max", each.maximum}};
  }
  return json;
}

nlohmann::json communication_of(const std::vector<nlohmann::json>& ranks) {
  nlohmann::json json = nlohmann::json::object();
  const auto n = static_cast<double>(ranks.size());
  for (const nlohmann::json& rank : ranks) {
    for (const auto& axis : rank.at("communication").items()) {
      const nlohmann::json& own = axis.value();
      nlohmann::json& all = json[axis.key()];
      if (all.is_null()) all = nlohmann::json::object();
      const auto most = [&](const char* key) {
        all[key] = std::max(all.value(key, 0.0), own.at(key).get<double>());
      };
      const auto mean = [&](const char* key, const char* of) {
        all[key] = all.value(key, 0.0) + own.at(of).get<double>() / n;
      };
      most("bytes_per_step");
      most("seconds_per_step");
      most("least_bytes_per_step");
      if (own.contains("received_per_step")) most("received_per_step");
      mean("mean_bytes_per_step", "bytes_per_step");
      mean("mean_seconds_per_step", "seconds_per_step");
      mean("mean_least_bytes_per_step", "least_bytes_per_step");
    }
  }
  return json;
}

std::int64_t padding_of(const std::vector<nlohmann::json>& ranks) {
  constexpr std::array axes = {"tensor", "context", "pipeline"};
  std::int64_t padding = 0;
  for (const nlohmann::json& rank : ranks) {
    const bool first =
        std::ranges::all_of(axes, [&](const char* axis) { return rank.value(axis, 0) == 0; });
    if (first) padding += rank.value("padding", std::int64_t{0});
  }
  return padding;
}

std::vector<report::MemoryRow> memory_of(const std::vector<nlohmann::json>& ranks) {
  std::map<std::string, report::MemoryRow> rows;
  for (const nlohmann::json& rank : ranks) {
    if (!rank.contains("memory")) continue;
    const std::string prefix = rank.contains("server") ? "server " : "";
    for (const auto& [use, bytes] : rank.at("memory").items()) {
      const report::MemoryRow row{prefix + use, bytes.at("predicted").get<std::int64_t>(),
                                  bytes.at("measured").get<std::int64_t>(),
                                  bytes.value("in_part", false)};
      const auto [at, fresh] = rows.emplace(row.name, row);
      if (!fresh && weight_of(row) > weight_of(at->second)) at->second = row;
    }
  }
  std::vector<report::MemoryRow> list;
  for (const auto& [name, row] : rows) list.push_back(row);
  return list;
}

std::string attention_warning(const std::vector<ops::AttentionChoice>& choices) {
  for (const ops::AttentionChoice& choice : choices) {
    if (choice.refusal.empty()) continue;
    const std::string reason = choice.refusal.substr(0, choice.refusal.find('\n'));
    return fmt::format(
        "attention {} of {} x {} tokens, {} heads of {} in {}: cuDNN does not take it ({}); "
        "kernels of Trireme's own compute it, more slowly",
        choice.backward ? "backward" : "forward", choice.batch, choice.tokens, choice.heads,
        choice.size, choice.type, reason);
  }
  return {};
}

nlohmann::json graphs_account(const parallel::StepGraphs& graphs) {
  return {{"captured", graphs.captured()},
          {"launched", graphs.launched()},
          {"refusal", graphs.refusal()}};
}

std::string refusals_warning(const std::vector<nlohmann::json>& accounts) {
  for (const nlohmann::json& account : accounts) {
    const auto graphs = account.find("graphs");
    if (graphs == account.end()) continue;
    const auto refusal = graphs->at("refusal").get<std::string>();
    if (refusal.empty()) continue;
    return fmt::format("device.graphs: rank {}: {}; it trained without",
                       account.at("rank").get<int>(), refusal);
  }
  return {};
}

}  // namespace trireme::train
