#include "trireme/train/step_prediction.hpp"

#include <numeric>

#include "trireme/core/error.hpp"
#include "trireme/plan/step_time.hpp"
#include "trireme/report/statistics.hpp"

namespace trireme::train {

namespace {

using nlohmann::json;

/// Where a part of the prediction belongs: the groups and axes of report::time_account.
std::string place_of(const std::string& part) {
  using comm::GroupKind;
  const auto is = [&](GroupKind kind) { return part == comm::name_of(kind); };
  if (is(GroupKind::tensor) || is(GroupKind::kv)) return "tensor";
  if (is(GroupKind::data) || is(GroupKind::shard) || is(GroupKind::replica)) return "data";
  if (part == "activations" || part == "gradients" || is(GroupKind::embedding)) return "pipeline";
  for (const GroupKind kind : comm::all_group_kinds) {
    if (is(kind)) return "all ranks";
  }
  return "compute";
}

/// Of a rank's account: seconds by place.
void add_measured(const json& account, double weight, json& parts) {
  for (const auto& [group, of_group] : account.at("time").at("groups").items()) {
    for (const auto& [name, seconds] : of_group.items()) {
      std::string place = group;
      if (group == "communication wait") place = name.substr(0, name.find(':'));
      if (group != "compute" && group != "communication wait") continue;
      parts[place] = parts.value(place, 0.0) + weight * seconds.get<double>();
    }
  }
}

}  // namespace

json predict_step_time(const std::string& file, const model::Transformer& model,
                       const parallel::ReplicaOptions& options, const comm::GridShape& shape,
                       bool host, int ranks_per_node, bool documents) {
  plan::Machine machine = plan::Machine::read(file);
  if (machine.on_host() != host) {
    throw ConfigError("train.predict", file,
                      fmt::format("is a machine with device.type = {}, and this run computes on {}",
                                  machine.device.type, host ? "CPUs" : "GPUs"),
                      "use another file, or off");
  }
  machine.ranks_per_node = ranks_per_node;
  const model::Transformer own(model.config());  // units keep the plan of the stage made last
  plan::StageClasses stages;
  try {
    stages = plan::trace_stages(own, options, shape, host, documents);
  } catch (const ConfigError& error) {
    throw Error("train.predict = {}: this layout is not planned ({}); use off", file, error.what());
  }
  const plan::StepTimes times = plan::simulate(shape, stages.classes, stages.class_of, machine);
  json parts = json::object();
  for (int rank = 0; rank < shape.size(); ++rank) {
    for (const auto& [part, seconds] : times.ranks[stages.class_of(rank)].parts) {
      const std::string place = place_of(part);
      parts[place] = parts.value(place, 0.0) + seconds / shape.size();
    }
  }
  return {{"machine", file}, {"seconds", times.seconds}, {"parts", parts}};
}

json compare_step_time(const json& predicted, const std::vector<json>& accounts,
                       std::vector<double> seconds, bool host) {
  const double all = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const double median = report::quantile(std::move(seconds), 0.5);
  json measured{{"seconds", median}};
  if (host) {
    measured["parts"] = json::object();
    const double weight = median / (all * static_cast<double>(accounts.size()));
    for (const json& account : accounts) add_measured(account, weight, measured["parts"]);
  }
  return {{"machine", predicted.at("machine")},
          {"predicted", {{"seconds", predicted.at("seconds")}, {"parts", predicted.at("parts")}}},
          {"measured", measured}};
}

std::vector<std::string> step_time_lines(const json& compared) {
  const json& predicted = compared.at("predicted");
  const json& measured = compared.at("measured");
  const double expected = predicted.at("seconds"), found = measured.at("seconds");
  const auto line = [&](const std::string& name, double of_plan, double of_run) {
    std::string text = fmt::format("  {:<28}{:>10.4f}{:>10.4f}", name, of_plan, of_run);
    // What takes so little of the step has no percentage that means anything.
    if (of_plan > 0.01 * expected) text += fmt::format("{:>+9.1f} %", 100 * (of_run / of_plan - 1));
    return text;
  };
  std::vector<std::string> lines = {
      fmt::format("step time, by {}", compared.at("machine").get<std::string>()),
      fmt::format("  {:<28}{:>10}{:>10}", "seconds", "predicted", "measured"),
      line("step (median)", expected, found)};
  if (!measured.contains("parts")) return lines;
  json names = predicted.at("parts");
  names.update(measured.at("parts"));
  for (const auto& [name, unused] : names.items()) {
    lines.push_back(line(name == "compute" ? name : "wait: " + name,
                         predicted.at("parts").value(name, 0.0),
                         measured.at("parts").value(name, 0.0)));
  }
  return lines;
}

}  // namespace trireme::train
