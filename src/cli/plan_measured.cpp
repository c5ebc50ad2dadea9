// trireme plan --measured: predictions beside steps that were measured, and constants fitted to
// them.
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "trireme/core/files.hpp"
#include "trireme/core/text.hpp"
#include "trireme/plan/calibrate.hpp"
#include "trireme/schedule/schedule.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

/// Columns that are no keys of the configuration: ranks, and the measured time.
const std::set<std::string> measured_names = {"gpus", "ranks", "step_ms", "step_s"};
/// Short names of columns for keys.
const std::map<std::string, std::string> short_names = {
    {"tensor", "parallel.tensor"},
    {"pipeline", "parallel.pipeline"},
    {"data", "parallel.data"},
    {"virtual_stages", "parallel.virtual_stages"},
    {"recompute", "parallel.recompute"},
    {"sequence_parallel", "parallel.sequence"},
    {"global_batch", "train.batch"},
    {"micro_batch", "train.micro_batch"},
    {"layers", "model.layers"},
    {"width", "model.width"},
    {"heads", "model.heads"},
    {"kv_heads", "model.kv_heads"},
    {"hidden", "model.hidden"},
    {"vocabulary", "model.vocabulary"},
    {"sequence", "model.sequence"}};

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line + ",");  // an empty last cell is one
  for (std::string cell; std::getline(in, cell, ',');) cells.push_back(cell);
  return cells;
}

int ranks_of(const std::string& where, const std::string& text) {
  constexpr std::int64_t most = 1 << 20;
  const auto ranks = train::to_number<std::int64_t>(text);
  if (!ranks || *ranks < 1 || *ranks > most) {
    throw ConfigError(where + ": ranks", text, fmt::format("must be a number from 1 to {}", most),
                      "write the ranks of the run");
  }
  return static_cast<int>(*ranks);
}

double seconds_of(const std::string& where, const std::string& text, double unit) {
  const auto value = train::to_number<double>(text);
  if (!value || !(*value > 0) || !std::isfinite(*value)) {
    throw ConfigError(where + ": step", text, "must be a time above 0", "write the measured time");
  }
  return *value * unit;
}

/// The columns of a row that are keys of the configuration.
void set_keys(train::RunConfig& config, const std::string& where,
              const std::vector<std::string>& columns, const std::vector<std::string>& cells) {
  config::Fields fields;
  config.declare(fields);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const auto alias = short_names.find(columns[c]);
    const std::string& key = alias == short_names.end() ? columns[c] : alias->second;
    if (key == "model.preset") {
      throw AgreedError("{}: model.preset: is no column; write the model's own keys", where);
    }
    if (measured_names.contains(key)) continue;
    fields.at(key, where).set_text(cells[c], config::Source::command_line, where);
  }
}

/// A row of the file as a run, traced. `config` has what all rows have in common, `facts` what they
/// share beside it.
plan::MeasuredStep traced(train::RunConfig config, train::LayoutFacts facts,
                          const std::string& where, const std::vector<std::string>& columns,
                          const std::vector<std::string>& cells, const plan::Machine& machine) {
  if (cells.size() != columns.size()) {
    throw AgreedError("{}: has {}, the header {}; write one for each column", where,
                      counted(static_cast<std::int64_t>(cells.size()), "cell"), columns.size());
  }
  plan::MeasuredStep step;
  facts.world = 0;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (columns[c] == "gpus" || columns[c] == "ranks") facts.world = ranks_of(where, cells[c]);
    if (columns[c] == "step_ms") step.seconds = seconds_of(where, cells[c], 1e-3);
    if (columns[c] == "step_s") step.seconds = seconds_of(where, cells[c], 1);
  }
  if (facts.world == 0 || step.seconds == 0) {
    throw AgreedError("{}: has no {}; add that column", where,
                      facts.world == 0 ? "ranks" : "step_ms or step_s");
  }
  for (int rank = 0; rank < facts.world; ++rank) {
    facts.node_of.push_back(rank - rank % static_cast<int>(machine.ranks_per_node));
  }
  set_keys(config, where, columns, cells);
  config.device.type = machine.on_host() ? "cpu" : "cuda";
  try {
    train::validate_layout(config, facts);
    step.shape = train::grid_shape(config, facts);
    const model::Transformer model(config.model);
    step.stages = plan::trace_stages(
        model,
        train::replica_options(
            config, train::stage_options(config, step.shape, facts),
            static_cast<int>(std::max<std::int64_t>(1, config.parallel.threads))),
        step.shape, machine.on_host(), config.data.document_mask);
  } catch (const Error& error) {
    throw AgreedError("{}: {}", where, error.what());
  }
  step.name = fmt::format("{}; micro-batch {} of {}; {} × {}", step.shape.to_string(),
                          config.train.micro_batch, config.train.batch, config.model.layers,
                          config.model.width);
  return step;
}

/// Without the end of a line of Windows, and the mark of UTF-8 before a file's first one.
std::string plain(std::string line) {
  if (line.ends_with('\r')) line.pop_back();
  if (line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
  return line;
}

/// Operations that were measured take their times whatever the formulas' constants are, but for
/// what the host does.
void check_fit(const std::vector<std::string>& keys, const plan::Machine& machine) {
  if (machine.measured.times().empty()) return;
  for (const std::string& key : keys) {
    static const std::set<std::string> of_host{"device.launch_us", "device.step_ms",
                                               "loss.launches", "attention.launches",
                                               "attention.slow_factor"};
    if (key.starts_with("links.") || of_host.contains(key)) continue;
    throw ConfigError("--fit", key, "changes no operation of operations.measured",
                      "leave that out of the machine file");
  }
}

std::vector<plan::MeasuredStep> read_steps(const train::RunConfig& config, const std::string& path,
                                           const plan::Machine& machine) {
  std::istringstream in(read_named_file(path, "CSV", std::int64_t{16} << 20));
  train::LayoutFacts facts{.schedule_text = {}, .host = machine.on_host(), .planned = true};
  if (const auto file = schedule::path_of(config.parallel.schedule)) {
    facts.schedule_text = schedule::read_schedule_text(*file);
  }
  std::string line;
  std::getline(in, line);
  const std::vector<std::string> columns = cells_of(plain(line));
  std::vector<plan::MeasuredStep> steps;
  for (int number = 2; std::getline(in, line); ++number) {
    line = plain(line);
    if (line.empty()) continue;
    steps.push_back(traced(config, facts, fmt::format("{}:{}", path, number), columns,
                           cells_of(line), machine));
  }
  if (steps.empty()) throw AgreedError("{}: has no row; write a header and a row a step", path);
  return steps;
}

}  // namespace

std::string plan_measured(const train::RunConfig& config, const PlanMeasuredOptions& options) {
  plan::Machine machine = plan::Machine::read(options.machine);
  const std::vector<plan::MeasuredStep> steps = read_steps(config, options.measured, machine);
  if (!options.fit.empty()) {
    check_fit(cells_of(options.fit), machine);
    machine = plan::calibrate(machine, cells_of(options.fit), steps);
  }
  const std::vector<double> predicted = plan::predict_all(steps, machine);
  std::string text =
      fmt::format("{:<68}{:>12}{:>12}{:>9}\n", "step", "measured, s", "predicted", "error");
  double sum = 0, most = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double error = predicted[i] / steps[i].seconds - 1;
    sum += std::abs(error);
    most = std::max(most, std::abs(error));
    text += fmt::format("{:<68}{:>12.4f}{:>12.4f}{:>8.1f}%\n", steps[i].name, steps[i].seconds,
                        predicted[i], 100 * error);
  }
  const std::string summary =
      fmt::format("{}: mean error {:.2f} %, largest {:.1f} %",
                  counted(static_cast<std::int64_t>(steps.size()), "step"),
                  100 * sum / static_cast<double>(steps.size()), 100 * most);
  if (!options.output.empty()) {
    machine.source =
        fmt::format("{} fitted to {}; {}", options.fit,
                    std::filesystem::path(options.measured).filename().string(), summary);
    write_file(options.output, machine.to_toml());
  }
  return text + summary + "\n";
}

}  // namespace trireme::cli
