// Pictures of runs, drawn by gnuplot as SVG.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/report/scaling.hpp"

namespace trireme::report {

/// What gnuplot is to draw. Text in scripts is quoted, never interpreted.
struct Plot {
  std::string title, caption;
  int width = 720, height = 400;  // pixels
  std::string script;             // gnuplot's, after the terminal is set
};

Plot plot_scaling_speed(const std::vector<ScalingLine>& lines, ScalingKind kind);
Plot plot_efficiency(const std::vector<ScalingLine>& lines, ScalingKind kind);
/// Loss against step of every run, and validation loss as points.
Plot plot_losses(const std::vector<const Run*>& runs);
/// Seconds per step of sections: average, with least and greatest of a rank.
Plot plot_sections(const Run& run);
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

}  // namespace trireme::report
