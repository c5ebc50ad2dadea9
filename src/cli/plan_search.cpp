// trireme plan --search: the layouts with the shortest predicted steps.
#include <cstdio>

#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
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

/// Throws AgreedError where nothing fits into `memory` bytes of a rank (0: the machine's).
train::LayoutSearch search(const train::RunConfig& config, const train::LayoutFacts& facts,
                           const plan::Machine& machine, std::int64_t memory) {
  if (memory == 0) memory = static_cast<std::int64_t>(machine.device.memory_gib * (1 << 30));
  if (machine.on_host()) memory /= machine.ranks_per_node;  // of a node
  report::ProgressLine line(stderr);
  report::PhaseProgress progress(&line, "search");
  train::LayoutSearch found = train::search_layouts(
      config, facts, machine, memory,
      [&](int simulated) { progress.show(-1, counted(simulated, "layout")); });
  if (!found.fitting.empty()) return found;
  const train::FoundLayout& nearest = found.nearest;
  throw AgreedError(
      "no layout of {} fits into {:.1f} GiB a rank; the nearest is tensor {} × pipeline {}, "
      "micro-batch {}, recomputation {}, {:.1f} GiB too large; use more ranks, or a smaller model",
      counted(facts.world, "rank"), gibibytes(memory), nearest.config.parallel.tensor,
      nearest.config.parallel.pipeline, nearest.config.train.micro_batch,
      nearest.config.parallel.recompute, gibibytes(nearest.memory - memory));
}

std::string longer(const train::FoundLayout& other, const train::FoundLayout& best) {
  return fmt::format("{:.1f} % longer", 100 * (other.times.seconds / best.times.seconds - 1));
}

/// "keys = values" of the layout, one by one.
std::vector<std::string> lines_of(const nlohmann::ordered_json& keys) {
  std::vector<std::string> lines;
  for (const auto& [section, of_section] : keys.items()) {
    for (const auto& [key, value] : of_section.items()) {
      lines.push_back(fmt::format("{}.{} = {}", section, key, value.dump()));
    }
  }
  return lines;
}

}  // namespace

std::string plan_search(train::RunConfig config, train::LayoutFacts facts,
                        const PlanMemoryOptions& options, const std::string& output) {
  const plan::Machine machine = machine_for(config, facts, options.machine, options.ranks_per_node);
  const train::LayoutSearch found = search(config, facts, machine, options.memory);
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
  const train::FoundLayout& best = found.fitting.front();
  for (const train::FoundLayout& each : found.fitting) text += row(each);
  for (const train::FoundLayout& usual : found.usual) {
    text += fmt::format("\ntensor ranks fill a node, fewest stages that fit: {}\n",
                        longer(usual, best)) +
            row(usual);
  }
  if (output.empty()) return text;
  std::string toml;
  for (const std::string& each : lines_of(train::layout_keys(best.config))) toml += each + "\n";
  write_file(output, toml);
  return text;
}

/// What choose_layout has in common for all ranks: {"keys", "line"}.
static nlohmann::ordered_json chosen_layout(ResolvedConfig& resolved, train::LayoutFacts facts,
                                            int ranks_per_node) {
  const std::string& file = resolved.config.train.predict;
  if (file == "off" || file == "quick") {
    throw ConfigError("parallel.layout", "auto", "needs a machine file in train.predict",
                      "make one by trireme bench machine, or use one of data/machines");
  }
  nlohmann::ordered_json given = train::layout_keys(resolved.config);
  given["parallel"]["data"] = 0;  // the rest of the world
  for (const auto& [section, of_section] : given.items()) {
    for (const auto& [key, unused] : of_section.items()) {
      const config::Field& field =
          resolved.fields.at(fmt::format("{}.{}", section, key), "parallel.layout");
      if (field.source == config::Source::built_in) continue;
      throw ConfigError(field.key, config::to_string(field.value()),
                        "is chosen where parallel.layout = auto", "leave one of the two out");
    }
  }
  train::RunConfig config = resolved.config;
  const plan::Machine machine = machine_for(config, facts, file, ranks_per_node);
  const train::LayoutSearch found = search(config, facts, machine, 0);
  const train::FoundLayout& best = found.fitting.front();
  nlohmann::ordered_json keys = train::layout_keys(best.config);
  std::string line = fmt::format(
      "layout chosen among {} by {}: {:.4g} s a step predicted, most beside products: {}",
      counted(found.simulated, "layout"), file, best.times.seconds, bound_of(best.times));
  if (found.fitting.size() > 1) {
    line += fmt::format("; the next best takes {}", longer(found.fitting[1], best));
  }
  for (const train::FoundLayout& usual : found.usual) {
    line += fmt::format("; tensor ranks that fill a node, and the fewest stages, {}",
                        longer(usual, best));
  }
  line += "\n";
  for (const std::string& each : lines_of(keys)) line += "  " + each + "\n";
  keys["parallel"]["layout"] = "given";
  return {{"keys", keys}, {"line", line}};
}

void choose_layout(ResolvedConfig& resolved, comm::Session& session, int ranks) {
  // Those of a job that is not there are placed as the machine's.
  const train::LayoutFacts facts =
      ranks > 0 ? train::LayoutFacts{.world = ranks}
                : train::LayoutFacts{.world = session.size(), .node_of = session.nodes()};
  const int ranks_per_node = ranks > 0 ? 0 : session.node_size();
  device::MemoryLedger ledger;
  const auto world = comm::make_mpi_communicator(session.world(), ledger);
  const auto chosen = nlohmann::ordered_json::parse(comm::of_rank_zero(
      *world, [&] { return chosen_layout(resolved, facts, ranks_per_node).dump(); }));
  // As late as the setting that asks for it.
  resolved.fields.from_json(chosen.at("keys"), config::Source::command_line,
                            "parallel.layout = auto");
  std::string text = chosen.at("line");
  if (!resolved.config.train.quiet) print_on_root(session, text);
}

}  // namespace trireme::cli
