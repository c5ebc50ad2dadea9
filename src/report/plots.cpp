#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "trireme/core/error.hpp"
#include "trireme/report/page.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

// Okabe and Ito (2008): distinct for color-blind readers too.
constexpr std::array<const char*, 7> colors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                               "#e69f00", "#56b4e9", "#444444"};
const char* color(std::size_t i) { return colors[i % colors.size()]; }

/// Tics at few round values over those of `lines`: "20k".
std::string speed_axis(const std::vector<ScalingLine>& lines, ScalingKind kind) {
  double low = HUGE_VAL, high = 0;
  for (const ScalingLine& line : lines) {
    if (line.kind != kind) continue;
    const ScalingPoint &first = line.points.front(), &last = line.points.back();
    high = std::max(high, first.tokens_per_second.median / first.ranks * last.ranks);
    for (const Prediction& each : line.predicted.points) {
      low = std::min({low, each.tokens_per_second, each.high > 0 ? each.low : HUGE_VAL});
      high = std::max({high, each.tokens_per_second, each.high});
    }
    for (const ScalingPoint& point : line.points) {
      low = std::min(low, point.tokens_per_second.low);
      high = std::max(high, point.tokens_per_second.high);
    }
  }
  const std::vector<double> marks = high > 300 * low ? std::vector<double>{1}
                                    : high > 6 * low
                                        ? std::vector<double>{1, 2, 5}
                                        : std::vector<double>{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8};
  // Reading refuses such speeds; a scale without end must not come of one all the same.
  if (!(low > 0) || !std::isfinite(high)) return "set logscale y 10\n";
  std::string tics;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  for (int decade = first; decade <= std::log10(high); ++decade) {
    const double power = std::pow(10, decade);
    for (const double times : marks) {
      const double value = times * power;
      const double scale = value >= 1e6 ? 1e6 : value >= 1e3 ? 1e3 : 1;
      tics += fmt::format("{}'{:.4g}{}' {:.6g}", tics.empty() ? "" : ", ", value / scale,
                          scale == 1e6   ? "M"
                          : scale == 1e3 ? "k"
                                         : "",
                          value);
    }
  }
  return fmt::format("set logscale y 10\nset ytics ({})\nset yrange [{:.6g}:{:.6g}]\n", tics,
                     low * 0.85, high * 1.15);
}

/// The key below the picture, one entry per line, with a margin for it.
constexpr int key_line = 20;
constexpr const char* key_below =
    "set key bmargin left vertical maxcols 1 reverse Left samplen 2 width 1\n";

/// A named block of data of the script.
std::string block(const std::string& name, const std::string& rows) {
  return fmt::format("${} << EOD\n{}EOD\n", name, rows);
}

/// Tics at `ranks` and nowhere else, on a scale that doubles.
std::string rank_axis(const std::vector<ScalingLine>& lines, ScalingKind kind, bool predicted) {
  std::set<int> ranks;
  for (const ScalingLine& line : lines) {
    if (line.kind != kind) continue;
    for (const ScalingPoint& point : line.points) ranks.insert(point.ranks);
    for (const Prediction& each : line.predicted.points) {
      if (predicted) ranks.insert(each.ranks);
    }
  }
  std::string tics;
  for (const int each : ranks) tics += fmt::format("{}{}", tics.empty() ? "" : ", ", each);
  return fmt::format(
      "set xlabel \"ranks\\n \"\nset logscale x 2\nset xtics ({})\nset xrange [{}:{}]\n", tics,
      *ranks.begin() * 0.9, *ranks.rbegin() * 1.1);
}

std::string rows_of(const ScalingLine& line, Estimate ScalingPoint::*value, double scale) {
  std::string rows;
  for (const ScalingPoint& point : line.points) {
    const Estimate& own = point.*value;
    rows += fmt::format("{} {:.9g} {:.9g} {:.9g}\n", point.ranks, scale * own.median,
                        scale * own.low, scale * own.high);
  }
  return rows;
}

/// A line's predicted curve and its band, numbered as the line is.
struct PredictedCurve {
  std::string data, draws;
};
PredictedCurve predicted_curve(const ScalingLine& line, std::size_t number) {
  if (line.predicted.points.empty()) return {};
  const std::string name = fmt::format("predicted{}", number);
  std::string rows;
  for (const Prediction& each : line.predicted.points) {
    rows += fmt::format("{} {:.9g} {:.9g} {:.9g}\n", each.ranks, each.tokens_per_second, each.low,
                        each.high);
  }
  PredictedCurve curve{.data = block(name, rows)};
  if (std::ranges::all_of(line.predicted.points, [](const auto& each) { return each.high > 0; })) {
    curve.draws = fmt::format(
        "${} using 1:3:4 with filledcurves fs transparent solid 0.15 noborder lc rgb '{}' "
        "notitle, ",
        name, color(number));
  }
  curve.draws += fmt::format(
      "${} using 1:2 with linespoints dt 3 pt 6 ps 0.5 lw 1.4 lc rgb '{}' title {}, ", name,
      color(number), gnuplot_text(line.label + ", predicted by " + line.predicted.machine));
  return curve;
}

struct Bar {
  std::string name;
  std::array<double, 2> value{};  // the second is drawn where there are two
  double low = 0, high = 0;       // whisker of the first, where they differ
};

/// Horizontal bars from the top down.
std::string bars(const std::vector<Bar>& rows, const std::vector<std::string>& series,
                 const std::string& axis) {
  std::string script, tics;
  const double half = series.size() == 1 ? 0.32 : 0.2;
  for (std::size_t s = 0; s < series.size(); ++s) {
    std::string data;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const double y = static_cast<double>(i) + (series.size() == 1 ? 0 : (s == 0 ? -half : half));
      data += fmt::format("{:.9g} {:.3f} {:.3f} {:.9g} {:.9g} {:.3f}\n", rows[i].value.at(s),
                          y - half, y + half, rows[i].low, rows[i].high, y);
    }
    script += block(fmt::format("series{}", s), data);
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    tics += fmt::format("{}{} {}", i == 0 ? "" : ", ", gnuplot_text(rows[i].name), i);
  }
  script += fmt::format(
      "set ytics scale 0 ({})\nset yrange [{}:-0.6] noreverse\nset xrange [0:*]\nset grid noytics "
      "xtics\n"
      "set xlabel \"{}\\n \"\nset style fill solid 1.0 noborder\n{}",
      tics, static_cast<double>(rows.size()) - 0.4, axis,
      series.size() > 1 ? "set key outside bottom center horizontal reverse Left samplen 2\n"
                        : "set key off\n");
  script += "plot ";
  for (std::size_t s = 0; s < series.size(); ++s) {
    script +=
        fmt::format("{}$series{} using 1:6:(0):1:2:3 with boxxyerror lc rgb '{}' title {}",
                    s == 0 ? "" : ", ", s, s == 0 ? "#56b4e9" : "#e69f00", gnuplot_text(series[s]));
  }
  if (series.size() == 1) {
    script +=
        ", $series0 using 1:6:4:5 with xerrorbars pt 7 ps 0.3 lw 1.2 lc rgb '#222222' notitle";
  }
  return script + "\n";
}

int height_of(const std::vector<Bar>& rows, int each) {
  return 100 + each * static_cast<int>(std::max<std::size_t>(rows.size(), 2));
}

std::vector<Bar> memory_bars(const Run& run) {
  std::vector<Bar> rows;
  const std::string file = (run.attempt().folder / "summary.json").string();
  if (!run.attempt().summary.is_object()) return rows;
  for (const auto& [use, bytes] : object_at(run.attempt().summary, "memory", file).items()) {
    rows.push_back({.name = use,
                    .value = {number_at(bytes, "predicted", file) / (1 << 20),
                              number_at(bytes, "measured", file) / (1 << 20)}});
  }
  return rows;
}

}  // namespace

Plot plot_scaling(const std::vector<ScalingLine>& lines, ScalingKind kind, bool efficiency) {
  Plot plot;
  const char* word = kind == ScalingKind::strong ? "Strong" : "Weak";
  plot.title = fmt::format("{} scaling: {}", word, efficiency ? "efficiency" : "speed");
  std::string data, draws, predicted;
  std::size_t count = 0, curves = 0;
  double ideal = 0;  // tokens/s of a rank
  for (const ScalingLine& line : lines) {
    if (line.kind != kind) continue;
    const std::string name = fmt::format("line{}", count);
    data += block(name, efficiency ? rows_of(line, &ScalingPoint::efficiency, 100)
                                   : rows_of(line, &ScalingPoint::tokens_per_second, 1));
    if (const PredictedCurve curve = predicted_curve(line, count);
        !efficiency && !curve.data.empty()) {
      data += curve.data;
      predicted += curve.draws;
      ++curves;
    }
    const ScalingPoint& first = line.points.front();
    ideal = std::max(ideal, first.tokens_per_second.median / first.ranks / first.efficiency.median);
    const bool study = first.name() != first.layout;
    draws +=
        fmt::format("${} using 1:2:3:4 with yerrorlines pt {} ps 0.7 lw 1.8 lc rgb '{}' title {}, ",
                    name, 5 + 2 * (count % 5), color(count),
                    gnuplot_text(line.label + (study ? "" : " [" + line.fingerprint + "]")));
    ++count;
  }
  plot.script = data + rank_axis(lines, kind, !efficiency) + key_below;
  if (efficiency) {
    plot.script +=
        "set ylabel 'efficiency, %'\nset yrange [0:*]\nset offsets graph 0, 0, 0.06, 0\n";
    draws += "100 with lines dt 2 lw 1 lc rgb '#888888' title 'ideal'";
  } else {
    plot.script += "set ylabel 'tokens/s'\n" + speed_axis(lines, kind);
    draws += fmt::format("{:.9g} * x with lines dt 2 lw 1 lc rgb '#888888' title 'ideal'", ideal);
  }
  plot.script += "plot " + predicted + draws + "\n";
  plot.height = 340 + key_line * static_cast<int>(count + curves + 1);
  plot.caption =
      "Points: medians; bars: 95 % intervals where six values or more make one, else least and "
      "greatest (see the table).";
  if (curves > 0) {
    plot.caption +=
        " Dotted: predicted; band: times the least and the greatest of measured / predicted.";
  }
  return plot;
}

Plot plot_losses(const std::vector<NamedRun>& runs) {
  constexpr std::size_t most_named = 14, most_points = 1000;
  Plot plot{.title = "Loss"};
  std::string draws;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& [name, of] = runs[i];
    const Run& run = *of;
    const std::size_t every = run.steps.size() / most_points + 1;
    std::string rows, points;
    for (std::size_t s = 0; s < run.steps.size(); ++s) {
      if (s % every != 0 && s + 1 != run.steps.size()) continue;
      if (!std::isfinite(run.steps[s].loss)) continue;
      rows += fmt::format("{} {:.7g}\n", run.steps[s].step, run.steps[s].loss);
    }
    for (const RecordedEvaluation& each : run.evaluations) {
      if (std::isfinite(each.loss)) points += fmt::format("{} {:.7g}\n", each.step, each.loss);
    }
    if (rows.empty()) continue;
    plot.script += block(fmt::format("run{}", i), rows);
    const bool named = i < most_named;
    draws += fmt::format("{}$run{} using 1:2 with lines lw 1.5 lc rgb '{}' {}",
                         draws.empty() ? "" : ", ", i, color(i),
                         named ? "title " + gnuplot_text(name) : "notitle");
    if (points.empty()) continue;
    plot.script += block(fmt::format("valid{}", i), points);
    draws += fmt::format(", $valid{} using 1:2 with points pt 6 ps 0.8 lw 1.5 lc rgb '{}' notitle",
                         i, color(i));
  }
  if (draws.empty()) return plot;
  plot.script += fmt::format(
      "{}set xlabel \"step\\n \"\nset ylabel 'loss, nats per token'\nplot {}\n", key_below, draws);
  plot.height = 330 + key_line * static_cast<int>(std::min(runs.size(), most_named));
  plot.caption = "Lines: training loss of the global batch. Circles: validation.";
  return plot;
}

Plot plot_sections(const Run& run) {
  const auto steps = static_cast<double>(std::max<std::size_t>(1, run.attempt().steps.size()));
  std::set<std::string> names;
  for (const RankAccount& rank : run.ranks) {
    for (const auto& [name, seconds] : rank.sections) names.insert(name);
  }
  for (const char* outside : {"checkpoint", "evaluate", "forward of evaluation", "measure peak"}) {
    names.erase(outside);
  }
  std::vector<Bar> rows;
  for (const std::string& name : names) {
    Bar bar{.name = name, .low = HUGE_VAL};
    for (const RankAccount& rank : run.ranks) {
      const auto found = rank.sections.find(name);
      const double ms = found == rank.sections.end() ? 0 : 1e3 * found->second / steps;
      bar.value[0] += ms / static_cast<double>(run.ranks.size());
      bar.low = std::min(bar.low, ms);
      bar.high = std::max(bar.high, ms);
    }
    rows.push_back(std::move(bar));
  }
  std::sort(rows.begin(), rows.end(), [](const Bar& a, const Bar& b) { return a.value > b.value; });
  if (rows.size() > 12) rows.resize(12);
  Plot plot{.title = "Time by section"};
  if (rows.empty()) return plot;
  plot.height = height_of(rows, 26);
  plot.script = bars(rows, {"average"}, "ms of a step");
  plot.caption = fmt::format(
      "Bars: average over {} ranks; whiskers: least and greatest of a rank. Sums over all {} steps "
      "of "
      "the attempt, warm-up too. Sections nest: waits count in the sections around them too.",
      run.ranks.size(), run.attempt().steps.size());
  return plot;
}

Plot plot_communication(const Run& run) {
  std::vector<Bar> rows;
  for (const auto& [name, volume] : mean_volumes(run)) {
    const std::array<double, 2> megabytes{volume.bytes / 1e6, volume.least / 1e6};
    if (name == "world" || megabytes[0] + megabytes[1] <= 1e-3) continue;
    rows.push_back({.name = name, .value = megabytes});
  }
  Plot plot{.title = "Communication by axis"};
  if (rows.empty()) return plot;
  plot.height = height_of(rows, 40);
  plot.script = bars(rows, {"sent", "least possible"}, "MB per step and rank");
  plot.caption = fmt::format(
      "Means over {} ranks and {} steps; agreements on a few numbers (under 1 kB) are left out.",
      run.ranks.size(), run.attempt().steps.size());
  return plot;
}

Plot plot_memory_totals(const std::vector<NamedRun>& runs) {
  std::vector<Bar> rows;
  for (const auto& [name, run] : runs) {
    Bar total{.name = name};
    for (const Bar& use : memory_bars(*run)) {
      for (std::size_t i = 0; i < 2; ++i) total.value.at(i) += use.value.at(i);
    }
    if (total.value[1] > 0) rows.push_back(std::move(total));
  }
  Plot plot{.title = "Memory"};
  if (rows.empty()) return plot;
  plot.height = height_of(rows, 30);
  plot.script = bars(rows, {"predicted", "measured"}, "MiB");
  plot.caption = "Sums over uses, each of the rank that has most of it.";
  return plot;
}

Plot plot_step_times(const std::vector<NamedRun>& runs, const ReadOptions& options) {
  std::vector<Bar> rows;
  for (const auto& [name, run] : runs) {
    const Estimate seconds = figures_of(*run, options).seconds;
    if (seconds.n == 0) continue;
    rows.push_back({.name = name,
                    .value = {1e3 * seconds.median},
                    .low = 1e3 * seconds.low,
                    .high = 1e3 * seconds.high});
  }
  Plot plot{.title = "Step time"};
  if (rows.empty()) return plot;
  plot.height = height_of(rows, 30);
  plot.script = bars(rows, {"median"}, "ms");
  plot.caption = "Whiskers: 95 % interval, or least and greatest of fewer than six steps.";
  return plot;
}

Plot plot_time_shares(const std::vector<NamedRun>& runs) {
  std::array<std::string, time_groups.size()> data;
  std::string tics;
  std::size_t rows = 0;
  for (const auto& [name, run] : runs) {
    if (run->time.rows.empty()) continue;
    double begin = 0;
    for (std::size_t g = 0; g < time_groups.size(); ++g) {
      const double end = begin + 100 * std::max(0.0, share_of(run->time, time_groups.at(g)));
      data.at(g) +=
          fmt::format("{:.4g} {:.4g} {} {} {}\n", begin, end, static_cast<double>(rows) - 0.36,
                      static_cast<double>(rows) + 0.36, rows);
      begin = end;
    }
    tics += fmt::format("{}{} {}", rows == 0 ? "" : ", ", gnuplot_text(name), rows);
    ++rows;
  }
  Plot plot{.title = "Where time went"};
  if (rows == 0) return plot;
  std::string draws;
  for (std::size_t g = 0; g < time_groups.size(); ++g) {
    plot.script += block(fmt::format("group{}", g), data.at(g));
    draws += fmt::format("{}$group{} using 2:5:1:2:3:4 with boxxyerror lc rgb '{}' title {}",
                         g == 0 ? "" : ", ", g, color(g), gnuplot_text(time_groups.at(g)));
  }
  plot.script += fmt::format(
      "set ytics scale 0 ({})\nset yrange [{}:-0.6] noreverse\nset xrange [0:100]\n"
      "set xlabel \"% of the run\\n \"\nset style fill solid 1.0 noborder\n"
      "set key outside bottom center horizontal reverse Left samplen 2\nplot {}\n",
      tics, static_cast<double>(rows) - 0.4, draws);
  plot.height = 130 + 26 * static_cast<int>(std::max<std::size_t>(rows, 2));
  plot.caption = "Means over ranks, of the whole attempt. docs/timing.md defines the groups.";
  return plot;
}

Plot plot_memory(const Run& run) {
  std::vector<Bar> rows = memory_bars(run);
  std::sort(rows.begin(), rows.end(), [](const Bar& a, const Bar& b) { return a.value > b.value; });
  Plot plot{.title = "Memory"};
  if (rows.empty()) return plot;
  plot.height = height_of(rows, 36);
  plot.script = bars(rows, {"predicted", "measured"}, "MiB, the most of any rank");
  return plot;
}

}  // namespace trireme::report
