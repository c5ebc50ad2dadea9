// trireme plan --search: the layouts with the shortest predicted steps.
#include <cstdio>

#include "trireme/core/files.hpp"
#include "trireme/core/text.hpp"
#include "trireme/report/progress.hpp"
#include "trireme/train/layout_search.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

double gibibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

/// What the rank that computes longest waits for or does most, beside products.
std::string bound_of(const plan::StepTimes& times) {
  const plan::RankTimes& longest = times.longest();
  std::string name = "products";
  double most = 0;
  for (const auto& [part, seconds] : longest.parts) {
    if (part != "products" && seconds > most) name = step_part_name(part), most = seconds;
  }
  return fmt::format("{} {:.0f} %", name, 100 * most / times.seconds);
}

std::string keys_of(const train::RunConfig& config, const comm::GridShape& shape) {
  const auto& p = config.parallel;
  std::string text = fmt::format("{:>6}{:>9}{:>6}{:>6}{:>5}{:>10}  {:<10}", p.tensor, p.pipeline,
                                 shape.of(comm::Axis::data), config.train.micro_batch, p.zero,
                                 p.sequence ? "yes" : "no", p.recompute);
  const std::string schedule =
      p.virtual_stages > 1 ? fmt::format("{} x{}", p.schedule, p.virtual_stages) : p.schedule;
  return text + fmt::format("{:<15}", p.pipeline > 1 ? schedule : "-");
}

}  // namespace

std::string plan_search(train::RunConfig config, train::LayoutFacts facts,
                        const PlanMemoryOptions& options, const std::string& output) {
  const plan::Machine machine = machine_for(config, facts, options.machine, options.ranks_per_node);
  const auto of_machine = static_cast<std::int64_t>(machine.device.memory_gib * (1 << 30));
  std::int64_t memory = options.memory > 0 ? options.memory : of_machine;
  if (machine.on_host()) memory /= machine.ranks_per_node;  // of a node
  report::ProgressLine line(stderr);
  report::PhaseProgress progress(&line, "search");
  const train::LayoutSearch found = train::search_layouts(
      config, facts, machine, memory,
      [&](int simulated) { progress.show(-1, counted(simulated, "layout")); });
  if (found.fitting.empty()) {
    throw ConfigError(
        "--ranks", std::to_string(facts.world),
        fmt::format(
            "no layout fits into {:.1f} GiB a rank; the nearest is tensor {} × pipeline {}, "
            "micro-batch {}, recomputation {}, {:.1f} GiB too large",
            gibibytes(memory), found.nearest.config.parallel.tensor,
            found.nearest.config.parallel.pipeline, found.nearest.config.train.micro_batch,
            found.nearest.config.parallel.recompute, gibibytes(found.nearest.memory - memory)),
        "use more ranks, or a smaller model");
  }
  std::string text = fmt::format(
      "{} of {} shapes and their variants simulated on {}\n\n{:>6}{:>9}{:>6}{:>6}{:>5}{:>10}  "
      "{:<10}{:<15}{:>9}{:>8}  {}\n",
      counted(found.simulated, "layout"), found.legal, options.machine, "tensor", "pipeline",
      "data", "micro", "zero", "sequence", "recompute", "schedule", "step, s", "GiB",
      "most beside products");
  const auto row = [](const train::FoundLayout& each) {
    return keys_of(each.config, each.shape) +
           fmt::format("{:>9.4g}{:>8.1f}  {}\n", each.times.seconds, gibibytes(each.memory),
                       bound_of(each.times));
  };
  for (const train::FoundLayout& each : found.fitting) text += row(each);
  for (const train::FoundLayout& usual : found.usual) {
    text += fmt::format("\ntensor ranks fill a node, fewest stages that fit: {:.1f} % longer\n",
                        100 * (usual.times.seconds / found.fitting.front().times.seconds - 1)) +
            row(usual);
  }
  if (!output.empty()) write_file(output, train::layout_toml(found.fitting.front().config));
  return text;
}

}  // namespace trireme::cli
