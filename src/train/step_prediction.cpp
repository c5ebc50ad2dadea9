#include "trireme/train/step_prediction.hpp"

#include <numeric>
#include <set>

#include "trireme/core/error.hpp"
#include "trireme/plan/fit_machine.hpp"
#include "trireme/plan/measure_machine.hpp"
#include "trireme/plan/peak.hpp"
#include "trireme/plan/step_time.hpp"
#include "trireme/report/statistics.hpp"

namespace trireme::train {

namespace {

using nlohmann::json;

/// Where a part of the prediction belongs: the groups and axes of report::time_account.
std::string place_of(const std::string& part) {
  using comm::GroupKind;
  const auto is = [&](GroupKind kind) { return part == comm::name_of(kind); };
  if (is(GroupKind::tensor) || is(GroupKind::kv) || is(GroupKind::context)) return "tensor";
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

/// How the groups of a kind are placed: `nodes` is 1 where all of them are inside a node.
plan::Placement placement_of(comm::Grid& grid, comm::GroupKind kind, const comm::Session& session) {
  const std::vector<int> members = comm::members(grid.shape(), kind, session.rank());
  std::set<int> nodes;
  for (const int rank : members) nodes.insert(session.nodes()[static_cast<std::size_t>(rank)]);
  plan::Placement own{.ranks = static_cast<int>(members.size())};
  own.nodes = static_cast<int>(
      grid.world().all_reduce(static_cast<std::int64_t>(nodes.size()), comm::Reduction::max));
  // Groups with ranks on a node, where each has as many on it.
  own.sharing = std::max(1, session.node_size() * own.nodes / own.ranks);
  return own;
}

/// Links inside a node and between nodes, by groups of the run's grid where it has such ones, else
/// by groups that fill a node, or have a rank of each. Where ranks are placed so that there is no
/// such group either, one link has the other's constants.
void measure_links(const Job& job, const parallel::ReplicaOptions& options, comm::Grid& grid,
                   plan::Machine& machine) {
  using comm::GroupKind;
  const comm::Session& session = job.session;
  device::Device& device = job.computes.device();
  device::MemoryLedger ledger(device);
  const auto ops = options.make_ops ? options.make_ops(ledger, options.threads, false)
                                    : ops::make_cpu_ops(options.threads, &ledger, false);
  if (!device.is_host()) machine.device.launch_us = 1e6 * plan::measure_launch(*ops, device);
  const std::set<int> nodes(session.nodes().begin(), session.nodes().end());
  const int count = static_cast<int>(nodes.size()), per_node = session.size() / count;
  const auto measure = [&](comm::Grid& groups, bool between) {
    for (const auto kind : {GroupKind::data, GroupKind::tensor, GroupKind::pipeline}) {
      if ((between ? machine.network : machine.node).gb_per_s > 0) return;
      const plan::Placement placement = placement_of(groups, kind, session);
      if (placement.ranks == 1 || (placement.nodes > 1) != between) continue;
      plan::measure_links(machine, groups, kind, placement, *ops, device);
    }
  };
  // Inside a node first: what passes between nodes also passes inside them.
  for (const bool between : {false, true}) {
    measure(grid, between);
    const bool has_link = between ? count > 1 : per_node > 1;
    const bool measured = (between ? machine.network : machine.node).gb_per_s > 0;
    if (measured || !has_link || per_node * count != session.size()) continue;
    comm::GridShape shape;
    shape.degree[static_cast<std::size_t>(comm::Axis::tensor)] = per_node;
    shape.degree[static_cast<std::size_t>(comm::Axis::data)] = count;
    comm::Grid by_node(session, shape, ledger, grid_options(job.config));
    comm::or_abandon(by_node, [&] { measure(by_node, between); });
  }
  if (machine.node.gb_per_s == 0) machine.node = machine.network;
  if (machine.network.gb_per_s == 0) machine.network = machine.node;
}

}  // namespace

plan::Machine read_machine(const std::string& file, bool host, int ranks_per_node) {
  plan::Machine machine = plan::Machine::read(file);
  if (machine.on_host() != host) {
    throw ConfigError("train.predict", file,
                      fmt::format("is a machine with device.type = {}, and this run computes on {}",
                                  machine.device.type, host ? "CPUs" : "GPUs"),
                      "use another file, quick or off");
  }
  machine.ranks_per_node = ranks_per_node;
  return machine;
}

plan::Machine measure_machine(const Job& job, parallel::ReplicaOptions options,
                              const comm::GridShape& shape) {
  constexpr int warm_up = 1, most_steps = 5;
  constexpr double most_seconds = 5;
  device::Device& device = job.computes.device();
  const bool host = job.computes.on_host();
  plan::Machine machine;
  machine.name = "this machine";
  machine.ranks_per_node = job.session.node_size();
  machine.device.type = host ? "cpu" : "gpu";
  machine.links.collectives = host ? "direct" : "ring";
  model::ModelConfig shallow = job.model.config();
  shallow.layers = std::min<std::int64_t>(
      shallow.layers, shape.of(comm::Axis::pipeline) * options.stage.virtual_stages);
  const model::Transformer model(shallow);
  options.pipeline = nullptr;
  device::MemoryLedger ledger(device);  // nothing of it is the run's
  comm::Grid grid(job.session, shape, ledger, grid_options(job.config));
  comm::or_abandon(grid, [&] {
    const std::vector<plan::TimedStep> steps =
        plan::time_steps(model, options, grid, device, warm_up, most_steps, most_seconds,
                         job.config.data.document_mask);
    machine.memory.gb_per_s = plan::measure_copy(device) / 1e9;
    const std::vector<plan::MeasuredWork> works = plan::measured_works(grid.world(), steps);
    machine = plan::fit_works(machine, works);
    if (host) machine = plan::fit_host(machine, steps, shape.size() == 1);
    measure_links(job, options, grid, machine);
  });
  return machine;
}

json predict_step_time(const plan::Machine& machine, const std::string& source,
                       const model::Transformer& model, const parallel::ReplicaOptions& options,
                       const comm::GridShape& shape, bool documents) {
  plan::StageClasses stages;
  try {
    stages = plan::trace_stages(model, options, shape, machine.on_host(), documents);
  } catch (const ConfigError& error) {
    throw Error("train.predict = {}: this layout is not planned ({}); use off", source,
                error.what());
  }
  const plan::StepTimes times = plan::simulate(shape, stages.classes, stages.class_of, machine);
  json parts = json::object();
  for (int rank = 0; rank < shape.size(); ++rank) {
    for (const auto& [part, seconds] : times.ranks[stages.class_of(rank)].parts) {
      const std::string place = place_of(part);
      parts[place] = parts.value(place, 0.0) + seconds / shape.size();
    }
  }
  return {{"machine", source}, {"seconds", times.seconds}, {"parts", parts}};
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
