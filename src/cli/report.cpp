// trireme report
#include <cstdio>
#include <filesystem>
#include <map>

#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
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

/// Two flags that name one file: only the last would be left.
void check_files(const Options& options) {
  const std::pair<const char*, const std::string&> files[] = {{"--csv", options.csv},
                                                              {"--json", options.json},
                                                              {"--html", options.html},
                                                              {"--benchmark", options.benchmark}};
  std::map<std::filesystem::path, const char*> named;
  for (const auto& [flag, file] : files) {
    if (file.empty()) continue;
    std::error_code error;
    std::filesystem::path real =
        std::filesystem::weakly_canonical(std::filesystem::absolute(file), error);
    if (error) real = file;
    const auto [other, fresh] = named.emplace(std::move(real), flag);
    if (fresh) continue;
    throw UsageError("report: {} and {} both name {}; name two files", other->second, flag,
                     config::one_line(file));
  }
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// Prints the report, and writes what was asked for. Without gnuplot there is no page; the rest is
/// written all the same.
std::string write_report(const Options& options) {
  const report::Report report = report::make_report(
      options.runs, {.warm_up = options.warm_up, .shared_cores = options.shared_cores});
  print(report_text(report));
  const auto write = [](const std::string& file, const std::string& text) {
    write_output(file, text);
    print("written: " + config::one_line(file) + "\n");
  };
  if (!options.csv.empty()) write(options.csv, report_csv(report));
  const auto write_json = [&](const std::string& file, const nlohmann::json& json) {
    if (!file.empty()) write(file, json_text(json, 2) + "\n");
  };
  write_json(options.json, report_json(report));
  write_json(options.benchmark, benchmark_json(report));
  if (!options.html.empty()) {
    std::string page;
    try {
      page = report_html(report);
    } catch (const Error& error) {
      throw Error("{}: {}", options.html, error.what());
    }
    write(options.html, page);
  }
  if (report.measured.empty()) {
    throw Error("report: none of {} runs is valid; the reasons are above", report.runs.size());
  }
  return {};
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
    check_files(*options);
    command.run = printing([options] { return write_report(*options); });
  });
}

}  // namespace trireme::cli
