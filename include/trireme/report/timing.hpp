// Where the time of a run went: groups of parts that do not overlap and add up to the run's
// seconds. docs/timing.md defines every row.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/core/recorder.hpp"

namespace trireme::report {

/// In the order of every table.
inline constexpr std::array time_groups = {
    "compute", "communication wait", "load data", "evaluation", "checkpoint", "start", "other"};

/// Of one rank: {"seconds", "groups": {group: {part: seconds}}, "overlapped": {section: seconds}}.
/// The parts add up to "seconds", those since the recorder's reset; what other threads did
/// meanwhile is "overlapped".
nlohmann::json rank_time(const Recorder& recorder);

/// Seconds over ranks of a group, or of one of its parts.
struct TimeRow {
  std::string group;
  std::string part;  // empty: the whole group
  double minimum = 0, average = 0, maximum = 0;
};

struct TimeAccount {
  double total = 0;                          // seconds of the run
  std::vector<TimeRow> rows;                 // a group's row, then its parts, largest first
  std::map<std::string, double> overlapped;  // by section, average over ranks
};

/// Of the run that took `total` seconds, from the "time" of its ranks' accounts. No rows where a
/// rank has none. Throws Error "<where>: …" where one is damaged.
TimeAccount time_account(const std::vector<nlohmann::json>& ranks, double total,
                         const std::string& where);

/// Average seconds of a group over the total.
double share_of(const TimeAccount& account, std::string_view group);

/// Whether the parts fit into the total: false where sections overlap, and count twice.
bool adds_up(const TimeAccount& account);

/// The account as text: min, average and max seconds of each row, and its share of the total.
std::string timing_table(const TimeAccount& account);

/// {"seconds", "groups": {group: {"seconds", "share", "parts": {part: seconds}}}, "overlapped"},
/// averages over ranks.
nlohmann::json time_json(const TimeAccount& account);

}  // namespace trireme::report
