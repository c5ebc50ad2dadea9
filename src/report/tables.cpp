// What the ranks recorded, gathered, and as text; lines of a run.
#include <algorithm>
#include <cmath>
#include <set>

#include "trireme/core/error.hpp"
#include "trireme/report/record.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;

std::string mebibytes(std::int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

// CBOR keeps the bits of doubles.
std::vector<json> gather_json(const json& own, comm::Communicator& world) {
  std::vector<json> all;
  for (const auto& bytes : world.all_gather_bytes(json::to_cbor(own))) {
    all.push_back(json::from_cbor(bytes));
  }
  return all;
}

std::vector<SectionTimes> section_table(const std::vector<json>& ranks) {
  std::set<std::string> names;
  for (const json& rank : ranks) {
    for (const auto& [name, seconds] : rank.items()) names.insert(name);
  }
  std::vector<SectionTimes> table;
  for (const std::string& name : names) {
    SectionTimes row{name, HUGE_VAL, 0, 0};
    for (const json& rank : ranks) {
      const double seconds = rank.value(name, 0.0);
      row.minimum = std::min(row.minimum, seconds);
      row.maximum = std::max(row.maximum, seconds);
      row.average += seconds / static_cast<double>(ranks.size());
    }
    table.push_back(std::move(row));
  }
  std::stable_sort(table.begin(), table.end(), [](const SectionTimes& a, const SectionTimes& b) {
    return a.average > b.average;
  });
  return table;
}

std::vector<SectionTimes> gather_sections(const Recorder& recorder, comm::Communicator& world) {
  return section_table(gather_json(recorder.seconds(), world));
}

Trace gather_trace(const Recorder& recorder, comm::Communicator& world, std::int64_t limit) {
  std::vector<Span> spans = recorder.spans();
  const auto share = static_cast<std::size_t>(std::max<std::int64_t>(limit / world.size(), 0));
  if (spans.size() > share) spans.resize(share);
  json mine = json::array();
  for (const Span& span : spans) {
    mine.push_back({span.name, span.stream, span.begin_us, span.duration_us});
  }
  Trace trace{{}, std::make_shared<std::set<std::string>>()};
  const auto all = world.all_gather_bytes(json::to_cbor(mine));
  if (world.rank() != 0) return trace;
  for (const auto& bytes : all) {
    auto& rank = trace.spans_by_rank.emplace_back();
    for (const json& span : json::from_cbor(bytes)) {
      const char* name = trace.names->insert(span[0].get<std::string>()).first->c_str();
      rank.push_back({name, span[1], span[2], span[3]});
    }
  }
  return trace;
}

std::vector<MemoryRow> gather_memory(const device::MemoryLedger& ledger,
                                     const std::map<device::Use, std::int64_t>& predicted,
                                     comm::Communicator& world,
                                     const std::set<device::Use>& in_part) {
  std::vector<MemoryRow> rows;
  for (int u = 0; u < static_cast<int>(device::Use::count); ++u) {
    const auto use = static_cast<device::Use>(u);
    const auto found = predicted.find(use);
    const std::int64_t mine = found == predicted.end() ? 0 : found->second;
    MemoryRow row{std::string(device::name_of(use)), world.all_reduce(mine, comm::Reduction::max),
                  world.all_reduce(ledger.peak(use), comm::Reduction::max), in_part.contains(use)};
    if (row.predicted != 0 || row.measured != 0) rows.push_back(std::move(row));
  }
  return rows;
}

bool as_predicted(const std::vector<MemoryRow>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const MemoryRow& row) {
    return row.in_part || row.predicted == row.measured;
  });
}

std::string memory_table(const std::vector<MemoryRow>& rows) {
  std::size_t width = 6;
  MemoryRow sum{"total", 0, 0};
  for (const MemoryRow& row : rows) {
    width = std::max(width, row.name.size());
    sum.predicted += row.predicted;
    sum.measured += row.measured;
    sum.in_part = sum.in_part || row.in_part;
  }
  std::string text =
      fmt::format("{:<{}} | {:>13} | {:>12} |\n", "memory", width, "predicted MiB", "measured MiB");
  text += std::string(width + 1, '-') + "+---------------+--------------+\n";
  const auto add = [&](const MemoryRow& row) {
    const std::int64_t difference = row.measured - row.predicted;
    const std::string mark = difference == 0 ? ""
                             : row.in_part   ? " predicted in part"
                                             : fmt::format(" ! differs by {:+} B", difference);
    text += fmt::format("{:<{}} | {:>13} | {:>12} |{}\n", row.name, width, mebibytes(row.predicted),
                        mebibytes(row.measured), mark);
  };
  for (const MemoryRow& row : rows) add(row);
  add(sum);
  return text;
}

std::string duration_text(double seconds) {
  // More than a million days is no estimate.
  if (!(seconds >= 0) || seconds > 1e11) return "-";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}:{:02}", days, hours, minutes, whole % 60);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{:02}:{:02}", minutes, whole % 60);
}

std::string step_line(const StepMetrics& metrics, std::int64_t total_steps, double seconds_left) {
  const std::string total = std::to_string(total_steps);
  std::string line =
      fmt::format("step {:>{}}/{}  loss {:.4f}  norm {:.3f}  lr {:.1e}  {:.3f} s  {:.0f} tok/s",
                  metrics.step, total.size(), total, metrics.loss, metrics.gradient_norm,
                  metrics.learning_rate, metrics.seconds, metrics.tokens_per_second);
  if (!metrics.skipped.empty()) line += "  SKIPPED: " + metrics.skipped;
  if (metrics.mfu != 0) line += fmt::format("  MFU {:.1f} %", 100 * metrics.mfu);
  if (const std::string left = duration_text(seconds_left); left != "-") line += "  eta " + left;
  return line;
}

std::string figure_of_merit(double tokens_per_second) {
  if (!std::isfinite(tokens_per_second) || tokens_per_second <= 0) {
    return "Figure of Merit (FOM): none";
  }
  return fmt::format("Figure of Merit (FOM): {:.1f} tokens/s", tokens_per_second);
}

}  // namespace trireme::report
