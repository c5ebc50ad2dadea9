// A simulated schedule drawn: as text and as SVG.
#pragma once

#include <string>

#include "trireme/schedule/simulate.hpp"

namespace trireme::schedule {

/// One line per stage, one cell per `cell` units of time: the shortest compute's time, a small
/// fraction of it where the others are not multiples of it, or longer where more than `most_cells`
/// cells would result. A compute that spans several cells is drawn on with dashes, idle cells are
/// dots. Labels are "F0", or "2F0" (virtual stage first) where there are chunks.
struct TextChart {
  std::string text;
  double cell = 1;
};
TextChart text_chart(const Schedule& schedule, const Timeline& timeline, int most_cells = 400);

/// A self-contained SVG image: one row per stage, time to the right, a color per kind (paler for
/// later chunks), micro-batch numbers, a legend.
std::string svg_chart(const Schedule& schedule, const Timeline& timeline);

}  // namespace trireme::schedule
