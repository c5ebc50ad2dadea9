// One step as the ranks went through it, from trace.json.
#include <algorithm>
#include <cmath>
#include <map>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/report/page.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t largest_trace = std::int64_t{1} << 30;
constexpr std::size_t most_rows = 32;
constexpr const char* begins_a_step = "load data";

struct TraceSpan {
  std::string name;
  int stream = 0;
  double begin = 0, end = 0;  // microseconds
};
using TraceByRank = std::map<int, std::vector<TraceSpan>>;

struct Kind {
  const char* name;
  const char* color;
  std::vector<const char*> sections;
};
/// In drawing order: waits are inside the spans that wait.
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"forward", "#4c78a8", {"forward"}},
      {"backward", "#e08214", {"backward"}},
      {"optimizer", "#59a14f", {"optimizer"}},
      {"gradients joined or zeroed", "#b6992d", {"join gradients", "zero gradients"}},
      {"data loaded", "#9d7660", {"load data"}},
      {"waiting for the pipeline", "#d0d0d0", {"wait for pipeline"}},
      {"waiting for gradients or parameters",
       "#e15759",
       {"wait for gradients", "wait for shards", "gather parameters", "exchange tied gradients",
        "wait for servers", "wait for workers", "average weights", "wait for the device"}},
      {"gradients on their way", "#b07aa1", {"reduce gradients (overlapped)"}}};
  return all;
}

/// Its place in kinds(), or −1.
int kind_of(const std::string& section) {
  for (std::size_t k = 0; k < kinds().size(); ++k) {
    for (const char* name : kinds()[k].sections) {
      if (section == name) return static_cast<int>(k);
    }
  }
  return -1;
}

/// One event per line, as RunRecord::write_trace writes them.
TraceByRank read_trace(const fs::path& path) {
  TraceByRank trace;
  const std::string text = read_small_file(path, largest_trace);
  std::size_t begin = 0;
  for (std::int64_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with(',')) line.remove_suffix(1);
    if (number == 1 || line.empty() || line.starts_with(']')) continue;
    const std::string where = fmt::format("{}:{}", path.string(), number);
    const json event = parse_json(line, where);
    if (!event.is_object() || text_at(event, "ph", where) != "X") continue;
    TraceSpan span{.name = text_at(event, "name", where),
                   .stream = static_cast<int>(integer_at(event, "tid", where)),
                   .begin = number_at(event, "ts", where)};
    span.end = span.begin + number_at(event, "dur", where);
    if (kind_of(span.name) < 0) continue;
    trace[static_cast<int>(integer_at(event, "pid", where))].push_back(std::move(span));
  }
  return trace;
}

/// Beginning and end of the step whose time is nearest the median, by the first rank's marks.
/// None where no whole step is there.
std::optional<std::pair<double, double>> choose_step(const TraceByRank& trace,
                                                     std::int64_t warm_up) {
  if (trace.empty()) return std::nullopt;
  std::vector<double> marks;
  for (const TraceSpan& span : trace.begin()->second) {
    if (span.name == begins_a_step) marks.push_back(span.begin);
  }
  std::sort(marks.begin(), marks.end());
  std::vector<std::pair<double, double>> steps;  // between two marks
  for (std::size_t i = static_cast<std::size_t>(warm_up); i + 1 < marks.size(); ++i) {
    steps.emplace_back(marks[i], marks[i + 1]);
  }
  if (steps.empty()) return std::nullopt;
  const auto length = [](const auto& step) { return step.second - step.first; };
  std::vector<double> lengths;
  for (const auto& step : steps) lengths.push_back(length(step));
  const double median = quantile(lengths, 0.5);
  return *std::min_element(steps.begin(), steps.end(), [&](const auto& a, const auto& b) {
    return std::abs(length(a) - median) < std::abs(length(b) - median);
  });
}

/// Spans of one kind inside the window, those that all but touch as one.
std::vector<TraceSpan> spans_in(const std::vector<TraceSpan>& all, int kind,
                                const std::pair<double, double>& window) {
  const double touching = 5e-4 * (window.second - window.first);
  std::vector<TraceSpan> spans;
  for (const TraceSpan& span : all) {
    if (kind_of(span.name) != kind || span.end <= window.first || span.begin >= window.second)
      continue;
    spans.push_back(span);
    spans.back().begin = std::max(span.begin, window.first);
    spans.back().end = std::min(span.end, window.second);
  }
  std::sort(spans.begin(), spans.end(),
            [](const TraceSpan& a, const TraceSpan& b) { return a.begin < b.begin; });
  std::vector<TraceSpan> joined;
  for (TraceSpan& span : spans) {
    if (!joined.empty() && span.begin - joined.back().end < touching) {
      joined.back().end = std::max(joined.back().end, span.end);
    } else {
      joined.push_back(std::move(span));
    }
  }
  return joined;
}

std::string row_name(const Run& run, int rank) {
  for (const RankAccount& account : run.ranks) {
    if (account.rank == rank && run.facts.pipeline > 1) {
      return fmt::format("rank {} (stage {})", rank, account.pipeline);
    }
  }
  return fmt::format("rank {}", rank);
}

}  // namespace

std::optional<Plot> plot_trace(const Run& run, const ReadOptions& options) {
  const fs::path path = run.attempt().folder / "trace.json";
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const TraceByRank trace = read_trace(path);
  const std::int64_t warm_up =
      options.warm_up_of(static_cast<std::int64_t>(run.attempt().steps.size()));
  const auto window = choose_step(trace, warm_up);
  if (!window) return std::nullopt;

  std::vector<std::string> blocks(kinds().size());
  std::string tics;
  std::size_t row = 0;
  for (const auto& [rank, spans] : trace) {
    if (row == most_rows) break;
    tics += fmt::format("{}{} {}", row == 0 ? "" : ", ", gnuplot_text(row_name(run, rank)), row);
    for (std::size_t k = 0; k < kinds().size(); ++k) {
      for (const TraceSpan& span : spans_in(spans, static_cast<int>(k), *window)) {
        const auto y = static_cast<double>(row);
        // Work beside compute is a strip of its own below it.
        const bool beside = span.stream != 0;
        blocks[k] +=
            fmt::format("{:.4f} {:.4f} {:.2f} {:.2f} {:.2f}\n", (span.begin - window->first) / 1e3,
                        (span.end - window->first) / 1e3, beside ? y + 0.3 : y - 0.4,
                        beside ? y + 0.44 : y + 0.26, y);
      }
    }
    ++row;
  }
  Plot plot{.title = "One step, measured", .width = 960};
  std::string draws;
  for (std::size_t k = 0; k < kinds().size(); ++k) {
    if (blocks[k].empty()) continue;
    plot.script += fmt::format("$kind{} << EOD\n{}EOD\n", k, blocks[k]);
    draws +=
        fmt::format("{}$kind{} using 1:5:1:2:3:4 with boxxyerror lc rgb '{}' title {}",
                    draws.empty() ? "" : ", ", k, kinds()[k].color, gnuplot_text(kinds()[k].name));
  }
  plot.script += fmt::format(
      "set ytics scale 0 ({})\nset yrange [{}:-0.6] noreverse\nset xrange [0:{:.6g}]\nset grid "
      "noytics "
      "xtics\n"
      "set xlabel \"ms\\n \"\nset style fill solid 1.0 noborder\n"
      "set key outside bottom center horizontal maxcols 3 reverse Left samplen 2\nplot {}\n",
      tics, static_cast<double>(row) - 0.4, (window->second - window->first) / 1e3, draws);
  plot.height = 185 + 34 * static_cast<int>(row);
  plot.caption = fmt::format(
      "The step of median length among those in trace.json after warm-up, as the host saw it{}. "
      "White: in no section, such as agreements between ranks. Clocks count from a barrier.",
      trace.size() > most_rows ? fmt::format("; the first {} of {} ranks", most_rows, trace.size())
                               : std::string());
  return plot;
}

}  // namespace trireme::report
