#include "trireme/plan/operation_table.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>
#include <utility>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"

namespace trireme::plan {

namespace {

constexpr std::string_view header = "operation,kind,type,m,n,k,count,bytes,us";
constexpr std::size_t columns = 9;

/// A work's kind as the table has it.
struct KindName {
  std::string_view text;
  Work::Kind kind;
  bool loss = false, causal = false;
};
constexpr KindName kind_names[] = {
    {"product", Work::Kind::product},
    {"attention", Work::Kind::attention},
    {"causal_attention", Work::Kind::attention, false, true},
    {"attention_backward", Work::Kind::attention_backward},
    {"causal_attention_backward", Work::Kind::attention_backward, false, true},
    {"memory", Work::Kind::memory},
    {"loss", Work::Kind::memory, true},
    {"update", Work::Kind::update}};

std::string_view kind_name(const Work& work) {
  for (const KindName& each : kind_names) {
    if (each.kind == work.kind && each.loss == work.loss && each.causal == work.causal) {
      return each.text;
    }
  }
  throw Error("machine file: no name for a work of kind {}", static_cast<int>(work.kind));
}

/// Whether a measurement of one says something of the other.
bool alike(const Work& a, const Work& b) {
  return a.name == b.name && a.kind == b.kind && a.type == b.type && a.loss == b.loss &&
         a.causal == b.causal;
}

/// Of a work's extents and bytes, in doublings.
OperationTable::Place place_of(const Work& work) {
  OperationTable::Place place{};
  std::size_t axis = 0;
  for (const auto extent : {&Work::m, &Work::n, &Work::k, &Work::count, &Work::bytes}) {
    place[axis++] = std::log2(static_cast<double>(std::max<std::int64_t>(work.*extent, 1)));
  }
  return place;
}

double squared_distance(const OperationTable::Place& a, const OperationTable::Place& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

OperationTime parse_line(const std::string& line, const std::string& where) {
  const auto refuse = [&](const std::string& column, std::string_view found,
                          const std::string& rule) {
    throw ConfigError(where + ": " + column,
                      config::one_line(config::shortened(std::string(found), 40)), rule,
                      "mend the line, or measure again by trireme bench machine");
  };
  std::vector<std::string_view> cells;
  for (std::string_view rest = line;;) {
    const std::size_t comma = rest.find(',');
    cells.push_back(rest.substr(0, comma));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (cells.size() != columns) {
    refuse("the line", line, fmt::format("must have the {} columns {}", columns, header));
  }
  OperationTime time;
  Work& work = time.work;
  const bool is_name = std::all_of(cells[0].begin(), cells[0].end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (cells[0].empty() || cells[0].size() > OperationName::most || !is_name) {
    refuse(
        "operation", cells[0],
        fmt::format("must be a name of at most {} of a to z, digits and _", OperationName::most));
  }
  work.name = cells[0];
  const auto* kind = std::find_if(std::begin(kind_names), std::end(kind_names),
                                  [&](const KindName& each) { return each.text == cells[1]; });
  if (kind == std::end(kind_names))
    refuse("kind", cells[1], "must be product, attention, memory, …");
  work.kind = kind->kind;
  work.loss = kind->loss;
  work.causal = kind->causal;
  try {
    work.type = dtype_from_name(cells[2]);
  } catch (const Error&) {
    refuse("type", cells[2], "must be f32, bf16, …");
  }
  const std::pair<const char*, std::int64_t Work::*> extents[] = {{"m", &Work::m},
                                                                  {"n", &Work::n},
                                                                  {"k", &Work::k},
                                                                  {"count", &Work::count},
                                                                  {"bytes", &Work::bytes}};
  for (std::size_t i = 0; i < std::size(extents); ++i) {
    const auto value = number_of<std::int64_t>(cells[3 + i]);
    if (!value || *value < 0) {
      refuse(extents[i].first, cells[3 + i], "must be a whole number, 0 or more");
    }
    work.*extents[i].second = *value;
  }
  const auto microseconds = number_of<double>(cells[8]);
  if (!microseconds || !(*microseconds >= 1e-6 && *microseconds <= 1e12)) {
    refuse("us", cells[8], "must be a number from 1e-6 to 1e12");
  }
  time.seconds = *microseconds * 1e-6;
  return time;
}

}  // namespace

OperationTable::OperationTable(std::vector<OperationTime> times) : times_(std::move(times)) {
  std::sort(times_.begin(), times_.end(), [](const OperationTime& a, const OperationTime& b) {
    return a.work.key() < b.work.key();
  });
  for (const OperationTime& each : times_) places_.push_back(place_of(each.work));
}

void OperationTable::add(double seconds) {
  for (OperationTime& each : times_) each.seconds += seconds;
}

double OperationTable::seconds(const Work& work, const Formula& formula,
                               const Work* without) const {
  const auto exact = std::lower_bound(
      times_.begin(), times_.end(), work.key(),
      [](const OperationTime& each, const auto& key) { return each.work.key() < key; });
  const bool counts = without == nullptr || !(work == *without);
  if (counts && exact != times_.end() && exact->work == work) return exact->seconds;
  const auto first = std::partition_point(
      times_.begin(), exact, [&](const OperationTime& each) { return each.work.name < work.name; });
  const Place place = place_of(work);
  double weights = 0, sum = 0;
  for (auto at = first; at != times_.end() && at->work.name == work.name; ++at) {
    const OperationTime& each = *at;
    if (!alike(work, each.work) || (without != nullptr && each.work == *without)) continue;
    constexpr double least = 1e-6;  // extents of 0 and 1 have one logarithm
    const double distance = std::max(
        least, squared_distance(place, places_[static_cast<std::size_t>(at - times_.begin())]));
    const double by_formula = formula(each.work);
    if (by_formula <= 0) continue;  // no ratio
    weights += 1 / distance;
    sum += std::log(each.seconds / by_formula) / distance;
  }
  return formula(work) * (weights > 0 ? std::exp(sum / weights) : 1);
}

std::string OperationTable::text() const {
  std::string text(header);
  for (const OperationTime& each : times_) {
    const Work& work = each.work;
    text += fmt::format("\n{},{},{},{},{},{},{},{},{:.4g}", work.name.text(), kind_name(work),
                        name_of(work.type), work.m, work.n, work.k, work.count, work.bytes,
                        1e6 * each.seconds);
  }
  return text;
}

OperationTable OperationTable::parse(const std::string& text, const std::string& where) {
  std::istringstream in(text);
  std::vector<OperationTime> times;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const std::string place = fmt::format("{}, line {}", where, number);
    if (number > 1) {
      if (!line.empty()) times.push_back(parse_line(line, place));
    } else if (line != header) {
      throw ConfigError(place, config::one_line(config::shortened(line, 80)),
                        fmt::format("must be {}", header),
                        "keep the line as bench machine wrote it");
    }
  }
  OperationTable table(std::move(times));
  const auto twice =
      std::adjacent_find(table.times_.begin(), table.times_.end(),
                         [](const auto& a, const auto& b) { return a.work == b.work; });
  if (twice != table.times_.end()) {
    throw ConfigError(where, config::one_line(std::string(twice->work.name.text())),
                      "must be there once with equal extents", "keep one of its lines");
  }
  return table;
}

}  // namespace trireme::plan
