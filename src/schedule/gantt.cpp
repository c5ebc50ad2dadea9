#include <algorithm>
#include <array>
#include <cmath>

#include "trireme/core/svg.hpp"
#include "trireme/schedule/simulate.hpp"

namespace trireme::schedule {

namespace {

std::string label(const Schedule& schedule, int stage, const Action& action) {
  if (schedule.chunks > 1) return to_string(schedule, stage, action);
  return fmt::format("{}{}", letter(action.kind), action.micro_batch);
}

/// `row` with `text` from `column` on, cut at `end`.
void put(std::string& row, std::size_t column, std::size_t end, const std::string& text) {
  for (std::size_t i = 0; i < text.size() && column + i < end; ++i) row[column + i] = text[i];
}

/// The largest of s, s/2, … s/8 of which all computes' times are multiples, s being the shortest;
/// s where there is none; longer where more than `most_cells` would result.
double cell_time(const Timeline& timeline, int most_cells) {
  std::vector<double> times;
  for (const auto& spans : timeline.spans) {
    for (const Span& span : spans)
      if (span.end > span.start) times.push_back(span.end - span.start);
  }
  if (times.empty()) return 1;
  const double shortest = *std::min_element(times.begin(), times.end());
  double cell = shortest;
  for (int part = 8; part >= 1; --part) {
    const auto multiple = [&](double time) {
      const double cells = time * part / shortest;
      return std::abs(cells - std::round(cells)) < 1e-6 * cells;
    };
    if (std::all_of(times.begin(), times.end(), multiple)) cell = shortest / part;
  }
  return std::max(cell, timeline.total / std::max(1, most_cells));
}

constexpr int left = 70, top = 40, row_height = 26, row_gap = 4, legend_height = 34;

struct Style {
  const char* name;
  const char* color;
};

constexpr std::array<Style, 4> styles{{{"forward", "#4c78a8"},
                                       {"backward", "#e08214"},
                                       {"backward for inputs", "#f2a93b"},
                                       {"backward for weights", "#59a14f"}}};
const Style& style_of(Kind kind) { return styles.at(static_cast<std::size_t>(kind)); }

std::string stage_row(const Schedule& schedule, const std::vector<Span>& spans, int stage,
                      double scale) {
  const double y = top + stage * (row_height + row_gap);
  std::string text =
      svg::text(left - 8, y + row_height * 0.65, "end", fmt::format("stage {}", stage));
  for (const Span& span : spans) {
    const double x = left + span.start * scale;
    const double width = (span.end - span.start) * scale;
    if (width <= 0) continue;
    const double opacity = 1.0 - 0.6 * span.action.chunk / std::max(1, schedule.chunks);
    text += svg::rectangle(x, y, width, row_height, style_of(span.action.kind).color, opacity);
    const std::string number = std::to_string(span.action.micro_batch);
    if (width >= 7.0 * static_cast<double>(number.size()))  // a digit's width, 11 pixels high
      text += svg::text(x + width / 2, y + row_height * 0.65, "middle", number);
  }
  return text;
}

std::string legend(const Schedule& schedule, double y) {
  std::string text;
  double x = left;
  for (const Kind kind : kinds) {
    const bool used = std::any_of(
        schedule.actions.begin(), schedule.actions.end(), [&](const std::vector<Action>& actions) {
          return std::any_of(actions.begin(), actions.end(),
                             [&](const Action& action) { return action.kind == kind; });
        });
    if (!used) continue;
    const Style& style = style_of(kind);
    text += svg::rectangle(x, y, 14, 14, style.color);
    text += svg::text(x + 20, y + 11, "start", style.name);
    x += 150;
  }
  if (schedule.chunks > 1) text += svg::text(x, y + 11, "start", "paler: later chunks");
  return text;
}

}  // namespace

TextChart text_chart(const Schedule& schedule, const Timeline& timeline, int most_cells) {
  TextChart chart;
  chart.cell = cell_time(timeline, most_cells);
  std::size_t width = 1;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (const Action& action : schedule.actions[static_cast<std::size_t>(stage)])
      width = std::max(width, label(schedule, stage, action).size());
  }
  ++width;  // a blank between cells
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::lround(time / chart.cell)) * width;
  };
  const std::size_t cells = column(timeline.total) / width;
  const std::size_t digits = std::to_string(schedule.stages - 1).size();
  for (int stage = 0; stage < schedule.stages; ++stage) {
    std::string row;
    for (std::size_t cell = 0; cell < cells; ++cell) row += "." + std::string(width - 1, ' ');
    for (const Span& span : timeline.spans[static_cast<std::size_t>(stage)]) {
      const std::size_t begin = column(span.start), end = column(span.end);
      if (end == begin) continue;  // shorter than half a cell
      put(row, begin, end - 1, std::string(end - begin - 1, '-'));
      put(row, begin, begin + width - 1, std::string(width - 1, end - begin > width ? '-' : ' '));
      put(row, begin, end - 1, label(schedule, stage, span.action));
    }
    row.erase(row.find_last_not_of(' ') + 1);
    chart.text += fmt::format("stage {:>{}} | {}\n", stage, digits, row);
  }
  return chart;
}

std::string svg_chart(const Schedule& schedule, const Timeline& timeline) {
  const double cell = cell_time(timeline, 2000);
  const double scale = 22.0 / cell;  // pixels per unit of time: two digits fit a cell
  const double width = std::max(left + timeline.total * scale + 20, 560.0);
  const double bottom = top + schedule.stages * (row_height + row_gap);
  std::string text = svg::begin(width, bottom + legend_height);
  text += svg::text(left, 16, "start",
                    fmt::format("{}: {} stages, {} micro-batches{}", schedule.name, schedule.stages,
                                schedule.micro_batches,
                                schedule.chunks > 1
                                    ? fmt::format(", {} virtual stages per stage", schedule.chunks)
                                    : std::string()));
  text += svg::text(left, 31, "start",
                    fmt::format("total {:.6g}, bubble {:.4g} of the ideal time", timeline.total,
                                timeline.bubble));
  for (int stage = 0; stage < schedule.stages; ++stage) {
    text += svg::rectangle(left, top + stage * (row_height + row_gap), timeline.total * scale,
                           row_height, "#eeeeee");
    text += stage_row(schedule, timeline.spans[static_cast<std::size_t>(stage)], stage, scale);
  }
  return text + legend(schedule, bottom + 6) + "</svg>\n";
}

}  // namespace trireme::schedule
