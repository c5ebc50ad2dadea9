// trireme report
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>

#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/data/hash.hpp"
#include "trireme/report/benchmark.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* report_examples = R"(Examples:
  trireme report run                              one run, all its attempts
  trireme report study --html study.html          every run below a folder
  trireme report a b --csv runs.csv --json runs.json
  trireme report study/runs --benchmark jobs/benchmarks/small-cpu-v1.toml
A run whose checks failed is INVALID and gives no figure: docs/reports.md.)";

struct ReportOptions {
  std::vector<std::string> runs;
  std::string csv, json, html, google_benchmark;
  std::string benchmark;  // a case's file
  std::int64_t warm_up = -1;
  bool shared_cores = false;
};

/// Two flags that name one file: only the last would be left.
void check_files(const ReportOptions& options) {
  const std::pair<const char*, const std::string&> files[] = {
      {"--csv", options.csv},
      {"--json", options.json},
      {"--html", options.html},
      {"--google-benchmark", options.google_benchmark}};
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

/// --benchmark once named the file to write.
void check_benchmark(const std::string& file) {
  if (std::filesystem::path(file).extension() != ".json") return;
  throw UsageError(
      "report: --benchmark {}: takes a benchmark case in TOML; write Google Benchmark's JSON with "
      "--google-benchmark {}",
      config::one_line(file), config::one_line(file));
}

/// The keys that the file sets.
report::BenchmarkCase read_case(const std::string& file) {
  const std::filesystem::path path = file;
  BuiltInConfig given;
  given.fields.read_toml(path);
  report::BenchmarkCase found{.name = config::one_line(path.stem().string()),
                              .hash = data::hash_file(path)};
  for (const config::Field& field : given.fields.all()) {
    if (field.source != config::Source::file) continue;
    found.fixed[field.key] = config::to_json(field.value());
  }
  if (found.fixed.empty()) {
    throw Error("report: --benchmark {}: sets no key; name a case as in jobs/benchmarks",
                config::one_line(file));
  }
  return found;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// Prints the report, and writes what was asked for. Without gnuplot there is no page; the rest is
/// written all the same.
std::string write_report(const ReportOptions& options) {
  std::optional<report::BenchmarkCase> benchmark;
  if (!options.benchmark.empty()) benchmark = read_case(options.benchmark);
  const report::Report report = report::make_report(
      options.runs, {.warm_up = options.warm_up, .shared_cores = options.shared_cores});
  print(report_text(report));
  std::optional<report::Submission> submission;
  if (benchmark) {
    submission = judge(*benchmark, report);
    print(submission_text(*submission));
  }
  const auto write = [](const std::string& file, const std::string& text) {
    write_output(file, text);
    print("written: " + config::one_line(file) + "\n");
  };
  if (!options.csv.empty()) write(options.csv, report_csv(report));
  const auto write_json = [&](const std::string& file, const nlohmann::json& json) {
    if (!file.empty()) write(file, json_text(json, 2) + "\n");
  };
  nlohmann::json everything = report_json(report);
  if (submission) everything["benchmark"] = submission_json(*submission);
  write_json(options.json, everything);
  write_json(options.google_benchmark, google_benchmark_json(report));
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
  if (submission && !submission->faults.empty()) {
    throw Error("report: these runs are no valid result of {}; the reasons are above",
                config::one_line(options.benchmark));
  }
  return {};
}

}  // namespace

void add_report(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("report", "Figures, diagnosis and plots of finished runs");
  auto options = std::make_shared<ReportOptions>();
  sub->add_option("runs", options->runs, "run folders, attempts, or folders that\nhold runs")
      ->required()
      ->type_name("RUN");
  sub->add_option("--csv", options->csv, "write a row per run")->type_name("FILE");
  sub->add_option("--json", options->json, "write everything")->type_name("FILE");
  sub->add_option("--html", options->html, "write one page with plots (gnuplot)")
      ->type_name("FILE");
  sub->add_option("--google-benchmark", options->google_benchmark, "write Google Benchmark's JSON")
      ->type_name("FILE");
  CLI::Option* benchmark = sub->add_option("--benchmark", options->benchmark,
                                           "a benchmark case: print the line to\nsubmit, of five "
                                           "repeats or more")
                               ->type_name("CASE");
  add_value(
      *sub, "--warm-up", options->warm_up,
      "steps of each attempt that count for no\nfigure; default: 5, or a quarter of fewer\nthan "
      "20",
      config::at_least(-1))
      ->default_str("")
      ->excludes(benchmark);
  sub->add_flag("--shared-cores", options->shared_cores,
                "do not call a run INVALID because its\nranks share cores");
  sub->footer(report_examples);
  sub->callback([options, &command] {
    check_benchmark(options->benchmark);
    check_files(*options);
    command.run = printing([options] { return write_report(*options); });
  });
}

}  // namespace trireme::cli
