// The subcommands. Each add_… declares a subcommand's options; when it is chosen, its callback puts
// the job into `command`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "trireme/cli/command.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/plan/machine.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::cli {

void add_prepare(CLI::App& app, Command& command);
void add_inspect(CLI::App& app, Command& command);
void add_train(CLI::App& app, Command& command);
void add_evaluate(CLI::App& app, Command& command);
void add_generate(CLI::App& app, Command& command);
void add_plan(CLI::App& app, Command& command);
void add_export(CLI::App& app, Command& command);
void add_import(CLI::App& app, Command& command);
void add_presets(CLI::App& app, Command& command);
void add_report(CLI::App& app, Command& command);
void add_compare(CLI::App& app, Command& command);
void add_status(CLI::App& app, Command& command);
void add_info(CLI::App& app, Command& command);
void add_bench(CLI::App& app, Command& command);

/// All subcommands, and what the program itself has.
void define(CLI::App& app, Command& command);

/// A job that runs `work` on rank 0 alone and prints what it returns.
std::function<int(comm::Session&, const std::vector<Setting>&)> printing(
    std::function<std::string()> work);

/// --config and --device, the latter as a setting of device.type.
struct RunSources {
  std::string file, device;
  void add_to(CLI::App& app);
  std::vector<Setting> with_device(std::vector<Setting> settings) const;
};

/// An option whose value is read as a configuration field's is: same types, same words for errors.
/// `target` must outlive the parsing.
template <class T>
CLI::Option* add_value(CLI::App& app, const std::string& flag, T& target, const std::string& help,
                       config::Rule rule = config::any()) {
  auto field = std::make_shared<config::Field>();
  field->key = flag;
  field->rule = std::move(rule);
  field->target = &target;
  CLI::Option* option = app.add_option_function<std::string>(
      flag,
      [field](const std::string& text) {
        field->set_text(text, config::Source::command_line, field->key);
      },
      help);
  std::string type = field->type_name();
  for (char& c : type) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  option->type_name(type);
  const std::string value = config::to_string(field->value());
  if (!value.empty()) option->default_str(value);
  return option;
}

/// All fields with their built-in values. Stays where it is made: the
/// fields point into it.
struct BuiltInConfig {
  BuiltInConfig() { config.declare(fields); }
  BuiltInConfig(const BuiltInConfig&) = delete;
  BuiltInConfig& operator=(const BuiltInConfig&) = delete;
  train::RunConfig config;
  config::Fields fields;
};

/// A run's configuration from all its sources, the same on every rank.
struct ResolvedConfig : BuiltInConfig {
  /// The model that train.from names decides section "model", unless it is `ignored`.
  enum class From : std::uint8_t { decides, ignored };
  ResolvedConfig(const std::string& file, const std::vector<Setting>& settings,
                 comm::Session& session, From from = From::decides);
};

/// Refuses --model.…, --optim.… and the like where they would be ignored, by default because a
/// checkpoint decides. `subcommand` is named in the message.
void refuse_settings_of_the_run(const std::vector<Setting>& settings, const std::string& subcommand,
                                const std::string& reason = "the checkpoint decides it");

/// Of a job that is planned.
inline constexpr std::int64_t most_ranks = 1 << 20;

struct PlanMemoryOptions {
  int ranks_per_node = 0;   // 0: all on one
  std::int64_t memory = 0;  // bytes of a GPU, or on CPUs of a node; 0: this machine's
  bool json = false;
  std::string machine;    // a file: the step's time is predicted too; empty: not
  double tokens = 0;      // of a whole training, whose time is predicted with it; 0: none
  std::string svg;        // where the step is drawn; empty: nowhere
  std::string svg_ranks;  // that are drawn, with commas; empty: one of each that is simulated
};
/// The memory that each pipeline stage's fullest rank would take in the layout of `config` on
/// facts.world ranks, and whether it fits, as a table or as JSON. Throws ConfigError for layouts
/// that cannot be.
std::string plan_memory(train::RunConfig& config, train::LayoutFacts facts,
                        const PlanMemoryOptions& options);

/// As users read a part of plan::RankTimes: "data" is waited for, "products" are computed.
std::string step_part_name(const std::string& part);
/// Reads the machine file; device.type and the nodes of ranks become the machine's. Throws
/// ConfigError where device.type contradicts it.
plan::Machine machine_for(train::RunConfig& config, train::LayoutFacts& facts,
                          const std::string& file, int ranks_per_node);

/// The fastest layouts on facts.world ranks of a machine, as a table; with `output` the best one
/// goes there as TOML.
std::string plan_search(train::RunConfig config, train::LayoutFacts facts,
                        const PlanMemoryOptions& options, const std::string& output);

/// parallel.layout = auto: sets the keys of the layout with the shortest predicted step on the
/// machine of train.predict, and prints which and why. `ranks`: of a job that is planned; 0: those
/// of the session. Collective; throws AgreedError.
void choose_layout(ResolvedConfig& resolved, comm::Session& session, int ranks);

/// The predicted step of that layout, as lines of text and for JSON.
struct StepPlan {
  std::string text;
  nlohmann::ordered_json json;
};
/// `config` is validated. Of `options` what concerns the step: machine, which names it in the text,
/// tokens, svg. Throws ConfigError for ranks that cannot be drawn.
StepPlan plan_step(const train::RunConfig& config, const train::LayoutFacts& facts,
                   const comm::GridShape& shape, const plan::Machine& machine,
                   const PlanMemoryOptions& options);

/// The memory of facts.world ranks, and whether their programs agree: comments of TOML. Throws as
/// plan_memory does, and Error where they do not.
std::string dry_run(train::RunConfig& config, train::LayoutFacts facts);
/// Throws Error where a blend ends before the run, or the run reads a source too often.
void check_data(const train::RunConfig& config);
/// The samples of a step of the run, by rank, and what each source gives. Throws Error.
std::string show_samples(const train::RunConfig& config, const train::LayoutFacts& facts,
                         std::int64_t step);
/// The first 60 characters of text on one line, or the first ids where `tokenizer` is null.
std::string first_text(const std::vector<std::int32_t>& ids, const data::Tokenizer* tokenizer);

struct PlanMeasuredOptions {
  std::string measured;  // a CSV file: a row a step
  std::string machine;
  std::string fit;     // keys of the machine's constants to fit first, with commas; empty: none
  std::string output;  // where the fitted machine goes; empty: nowhere
};
/// Predicted beside measured steps, as a table. `config`: what the rows do not have.
std::string plan_measured(const train::RunConfig& config, const PlanMeasuredOptions& options);

/// `text` on rank 0's standard output.
void print_on_root(const comm::Session& session, const std::string& text);
/// A line of a table: "KEY   VALUE", the value in column `width`.
std::string line(const std::string& key, const std::string& value, int width = 16);
/// "4,404,445".
std::string grouped(std::int64_t number);
/// "8.8 MB", in powers of 1000.
std::string bytes_text(std::int64_t bytes);
/// Parts of "a,b,c".
std::vector<std::string> words_of(const std::string& list);
/// Whole numbers, each as the rule has it. Throws ConfigError that names `flag`.
std::vector<std::int64_t> numbers_of(const std::string& flag, const std::string& list,
                                     const config::Rule& rule = config::at_least(1));
/// Bytes of "80GiB", "5GB", "700MB" or "123456", the value of `flag`. Throws ConfigError.
std::int64_t parse_size(const std::string& flag, const std::string& text);

}  // namespace trireme::cli
