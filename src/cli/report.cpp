// trireme report
#include <cstdio>

#include "trireme/core/files.hpp"
#include "trireme/report/json.hpp"
#include "trireme/report/page.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* examples = R"(Examples:
  trireme report run                              one run, all its attempts
  trireme report study --html study.html          every run below a folder
  trireme report a b --csv runs.csv --json runs.json
A run whose checks failed is INVALID and gives no figure: docs/reports.md.)";

struct Options {
  std::vector<std::string> runs;
  std::string csv, json, html, benchmark;
  std::int64_t warm_up = -1;
  bool shared_cores = false;
};

/// Writes what was asked for. Without gnuplot there is no page; the rest is written all the same.
std::string write_report(const Options& options) {
  const report::Report report = report::make_report(
      options.runs, {.warm_up = options.warm_up, .shared_cores = options.shared_cores});
  std::string text = report_text(report);
  const auto written = [&](const std::string& file) { text += "written: " + file + "\n"; };
  if (!options.csv.empty()) {
    replace_file(options.csv, report_csv(report));
    written(options.csv);
  }
  const auto write_json = [&](const std::string& file, const nlohmann::json& json) {
    if (file.empty()) return;
    replace_file(file, report::to_text(json, 2) + "\n");
    written(file);
  };
  write_json(options.json, report_json(report));
  write_json(options.benchmark, benchmark_json(report));
  std::string fault;
  if (!options.html.empty()) {
    std::string page;
    try {
      page = report_html(report);
    } catch (const Error& error) {
      fault = fmt::format("{}: {}", options.html, error.what());
    }
    if (fault.empty()) {
      replace_file(options.html, page);
      written(options.html);
    }
  }
  std::fputs(text.c_str(), stdout);
  if (!fault.empty()) throw Error("{}", fault);
  if (report.measured.empty()) {
    throw Error("report: none of {} runs is valid; the reasons stand above", report.runs.size());
  }
  return text;
}

}  // namespace

void add_report(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("report", "Figures, diagnosis and plots of finished runs");
  auto options = std::make_shared<Options>();
  sub->add_option("runs", options->runs, "run folders, attempts, or folders that\nhold runs")
      ->required()
      ->type_name("RUN");
  sub->add_option("--csv", options->csv, "write a row per run")->type_name("FILE");
  sub->add_option("--json", options->json, "write everything")->type_name("FILE");
  sub->add_option("--html", options->html, "write one page with plots (gnuplot)")
      ->type_name("FILE");
  sub->add_option("--benchmark", options->benchmark, "write Google Benchmark's JSON")
      ->type_name("FILE");
  add_value(
      *sub, "--warm-up", options->warm_up,
      "steps of each attempt that count for no\nfigure; default: 5, or a quarter of fewer\nthan "
      "20",
      config::at_least(-1))
      ->default_str("");
  sub->add_flag("--shared-cores", options->shared_cores,
                "do not call a run INVALID because its\nranks share cores");
  sub->footer(examples);
  sub->callback([options, &command] {
    command.run = [options](comm::Session& session, const std::vector<Setting>&) {
      on_rank_zero(session, [&] { return write_report(*options); });
      return 0;
    };
  });
}

}  // namespace trireme::cli
