// A report: where runs lose speed, pictures, and four forms with the same content.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/report/scaling.hpp"

namespace trireme::report {

/// The findings of a valid run whose record has what they need (format 2; sections time the host,
/// so on a device that is not the host only those of the loader, checkpoints and steadiness are
/// looked for). Rules and thresholds: docs/reports.md. Largest share first.
std::vector<Finding> diagnose(const Run& run, const ReadOptions& options);

/// Not to be copied: figures and lines point into `runs`.
struct Report {
  std::vector<Run> runs;  // all, in the order given
  ReadOptions options;
  std::vector<Measured> measured;  // the valid ones
  std::vector<ScalingLine> lines;
};

/// Sets the labels of runs that are points of a scaling study, from its index.json.
void set_labels(std::vector<Run>& runs);
/// Sets the predictions of lines that are layouts of a scaling study, from its index.json.
void set_predictions(std::vector<ScalingLine>& lines);

/// Reads the runs below `paths` and works everything out. Throws Error for a path without a run.
Report make_report(const std::vector<std::string>& paths, const ReadOptions& options);

// Pictures, drawn by gnuplot as SVG.

/// What gnuplot is to draw. Text in scripts is quoted, never interpreted.
struct Plot {
  std::string title, caption;
  int width = 720, height = 400;  // pixels
  std::string script;             // gnuplot's, after the terminal is set
};

/// Tokens per second, or efficiency, against ranks.
Plot plot_scaling(const std::vector<ScalingLine>& lines, ScalingKind kind, bool efficiency);
/// Seconds per step of sections: average, with least and greatest of a rank.
Plot plot_sections(const Run& run);
/// A run and what it is called in a picture.
using NamedRun = std::pair<std::string, const Run*>;
/// Loss against step of each run, and validation loss as points.
Plot plot_losses(const std::vector<NamedRun>& runs);
/// Memory of each run, summed over uses, predicted and measured.
Plot plot_memory_totals(const std::vector<NamedRun>& runs);
/// Median step time of each run, with its interval.
Plot plot_step_times(const std::vector<NamedRun>& runs, const ReadOptions& options);
/// Shares of each run's time by group, stacked.
Plot plot_time_shares(const std::vector<NamedRun>& runs);
/// Bytes sent per step and rank on each axis beside the least possible.
Plot plot_communication(const Run& run);
/// Predicted and measured, by use.
Plot plot_memory(const Run& run);
/// One step, the middle one of those in trace.json after warm-up, a row per rank. None where there
/// is no trace. Throws Error where it is damaged.
std::optional<Plot> plot_trace(const Run& run, const ReadOptions& options);

/// SVG elements of all plots, in order, without XML declaration, with unique ids, so that
/// one page can hold them. One process of gnuplot draws all. Throws Error where there is no
/// gnuplot, or where it fails.
std::vector<std::string> draw(const std::vector<Plot>& plots);

/// "1.234 [1.200, 1.260] n 45", "1.234 (1.2 to 1.3) n 3": an interval of the median, or the least
/// and the greatest of too few values.
std::string estimate_text(const Estimate& estimate, double scale = 1);

/// The same for JSON; null where n is 0.
nlohmann::json estimate_json(const Estimate& estimate);

/// A line's prediction on so many ranks: tokens/s, by how much the measured speed differs from it,
/// and its band; "-" where there is none.
std::vector<std::string> prediction_cells(const ScalingLine& line, int ranks);

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
nlohmann::json google_benchmark_json(const Report& report);
/// What differs between the valid and incomplete runs of a report, which are two at least:
/// settings, versions and machine; then speed, memory and loss, with intervals. Throws Error for
/// fewer runs.
std::string compare_text(const Report& report);
nlohmann::json compare_json(const Report& report);
/// The same as one page, with pictures. Throws Error where gnuplot is missing or fails.
std::string compare_html(const Report& report);

/// One page without references to anything outside it. Throws Error where gnuplot is missing or
/// fails.
std::string report_html(const Report& report);

}  // namespace trireme::report
