// A report in its four forms, with the same content.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/report/diagnosis.hpp"
#include "trireme/report/scaling.hpp"

namespace trireme::report {

/// Not to be copied: figures and lines point into `runs`.
struct Report {
  std::vector<Run> runs;  // all, in the order given
  ReadOptions options;
  std::vector<Measured> measured;  // the valid ones
  std::vector<ScalingLine> lines;
  std::vector<std::vector<Finding>> findings;  // by valid run
};

/// Reads the runs below `paths` and works everything out. Throws Error for a path without a run.
Report make_report(const std::vector<std::string>& paths, const ReadOptions& options);

/// "1.234 [1.200, 1.260] n 45", "1.234 (1.2 to 1.3) n 3": an interval of the median, or the least
/// and the greatest of too few values.
std::string estimate_text(const Estimate& estimate, double scale = 1);

/// Warm-up, medians, intervals: the paragraph of every form that explains its figures.
std::string method_text(const Report& report);
/// Where valid runs are of several fingerprints: in which keys they differ, one line each.
std::vector<std::string> comparison_notes(const Report& report);

/// For a terminal.
std::string report_text(const Report& report);
/// One row per run, INVALID ones too, with their reason and no figure.
std::string report_csv(const Report& report);
nlohmann::json report_json(const Report& report);
/// Google Benchmark's JSON: "context" and "benchmarks", one per valid run, with repetitions as
/// iterations and the median as its time; INVALID runs with "error_occurred".
nlohmann::json benchmark_json(const Report& report);
/// One page without references to anything outside it. Throws Error where gnuplot is missing or
/// fails.
std::string report_html(const Report& report);

}  // namespace trireme::report
