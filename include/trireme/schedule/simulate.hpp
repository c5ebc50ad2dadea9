// The duration and memory of a schedule for given costs, by an event-driven walk of its lists
// under rendezvous semantics (a send ends once the matching receive has started); and charts.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/schedule/messages.hpp"
#include "trireme/schedule/schedule.hpp"

namespace trireme::schedule {

/// Times in any one unit; each vector has one entry per virtual stage. B costs input + weight.
struct Costs {
  std::vector<double> forward;
  std::vector<double> input;
  std::vector<double> weight;
  double latency = 0;  // from the later of both starts of a message to its end

  static Costs uniform(int virtual_stages, double forward, double input, double weight,
                       double latency = 0);
};

/// Costs from text: one line "F,I,W" for all virtual stages, or one line for each. Messages
/// call the text `source`. Throws AgreedError that names source and line.
Costs parse_costs(std::string_view text, const std::string& source, int virtual_stages);
/// The same from a file.
Costs read_costs(const std::filesystem::path& path, int virtual_stages);

/// One compute on the time line.
struct Span {
  Action action;
  double start = 0;
  double end = 0;
};

struct Timeline {
  std::vector<std::vector<Span>> spans;  // [stages][computes], in order
  double total = 0;                      // end of the last compute
  double ideal = 0;                      // the stages' mean busy time
  /// (total − ideal) / ideal: idle time of all stages over their busy time. With p equal stages and
  /// m ≥ p micro-batches (p−1)/m for GPipe and 1F1B, (p−1)/(v·m) interleaved over v chunks, and
  /// (p−1)/(3m) for ZB-H1 where F = I = W. docs/schedules.md has m < p too.
  double bubble = 0;
  /// Most (micro-batch, chunk) pairs of a stage whose forward has run and whose weight part (W or
  /// B) has not ended, counting the one whose forward runs. 1F1B: min(p−s, m) at stage s.
  std::vector<int> peak_in_flight;  // [stages]
  /// Most (micro-batch, chunk) pairs of a stage whose I has run and whose W has not ended.
  std::vector<int> peak_pending_weights;  // [stages]
};

/// Walks `lists` (from add_messages). Throws AgreedError that names the stages that
/// wait for each other and what they wait for.
Timeline simulate(const Schedule& schedule, const std::vector<StageSteps>& lists,
                  const Costs& costs);
/// The same with add_messages(schedule).
Timeline simulate(const Schedule& schedule, const Costs& costs);

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
