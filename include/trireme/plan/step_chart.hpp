// A predicted step on a time line: what chosen ranks and their streams do.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/step_simulation.hpp"

namespace trireme::plan {

struct ChartSpan {
  std::string part;  // as Span has it
  double begin = 0, end = 0;
};

struct ChartRow {
  int rank = 0;
  std::string name;              // of a stream: its channels; empty: what the rank computes
  std::vector<ChartSpan> spans;  // in the order of time; none overlap
};

struct StepChart {
  double seconds = 0;          // of the step
  std::vector<ChartRow> rows;  // of each rank: what it computes and waits for, then its streams
};

/// Simulates the step, of `seconds`, and keeps what a picture of `pixels` shows of `ranks`. Spans
/// and gaps narrower than half a pixel are collected over two pixels, and become one span for each
/// part, so the sums of the parts stay. Throws Error as simulate does.
StepChart chart_step(const comm::GridShape& shape, const std::vector<RankClass>& classes,
                     const ClassOf& class_of, const Machine& machine, double seconds,
                     const std::vector<int>& ranks, int pixels);

/// As SVG. Waits are hatched in the color of what is waited for.
std::string svg_chart(const StepChart& chart, const comm::GridShape& shape,
                      const std::string& title, const std::string& note, int pixels);

}  // namespace trireme::plan
