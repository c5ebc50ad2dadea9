// trireme compare
#include <cstdio>

#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/report/page.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* compare_examples = R"(Examples:
  trireme compare runs/fp32 runs/bf16          what differs, on the terminal
  trireme compare old new --html compare.html  one page with plots
Runs are compared with the first: docs/reports.md.)";

struct CompareOptions {
  std::vector<std::string> runs;
  std::string json, html;
  std::int64_t warm_up = -1;
  bool shared_cores = false;
};

std::string compare(const CompareOptions& options) {
  const report::Report report = report::make_report(
      options.runs, {.warm_up = options.warm_up, .shared_cores = options.shared_cores});
  std::string text = compare_text(report);
  const auto write = [&text](const std::string& file, const std::string& content) {
    write_output(file, content);
    text += "written: " + config::one_line(file) + "\n";
  };
  if (!options.json.empty()) write(options.json, json_text(compare_json(report), 2) + "\n");
  if (!options.html.empty()) write(options.html, compare_html(report));
  return text;
}

}  // namespace

void add_compare(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("compare", "What differs between runs, with intervals");
  auto options = std::make_shared<CompareOptions>();
  sub->add_option("runs", options->runs, "run folders, attempts, or folders that\nhold runs")
      ->required()
      ->type_name("RUN");
  sub->add_option("--json", options->json, "write the tables")->type_name("FILE");
  sub->add_option("--html", options->html, "write one page with plots (gnuplot)")
      ->type_name("FILE");
  add_value(*sub, "--warm-up", options->warm_up,
            "steps of each attempt that count for no\nfigure; default: as of report",
            config::at_least(-1))
      ->default_str("");
  sub->add_flag("--shared-cores", options->shared_cores,
                "do not call a run INVALID because its\nranks share cores");
  sub->footer(compare_examples);
  sub->callback(
      [options, &command] { command.run = printing([options] { return compare(*options); }); });
}

}  // namespace trireme::cli
