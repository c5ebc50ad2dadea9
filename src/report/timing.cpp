#include "trireme/report/timing.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "trireme/core/error.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;

constexpr const char* communication = "communication wait";
constexpr const char* start = "start";
constexpr const char* other = "other";
constexpr const char* unrecorded = "between sections";

struct SectionPlace {
  const char* group;
  const char* axis = nullptr;  // of ranks that communicate
};

/// Every section that the host opens. tests/report/sections_test.sh compares it with the sources.
const std::map<std::string_view, SectionPlace>& places() {
  static const std::map<std::string_view, SectionPlace> all = {
      {"forward", {"compute"}},
      {"backward", {"compute"}},
      {"forward and backward", {"compute"}},
      {"zero gradients", {"compute"}},
      {"join gradients", {"compute"}},
      {"optimizer", {"compute"}},
      {"take gradients", {"compute"}},
      {"add gradients", {"compute"}},
      {"settle choices", {"compute"}},
      {"wait for the device", {"compute"}},
      {"wait for gradients", {communication, "data"}},
      {"wait for shards", {communication, "data"}},
      {"gather parameters", {communication, "data"}},
      {"average weights", {communication, "data"}},
      {"wait for workers", {communication, "data"}},
      {"wait for tensor ranks", {communication, "tensor"}},
      {"wait for pipeline", {communication, "pipeline"}},
      {"exchange tied gradients", {communication, "pipeline"}},
      {"wait for servers", {communication, "servers"}},
      {"wait for a ticket", {communication, "servers"}},
      {"answer", {communication, "servers"}},
      {"send the model", {communication, "servers"}},
      {"sum loss and norm", {communication, "all ranks"}},
      {"agree on the step", {communication, "all ranks"}},
      {"load data", {"load data"}},
      {"evaluate", {"evaluation"}},
      {"forward of evaluation", {"evaluation"}},
      {"checkpoint", {"checkpoint"}},
      {"work", {"checkpoint"}},  // of a server: it saves or loads
      {"check placement", {other}},
      {"measure peak", {other}},
      {"hand out work", {other}},
      {"leave", {other}},
      {"end", {other}}};
  return all;
}

/// An evaluation and a checkpoint are one part each, with all that is inside them.
const std::string& counted_as(const std::string& outermost, const std::string& innermost) {
  return outermost == "evaluate" || outermost == "checkpoint" ? outermost : innermost;
}

/// A section without a place is a part of "other" under its own name.
void add_section(const std::string& section, double seconds, json& into) {
  const auto found = places().find(section);
  const SectionPlace place = found == places().end() ? SectionPlace{other} : found->second;
  const std::string part =
      place.axis == nullptr ? section : fmt::format("{}: {}", place.axis, section);
  json& sum = into[place.group][part];
  sum = seconds + (sum.is_null() ? 0.0 : sum.get<double>());
}

using Parts = std::map<std::string, double>;  // seconds by name; "": their sum
using Groups = std::map<std::string, Parts>;

/// Of one rank, checked, with the seconds of the run that its recorder did not see.
Groups groups_of(const json& time, double total, const std::string& where) {
  Groups found;
  for (const auto& [group, parts] : object_at(time, "groups", where).items()) {
    if (std::find(time_groups.begin(), time_groups.end(), group) == time_groups.end() ||
        !parts.is_object() || parts.contains("")) {
      throw Error("{}: time has the group {}, which is none of ours; restore the file", where,
                  group);
    }
    for (const auto& [part, seconds] : parts.items()) {
      found[group][part] = number_at(parts, part.c_str(), where);
    }
  }
  found[start][start] = total - number_at(time, "seconds", where);
  for (auto& [group, parts] : found) {
    double sum = 0;
    for (const auto& [part, seconds] : parts) sum += seconds;
    parts[""] = sum;
  }
  return found;
}

TimeRow row_of(const std::vector<Groups>& ranks, const std::string& group,
               const std::string& part) {
  TimeRow row{group, part, HUGE_VAL, 0, -HUGE_VAL};
  for (const Groups& rank : ranks) {
    const auto parts = rank.find(group);
    const bool has = parts != rank.end() && parts->second.contains(part);
    const double seconds = has ? parts->second.at(part) : 0;
    row.minimum = std::min(row.minimum, seconds);
    row.maximum = std::max(row.maximum, seconds);
    row.average += seconds / static_cast<double>(ranks.size());
  }
  return row;
}

void add_group(const std::vector<Groups>& ranks, const std::string& group, TimeAccount& account) {
  std::set<std::string> parts;
  for (const Groups& rank : ranks) {
    const auto found = rank.find(group);
    if (found == rank.end()) continue;
    for (const auto& [part, seconds] : found->second) parts.insert(part);
  }
  std::vector<TimeRow> rows;  // the whole group's first
  for (const std::string& part : parts) rows.push_back(row_of(ranks, group, part));
  if (!rows.empty()) {
    std::stable_sort(rows.begin() + 1, rows.end(),
                     [](const TimeRow& a, const TimeRow& b) { return a.average > b.average; });
  }
  account.rows.insert(account.rows.end(), rows.begin(), rows.end());
}

}  // namespace

json rank_time(const Recorder& recorder) {
  const double seconds = recorder.elapsed();
  const auto exclusive = recorder.exclusive_seconds();
  json by_group = json::object(), overlapped = json::object();
  double recorded = 0;
  std::set<std::string> names;
  for (const auto& [sections, own] : exclusive) {
    add_section(counted_as(sections.first, sections.second), own, by_group);
    recorded += own;
    names.insert(sections.second);
  }
  by_group[other][unrecorded] = seconds - recorded;
  for (const auto& [section, all] : recorder.seconds()) {
    if (!names.contains(section)) overlapped[section] = all;
  }
  return {{"seconds", seconds}, {"groups", by_group}, {"overlapped", overlapped}};
}

TimeAccount time_account(const std::vector<json>& ranks, double total, const std::string& where) {
  TimeAccount account{.total = total};
  std::vector<Groups> found;
  for (const json& rank : ranks) {
    if (!rank.contains("time")) return account;
    const json& time = object_at(rank, "time", where);
    found.push_back(groups_of(time, total, where));
    const json& overlapped = object_at(time, "overlapped", where);
    for (const auto& [section, value] : overlapped.items()) {
      account.overlapped[section] +=
          number_at(overlapped, section.c_str(), where) / static_cast<double>(ranks.size());
    }
  }
  for (const char* group : time_groups) add_group(found, group, account);
  return account;
}

double share_of(const TimeAccount& account, std::string_view group) {
  for (const TimeRow& row : account.rows) {
    if (row.group == group && row.part.empty() && account.total > 0) {
      return row.average / account.total;
    }
  }
  return 0;
}

bool adds_up(const TimeAccount& account) {
  const double rounding = 1e-6 * account.total + 1e-6;
  double sum = 0;
  for (const TimeRow& row : account.rows) {
    if (row.minimum < -rounding) return false;
    if (row.part.empty()) sum += row.average;
  }
  return account.rows.empty() || std::abs(sum - account.total) <= rounding;
}

std::string timing_table(const TimeAccount& account) {
  std::size_t width = 18;
  for (const TimeRow& row : account.rows) width = std::max(width, row.part.size() + 2);
  std::string text = fmt::format("{:<{}} | {:>12} | {:>12} | {:>12} | {:>7}\n", "where time went",
                                 width, "min s", "avg s", "max s", "share %");
  const std::string line =
      std::string(width + 1, '-') + "+--------------+--------------+--------------+--------\n";
  text += line;
  const auto add = [&](const std::string& name, double minimum, double average, double maximum) {
    const std::string share =
        account.total > 0 ? fmt::format("{:.2f}", 100 * average / account.total) : "-";
    text += fmt::format("{:<{}} | {:>12.4f} | {:>12.4f} | {:>12.4f} | {:>7}\n", name, width,
                        minimum, average, maximum, share);
  };
  for (const TimeRow& row : account.rows) {
    // A part that is the whole group, or nothing, needs no row of its own.
    const bool nothing = std::abs(row.minimum) < 5e-5 && row.maximum < 5e-5;
    if (row.part == row.group || row.part == "evaluate" || (!row.part.empty() && nothing)) continue;
    add(row.part.empty() ? row.group : "  " + row.part, row.minimum, row.average, row.maximum);
  }
  text += line;
  add("total", account.total, account.total, account.total);
  for (const auto& [section, seconds] : account.overlapped) {
    text += fmt::format("overlapped, not in the total: {} {:.4f} s\n", section, seconds);
  }
  if (!adds_up(account)) text += "! sections overlap: the rows do not add up to the total\n";
  return text;
}

json time_json(const TimeAccount& account) {
  json by_group = json::object();
  for (const TimeRow& row : account.rows) {
    json& group = by_group[row.group];
    if (row.part.empty()) {
      group = {{"seconds", row.average},
               {"share", share_of(account, row.group)},
               {"parts", json::object()}};
    } else {
      group["parts"][row.part] = row.average;
    }
  }
  return {{"seconds", account.total}, {"groups", by_group}, {"overlapped", account.overlapped}};
}

}  // namespace trireme::report
