// trireme plan --machine: how long a training step takes, and what bounds it.
#include <algorithm>
#include <cmath>

#include "trireme/core/files.hpp"
#include "trireme/core/text.hpp"
#include "trireme/plan/step_chart.hpp"
#include "trireme/plan/step_time.hpp"
#include "trireme/train/setup.hpp"

#include "commands.hpp"

namespace trireme::cli {

std::string step_part_name(const std::string& part) {
  for (const auto kind : comm::all_group_kinds) {
    if (part == comm::name_of(kind)) return "wait for " + part + " ranks";
  }
  if (part == "activations" || part == "gradients") return "wait for " + part + " of stages";
  return part;
}

plan::Machine machine_for(train::RunConfig& config, train::LayoutFacts& facts,
                          const std::string& file, int ranks_per_node) {
  plan::Machine machine = plan::Machine::read(file);
  if (config.device.type == "auto") config.device.type = machine.on_host() ? "cpu" : "cuda";
  if (machine.on_host() != (config.device.type == "cpu")) {
    throw ConfigError("device.type", config.device.type,
                      fmt::format("{} has device.type = {}", file, machine.device.type),
                      "leave it at auto");
  }
  facts.host = machine.on_host();
  if (ranks_per_node > 0) {
    machine.ranks_per_node = ranks_per_node;
    return machine;
  }
  for (int rank = 0; rank < facts.world; ++rank) {
    facts.node_of.push_back(rank - rank % static_cast<int>(machine.ranks_per_node));
  }
  return machine;
}

/// Of so many seconds of steps: days, node hours, and their price.
static void add_training(double seconds, const comm::GridShape& shape, const plan::Machine& machine,
                         StepPlan& result) {
  const auto per_node = static_cast<int>(machine.ranks_per_node);
  const int nodes = (shape.size() + per_node - 1) / per_node;
  const double hours = seconds / 3600 * nodes;
  result.json["training"] = {{"seconds", seconds}, {"nodes", nodes}, {"node_hours", hours}};
  result.text += fmt::format("training: {:.4g} days, {:.4g} node hours on {}", seconds / 86400,
                             hours, counted(nodes, "node"));
  if (machine.price > 0) {
    result.json["training"]["price"] = hours * machine.price;
    result.text += fmt::format(", {:.4g} at {:g} an hour", hours * machine.price, machine.price);
  }
  result.text += "; without evaluation and checkpoints\n";
}

namespace {

/// Ranks of a picture, and those that were simulated and are not in it.
struct ChosenRanks {
  std::vector<int> drawn, left_out;
};

/// Those of --svg-ranks; without it the simulated ones, of too many as many from first to last.
ChosenRanks choose_ranks(const PlanMemoryOptions& options, const std::vector<plan::RankClass>& all,
                         const comm::GridShape& shape) {
  constexpr std::size_t most = 16;
  ChosenRanks result;
  if (!options.svg_ranks.empty()) {
    for (const std::int64_t rank :
         numbers_of("--svg-ranks", options.svg_ranks, config::in_range(0, shape.size() - 1))) {
      result.drawn.push_back(static_cast<int>(rank));
    }
    return result;
  }
  const std::size_t count = std::min(most, all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t next = result.drawn.size();
    const bool chosen =
        next < count && i == next * (all.size() - 1) / std::max<std::size_t>(1, count - 1);
    (chosen ? result.drawn : result.left_out).push_back(all[i].rank);
  }
  return result;
}

/// Draws the step of `seconds` into options.svg.
void draw_step(const plan::StageClasses& stages, const comm::GridShape& shape,
               const plan::Machine& machine, double seconds, const PlanMemoryOptions& options,
               StepPlan& result) {
  constexpr int pixels = 1000;
  const auto [drawn, left_out] = choose_ranks(options, stages.classes, shape);
  const plan::StepChart chart =
      plan::chart_step(shape, stages.classes, stages.class_of, machine, seconds, drawn, pixels);
  const std::string note = left_out.empty() ? ""
                                            : fmt::format("{} of {} ranks that are simulated",
                                                          drawn.size(), stages.classes.size());
  write_file(options.svg,
             plan::svg_chart(chart, shape,
                             fmt::format("Predicted step of {} on {}: {:.4g} ms; {}",
                                         counted(shape.size(), "rank"), options.machine,
                                         1e3 * seconds, shape.to_string()),
                             note, pixels));
  result.text +=
      fmt::format("{}: ranks {}{}\n", options.svg, fmt::join(drawn, ", "),
                  left_out.empty() ? "" : fmt::format("; left out: {}", fmt::join(left_out, ", ")));
  result.json["svg"] = {{"file", options.svg}, {"ranks", drawn}, {"left_out", left_out}};
}

}  // namespace

StepPlan plan_step(const train::RunConfig& config, const train::LayoutFacts& facts,
                   const comm::GridShape& shape, const plan::Machine& machine,
                   const PlanMemoryOptions& options) {
  const model::Transformer model(config.model);
  const parallel::ReplicaOptions replica =
      train::replica_options(config, train::stage_options(config, shape, facts),
                             static_cast<int>(std::max<std::int64_t>(1, config.parallel.threads)));
  const plan::StageClasses stages =
      plan::trace_stages(model, replica, shape, machine.on_host(), config.data.document_mask);
  const plan::StepTimes times = plan::simulate(shape, stages.classes, stages.class_of, machine);
  const auto tokens = static_cast<double>(config.train.batch * config.model.sequence);
  const double flops = model.flops_per_token() * tokens / times.seconds;
  const double peak = machine.peak(replica.stage.compute) * shape.size();

  const plan::RankTimes& longest = times.longest();
  StepPlan result;
  result.text = fmt::format(
      "\nstep on {}: {:.4g} s; {:.4g} tokens/s, {:.4g} tokens/s a rank; MFU {:.1f} %\n"
      "rank {}, which computes longest, s:\n",
      options.machine, times.seconds, tokens / times.seconds, tokens / times.seconds / shape.size(),
      100 * flops / peak, longest.rank);
  result.json = {{"machine", options.machine},
                 {"seconds", times.seconds},
                 {"tokens_per_second", tokens / times.seconds},
                 {"mfu", flops / peak},
                 {"rank", longest.rank}};
  const auto add = [&](const std::string& name, double seconds) {
    result.text +=
        fmt::format("  {:<32}{:>10.4f}{:>8.1f} %\n", name, seconds, 100 * seconds / times.seconds);
    result.json["parts"][name] = seconds;
  };
  double sum = 0;
  for (const auto& [part, seconds] : longest.parts) {
    add(step_part_name(part), seconds);
    sum += seconds;
  }
  if (times.seconds - sum > 1e-9) add("others, and the host between steps", times.seconds - sum);
  if (options.tokens > 0)
    add_training(times.seconds * std::ceil(options.tokens / tokens), shape, machine, result);
  if (!options.svg.empty()) draw_step(stages, shape, machine, times.seconds, options, result);
  return result;
}

}  // namespace trireme::cli
