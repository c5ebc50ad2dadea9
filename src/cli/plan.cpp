// trireme plan
#include <cstdio>
#include <limits>
#include <utility>

#include "trireme/core/files.hpp"
#include "trireme/schedule/schedule.hpp"
#include "trireme/schedule/simulate.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* plan_examples = R"(Examples:
  trireme plan --schedule 1f1b --stages 4 --micro-batches 8
  trireme plan --schedule interleaved --virtual-stages 2 --stages 4
               --micro-batches 8 --costs 1,1.2,0.8 --svg chart.svg
  trireme plan --schedule zero-bubble --stages 4 --micro-batches 8 --csv z.csv
  trireme plan --schedule file:z.csv
  trireme plan --ranks 64 --model.preset llama-7b --model.vocabulary 32000
               --parallel.tensor 4 --parallel.pipeline 4 --parallel.zero 1
               --device.type cuda --precision.compute bf16 --memory 80GiB
  trireme plan --ranks 64 --machine data/machines/a100-sxm-80g.toml
               --model.preset llama-7b --model.vocabulary 32000
               --precision.compute bf16)";

struct PlanOptions {
  std::string schedule = "1f1b";
  std::int64_t stages = 0, micro_batches = 0, virtual_stages = 0;  // 0: not given
  std::string costs = "1,1,1";
  double latency = 0;
  std::string svg, svg_ranks, csv;
  std::int64_t ranks = 0;           // memory is asked for
  std::int64_t ranks_per_node = 0;  // 0: all on one node
  std::string memory;               // empty: this machine's
  std::string machine;              // a file; empty: time is not predicted
  double tokens = 0;                // of a whole training; 0: not given
  std::string measured, fit, output;
  bool search = false;
  bool json = false;
  std::string file;
};

int narrowed(const char* flag, std::int64_t value) {
  constexpr int most = std::numeric_limits<int>::max();
  if (value > most)
    throw ConfigError(flag, std::to_string(value), fmt::format("must be at most {}", most),
                      "use fewer");
  return static_cast<int>(value);
}

schedule::Schedule schedule_of(const PlanOptions& options) {
  const int stages = narrowed("--stages", options.stages);
  const int micro_batches = narrowed("--micro-batches", options.micro_batches);
  const int chunks = narrowed("--virtual-stages", options.virtual_stages);
  if (const auto path = schedule::path_of(options.schedule))
    return schedule::read_schedule(*path, {stages, micro_batches, chunks});
  return schedule::make_schedule(options.schedule, stages, micro_batches, chunks == 0 ? 1 : chunks);
}

schedule::Costs costs_of(const PlanOptions& options, int virtual_stages) {
  std::error_code error;
  const bool numbers = options.costs.find_first_of(",0123456789") != std::string::npos &&
                       !std::filesystem::exists(options.costs, error);
  schedule::Costs costs = numbers ? schedule::parse_costs(options.costs, "--costs", virtual_stages)
                                  : schedule::read_costs(options.costs, virtual_stages);
  costs.latency = options.latency;
  return costs;
}

std::string head(const schedule::Schedule& plan, const PlanOptions& options) {
  std::string sizes = fmt::format("{} stages, {} micro-batches", plan.stages, plan.micro_batches);
  if (plan.chunks > 1) sizes += fmt::format(", {} virtual stages per stage", plan.chunks);
  std::string costs = options.costs + " for F,I,W of a virtual stage";
  if (options.latency > 0) costs += fmt::format(", {:g} for a message", options.latency);
  return line("schedule", config::one_line(plan.name) + ": " + sizes) +
         line("costs", config::one_line(costs));
}

/// Per stage: time at work and idle, and what it keeps.
std::string stage_table(const schedule::Schedule& plan, const schedule::Timeline& timeline) {
  const bool split = plan.splits_backward();
  std::string text =
      fmt::format("{:<8}{:>10}{:>10}{:>22}", "stage", "busy", "idle", "activations in flight");
  text += split ? fmt::format("{:>16}\n", "W put off") : "\n";
  for (std::size_t stage = 0; stage < timeline.spans.size(); ++stage) {
    double busy = 0;
    for (const schedule::Span& span : timeline.spans[stage]) busy += span.end - span.start;
    text += fmt::format("{:<8}{:>10.6g}{:>10.6g}{:>22}", stage, busy, timeline.total - busy,
                        timeline.peak_in_flight[stage]);
    text += split ? fmt::format("{:>16}\n", timeline.peak_pending_weights[stage]) : "\n";
  }
  return text;
}

std::string plan_schedule(const PlanOptions& options) {
  const schedule::Schedule plan = schedule_of(options);
  const schedule::Costs costs = costs_of(options, plan.virtual_stages());
  const schedule::Timeline timeline = schedule::simulate(plan, costs);
  if (!options.csv.empty()) write_file(options.csv, schedule::to_csv(plan));
  if (!options.svg.empty()) write_file(options.svg, schedule::svg_chart(plan, timeline));
  const schedule::TextChart chart = schedule::text_chart(plan, timeline);
  return head(plan, options) + "\n" + chart.text + "\n" +
         line("one cell", fmt::format("{:.6g}", chart.cell)) +
         line("total", fmt::format("{:.6g}", timeline.total)) +
         line("ideal", fmt::format("{:.6g}  (the stages' mean time at work)", timeline.ideal)) +
         line("bubble", fmt::format("{:.4g} %  (idle time over ideal)", 100 * timeline.bubble)) +
         "\n" + stage_table(plan, timeline);
}

void check_given(const PlanOptions& options) {
  if (!options.measured.empty()) {
    if (options.machine.empty()) throw UsageError("plan: --measured needs --machine");
    if (options.ranks > 0) throw UsageError("plan: --ranks and --measured exclude each other");
  } else if (!options.fit.empty()) {
    throw UsageError("plan: --fit belongs to --measured");
  }
  if (!options.output.empty() && options.fit.empty() && !options.search) {
    throw UsageError("plan: --output belongs to --fit and --search");
  }
  if (options.search && (options.ranks == 0 || options.machine.empty())) {
    throw UsageError("plan: --search needs --ranks and --machine");
  }
  if (options.tokens > 0 && (options.ranks == 0 || options.machine.empty() || options.search)) {
    throw UsageError("plan: --tokens belongs to --ranks with --machine, without --search");
  }
  const bool no_step =
      options.search || !options.measured.empty() || (options.ranks > 0 && options.machine.empty());
  if (!options.svg.empty() && no_step) {
    throw UsageError(
        "plan: --svg draws a schedule, or with --ranks and --machine a step; leave --search and "
        "--measured out");
  }
  if (!options.svg_ranks.empty() && (options.svg.empty() || options.ranks == 0)) {
    throw UsageError("plan: --svg-ranks belongs to --svg with --ranks and --machine");
  }
  if (options.search && options.json) throw UsageError("plan: --search has no --json");
  if (options.ranks > 0 || !options.measured.empty()) {
    const PlanOptions usual;
    for (const auto& [flag, given] : {std::pair("--schedule", options.schedule != usual.schedule),
                                      std::pair("--stages", options.stages > 0),
                                      std::pair("--micro-batches", options.micro_batches > 0),
                                      std::pair("--virtual-stages", options.virtual_stages > 0),
                                      std::pair("--costs", options.costs != usual.costs),
                                      std::pair("--latency", options.latency != usual.latency),
                                      std::pair("--csv", !options.csv.empty())}) {
      if (!given) continue;
      throw UsageError(
          "plan: {} draws a schedule, without --ranks and --measured; a run has parallel.schedule, "
          "parallel.pipeline, parallel.virtual_stages and train.micro_batch",
          flag);
    }
  }
  if (options.ranks > 0) return;
  if (options.ranks_per_node > 0) throw UsageError("plan: --ranks-per-node belongs to --ranks");
  if (!options.memory.empty()) throw UsageError("plan: --memory belongs to --ranks");
  if (options.json) throw UsageError("plan: --json belongs to --ranks");
  if (!options.measured.empty()) return;
  if (!options.machine.empty()) {
    throw UsageError("plan: --machine belongs to --ranks or --measured");
  }
  if (schedule::path_of(options.schedule)) return;
  for (const auto& [flag, value] : {std::pair("--stages", options.stages),
                                    std::pair("--micro-batches", options.micro_batches)}) {
    if (value == 0)
      throw UsageError("plan: {} is missing; only --schedule file:PATH and --ranks do without",
                       flag);
  }
}

}  // namespace

void add_plan(CLI::App& app, Command& command) {
  CLI::App* plan = app.add_subcommand("plan", "Memory of a layout; a pipeline schedule, drawn");
  auto options = std::make_shared<PlanOptions>();
  add_value(*plan, "--schedule", options->schedule,
            "gpipe, 1f1b, interleaved, zero-bubble\nor file:PATH (CSV)");
  add_value(*plan, "--stages", options->stages, "pipeline stages", config::at_least(1))
      ->default_str("");
  add_value(*plan, "--micro-batches", options->micro_batches, "micro-batches of a step",
            config::at_least(1))
      ->default_str("");
  add_value(*plan, "--virtual-stages", options->virtual_stages, "virtual stages of each stage",
            config::at_least(1))
      ->default_str("");
  add_value(*plan, "--costs", options->costs,
            "times F,I,W of a virtual stage, or\na file with a line for each");
  add_value(*plan, "--latency", options->latency, "time of a message", config::below(0, 1e100));
  plan->add_option("--svg", options->svg,
                   "write a Gantt chart: of the schedule, or with\n--machine of the step")
      ->type_name("FILE");
  plan->add_option("--svg-ranks", options->svg_ranks,
                   "ranks whose step is drawn, with commas; else\none of each stage")
      ->type_name("RANKS");
  plan->add_option("--csv", options->csv, "write the schedule as CSV")->type_name("FILE");
  add_value(*plan, "--ranks", options->ranks,
            "instead: memory of a run on so many\nranks, as configured",
            config::in_range(1, most_ranks));
  add_value(*plan, "--ranks-per-node", options->ranks_per_node,
            "of them (shared memory, zero.group = node)", config::at_least(1))
      ->default_str("");
  plan->add_option("--memory", options->memory,
                   "of a GPU, or on CPUs of a node: whether the\nranks fit; else this machine's")
      ->type_name("SIZE");
  plan->add_option("--machine", options->machine, "a machine file: predicts the time of a step too")
      ->type_name("FILE");
  add_value(*plan, "--tokens", options->tokens,
            "with --machine: days and node hours of a\ntraining on so many tokens (1e12)",
            config::non_negative())
      ->default_str("");
  plan->add_option(
          "--measured", options->measured,
          "predicts the steps of a CSV file, with one\nrow each, beside their measured times")
      ->type_name("FILE");
  plan->add_option("--fit", options->fit,
                   "keys of the machine file, with commas: fits\nthem to these steps first")
      ->type_name("KEYS");
  plan->add_option("--output", options->output, "writes the fitted machine, or the best layout")
      ->type_name("FILE");
  plan->add_flag("--search", options->search,
                 "looks for the layout of --ranks with the\nshortest step on --machine");
  plan->add_flag("--json", options->json, "print the plan of --ranks as JSON, in bytes");
  plan->add_option("--config", options->file, "configuration in TOML")->type_name("FILE");
  plan->footer(plan_examples);
  plan->callback([options, &command] {
    check_given(*options);
    command.run = [options](comm::Session& session, const std::vector<Setting>& settings) {
      const bool runs = options->ranks > 0 || !options->measured.empty();
      if (!runs)
        refuse_settings_of_the_run(settings, "plan without --ranks", "a schedule has no model");
      ResolvedConfig resolved(options->file, settings, session);
      const std::string text = on_rank_zero(session, [&] {
        if (!options->measured.empty()) {
          return plan_measured(resolved.config, {.measured = options->measured,
                                                 .machine = options->machine,
                                                 .fit = options->fit,
                                                 .output = options->output});
        }
        if (options->ranks == 0) return plan_schedule(*options);
        train::LayoutFacts facts = train::layout_facts(resolved.config, session);
        facts.world = narrowed("--ranks", options->ranks);
        facts.node_of.clear();
        if (const std::int64_t node = options->ranks_per_node; node > 0) {
          for (int rank = 0; rank < facts.world; ++rank) {
            facts.node_of.push_back(static_cast<int>(rank - rank % node));
          }
        }
        const PlanMemoryOptions memory{
            .ranks_per_node = narrowed("--ranks-per-node", options->ranks_per_node),
            .memory = options->memory.empty() ? 0 : parse_size("--memory", options->memory),
            .json = options->json,
            .machine = options->machine,
            .tokens = options->tokens,
            .svg = options->svg,
            .svg_ranks = options->svg_ranks};
        if (options->search) {
          return plan_search(resolved.config, std::move(facts), memory, options->output);
        }
        return plan_memory(resolved.config, std::move(facts), memory);
      });
      print_on_root(session, text);
      return 0;
    };
  });
}

}  // namespace trireme::cli
