#include "trireme/plan/step_chart.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "trireme/core/svg.hpp"

namespace trireme::plan {

namespace {

// Spans

/// Makes the spans of a row few enough to draw.
class Merger {
 public:
  explicit Merger(double least = 0) : least_(least) {}
  void add(std::string_view part, double begin, double end) {
    if (begin > last_) append("", last_, begin);
    append(part, begin, end);
  }
  std::vector<ChartSpan> take() {
    flush();
    return std::move(spans_);
  }

 private:
  void append(std::string_view part, double begin, double end) {
    last_ = end;
    if (end - begin >= least_) {
      flush();
      push(part, begin, end);
      return;
    }
    if (short_.empty()) first_ = begin;
    const auto known = std::ranges::find(
        short_, part, [](const auto& each) { return std::string_view(each.first); });
    if (known != short_.end()) {
      known->second += end - begin;
    } else {
      short_.emplace_back(part, end - begin);
    }
    if (end - first_ >= 4 * least_) flush();
  }
  void flush() {
    double at = first_;
    for (const auto& [part, seconds] : short_) {
      push(part, at, at + seconds);
      at += seconds;
    }
    short_.clear();
  }
  void push(std::string_view part, double begin, double end) {
    if (part.empty()) return;  // a gap
    // What follows at once differs by rounding alone.
    const bool follows =
        !spans_.empty() && spans_.back().part == part && begin - spans_.back().end < 1e-9 * least_;
    if (follows) {
      spans_.back().end = end;
    } else {
      spans_.push_back({std::string(part), begin, end});
    }
  }

  double least_;     // seconds of a span that is drawn by itself
  double last_ = 0;  // end of what came last
  double first_ = 0;
  std::vector<std::pair<std::string, double>> short_;  // since first_, by part; "": gaps
  std::vector<ChartSpan> spans_;
};

/// "tensor", "activations sent".
std::string channel_name(const Span& span) {
  std::string name(span.part);
  if (span.operation->channel.direction && !span.operation->planned.messages.empty()) {
    name += span.operation->planned.messages.front().send ? " sent" : " received";
  }
  return name;
}

// Drawing

constexpr int left = 250, top = 44, rank_height = 18, stream_height = 10, row_gap = 2, rank_gap = 8;
constexpr int swatch = 12, legend_line = 18;

struct Style {
  std::string_view part, name;
  const char* color;
  bool is_channel = true;
};
constexpr Style styles[] = {
    {"products", "products", "#4c78a8", false},
    {"attention", "attention", "#76b7b2", false},
    {"memory-bound operations", "memory-bound operations", "#9ecae9", false},
    {"optimizer", "optimizer", "#59a14f", false},
    {"launches", "launches of the host", "#bab0ac", false},
    {"tensor", "tensor ranks", "#e15759"},
    {"kv", "ranks that share heads", "#ff9da7"},
    {"context", "context ranks", "#b279a2"},
    {"data", "data ranks", "#7b4ea3"},
    {"shard", "shard ranks", "#b07aa1"},
    {"replica", "replica ranks", "#d4a6c8"},
    {"activations", "activations of stages", "#e08214"},
    {"gradients", "gradients of stages", "#b6992d"},
    {"pipeline", "pipeline ranks", "#f2c14e"},
    {"embedding", "tied gradients", "#9d7660"},
    {"memory", "copies of a stream", "#d7b5a6"},
    {"", "other groups", "#79706e"},  // any part that is not above
};

std::size_t style_of(std::string_view part) {
  const auto found = std::ranges::find(styles, part, &Style::part);
  return static_cast<std::size_t>(std::min(found, std::end(styles) - 1) - std::begin(styles));
}

std::string wait_fill(std::size_t style) { return fmt::format("url(#wait{})", style); }

/// A hatched ground for each style that is waited for.
std::string hatches() {
  std::string text = "<defs>\n";
  for (std::size_t i = 0; i < std::size(styles); ++i) {
    if (!styles[i].is_channel) continue;
    text += fmt::format(
        R"svg(<pattern id="wait{}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="5" height="5" fill="#ffffff"/><rect width="1.6" height="5" fill="{}"/></pattern>)svg"
        "\n",
        i, styles[i].color);
  }
  return text + "</defs>\n";
}

/// The row's spans, one path of strokes for each part.
std::string row_paths(const ChartRow& row, double y, int height, double scale) {
  struct Path {
    std::string steps;  // relative ones, which are short
    double end = 0;     // pixels
    double seconds = 0;
  };
  std::map<std::size_t, Path> paths;  // by style
  const auto pixel = [&](double seconds) { return std::round(seconds * scale * 100) / 100; };
  for (const ChartSpan& span : row.spans) {
    Path& path = paths[style_of(span.part)];
    path.seconds += span.end - span.begin;
    const double begin = pixel(span.begin), end = pixel(span.end);
    if (end - begin < 0.005) continue;
    path.steps += fmt::format("m{:.6g} 0h{:.6g}", begin - path.end, end - begin);
    path.end = end;
  }
  std::string text;
  for (const auto& [style, path] : paths) {
    const bool waits = row.name.empty() && styles[style].is_channel;
    text += fmt::format(
        R"(<path stroke="{}" stroke-width="{}" d="M{} {:g}{}"><title>{}{}: {:.6g} ms</title></path>)"
        "\n",
        waits ? wait_fill(style) : styles[style].color, height, left, y + height / 2.0, path.steps,
        waits ? "wait for " : "", styles[style].name, path.seconds * 1e3);
  }
  return text;
}

/// "rank 8", "stage 1, tensor 0".
std::pair<std::string, std::string> rank_labels(int rank, const comm::GridShape& shape) {
  std::string place;
  const auto at = shape.coordinates(rank);
  for (const auto& [axis, name] :
       {std::pair(comm::Axis::pipeline, "stage"), std::pair(comm::Axis::data, "data"),
        std::pair(comm::Axis::context, "context"), std::pair(comm::Axis::tensor, "tensor")}) {
    if (shape.of(axis) == 1) continue;
    place +=
        fmt::format("{}{} {}", place.empty() ? "" : ", ", name, at[static_cast<std::size_t>(axis)]);
  }
  return {fmt::format("rank {}", rank), place};
}

/// 1, 2 or 5 times a power of ten, of which at most ten are in `range`.
double tick_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 10)));
  for (const double times : {1, 2, 5}) {
    if (range <= 10 * times * power) return times * power;
  }
  return 10 * power;
}

std::string time_axis(double seconds, double scale, double bottom) {
  const double tick = tick_of(1e3 * seconds);
  std::string text;
  for (int i = 0; i * tick <= 1e3 * seconds; ++i) {
    const double x = left + i * tick / 1e3 * scale;
    text += fmt::format(R"(<path stroke="#cccccc" stroke-width="0.5" d="M{:.2f} {}V{:g}"/>)"
                        "\n",
                        x, top - 4, bottom);
    text += svg::text(x, bottom + 13, "middle", fmt::format("{:g}", i * tick));
  }
  return text + svg::text(left - 8, bottom + 13, "end", "ms");
}

/// Entries of the parts that are drawn, from `y` on, which becomes its end.
std::string legend(const StepChart& chart, double width, double& y) {
  std::set<std::size_t> used;
  bool waits = false;
  for (const ChartRow& row : chart.rows) {
    for (const ChartSpan& span : row.spans) {
      used.insert(style_of(span.part));
      waits = waits || (row.name.empty() && styles[style_of(span.part)].is_channel);
    }
  }
  std::string text;
  double x = left;
  const auto add = [&](const std::string& fill, std::string_view name) {
    const double taken = swatch + 24 + 6.2 * static_cast<double>(name.size());
    if (x > left && x + taken > width) x = left, y += legend_line;
    text += svg::rectangle(x, y, swatch, swatch, fill);
    text += svg::text(x + swatch + 6, y + 10, "start", std::string(name));
    x += taken;
  };
  for (const std::size_t style : used) add(styles[style].color, styles[style].name);
  if (waits) add(wait_fill(std::size(styles) - 1), "hatched: the rank waits for them");
  y += legend_line;
  return text;
}

}  // namespace

StepChart chart_step(const comm::GridShape& shape, const std::vector<RankClass>& classes,
                     const ClassOf& class_of, const Machine& machine, double seconds,
                     const std::vector<int>& ranks, int pixels) {
  struct Lane {
    Merger spans;
    std::set<std::string> names;
  };
  // By class, and stream; the rank itself is before its streams, and the host's stream after them.
  std::map<std::pair<std::size_t, int>, Lane> lanes;
  constexpr int computes = -1, hosts = std::numeric_limits<int>::max();
  std::set<std::size_t> drawn;
  for (const int rank : ranks) drawn.insert(class_of(rank));
  const double least = seconds / pixels / 2;
  simulate(shape, classes, class_of, machine, [&](const Span& span) {
    if (!drawn.contains(span.of)) return;
    const StreamOperation* operation = span.operation;
    const int stream = operation == nullptr  ? computes
                       : operation->blocking ? hosts
                                             : operation->stream;
    Lane& lane = lanes.try_emplace({span.of, stream}, Lane{Merger(least), {}}).first->second;
    if (operation != nullptr) lane.names.insert(channel_name(span));
    lane.spans.add(span.part, span.begin, span.end);
  });
  std::map<std::size_t, std::vector<ChartRow>> rows;
  for (auto& [key, lane] : lanes) {
    std::string name;
    for (const std::string& each : lane.names) name += (name.empty() ? "" : ", ") + each;
    rows[key.first].push_back({.name = std::move(name), .spans = lane.spans.take()});
  }
  StepChart chart{.seconds = seconds};
  for (const int rank : ranks) {
    for (ChartRow row : rows[class_of(rank)]) {
      row.rank = rank;
      chart.rows.push_back(std::move(row));
    }
  }
  return chart;
}

std::string svg_chart(const StepChart& chart, const comm::GridShape& shape,
                      const std::string& title, const std::string& note, int pixels) {
  const double width = left + pixels + 20, scale = pixels / chart.seconds;
  std::string rows;
  double y = top;
  for (const ChartRow& row : chart.rows) {
    const bool computes = row.name.empty();
    const int height = computes ? rank_height : stream_height;
    if (computes && y > top) y += rank_gap;
    rows += svg::rectangle(left, y, pixels, height, "#f2f2f2");
    if (computes) {
      const auto [name, place] = rank_labels(row.rank, shape);
      rows += svg::text(8, y + 12, "start", name);
      rows += svg::text(left - 8, y + 12, "end", "computes");
      rows += svg::text(8, y + 12 + rank_height, "start", place);
    } else {
      rows += svg::text(left - 8, y + 9, "end", row.name);
    }
    rows += row_paths(row, y, height, scale);
    y += height + row_gap;
  }
  const double bottom = y + 4;
  y = bottom + 24;
  const std::string key = legend(chart, width, y);
  return svg::begin(width, y + 6) + hatches() + svg::text(8, 16, "start", title) +
         svg::text(8, 31, "start", note) + time_axis(chart.seconds, scale, bottom) + rows + key +
         "</svg>\n";
}

}  // namespace trireme::plan
