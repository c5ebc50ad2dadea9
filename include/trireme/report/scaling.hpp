// Compares runs: which are comparable, and how speed grows with ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "trireme/report/runs.hpp"

namespace trireme::report {

struct Finding {
  std::string rule;  // a short name, as docs/reports.md lists them
  double share = 0;  // the number that the rule looked at
  std::string text;  // one line: the number, what it is of, what to do
};

/// A valid run with its figures, and where it loses speed.
struct Measured {
  const Run* run = nullptr;
  Figures figures;
  std::vector<Finding> findings;
};

/// What must be equal in runs of one line: model, optimizer, precision, numerics, data,
/// sequence, parallel.* and zero.* but the degrees, comm, device, processor, threads of a rank,
/// versions. Not the batch, the micro-batch and the degrees. As JSON.
nlohmann::json essentials(const Run& run);
/// The same of one attempt: its run.json and what was read in it.
nlohmann::json essentials(const nlohmann::json& record, const RunFacts& facts);
/// Eight hexadecimal digits: CRC-32C of the text of essentials(run).
std::string fingerprint(const Run& run);
/// The keys in which the essentials of two runs differ, "model.width", ….
std::vector<std::string> differences(const Run& a, const Run& b);

/// Every value that is no object under its whole key, "train.batch".
std::map<std::string, nlohmann::json> flattened(const nlohmann::json& value);

/// Of a figure, over the medians of `repeats`, of which there is one at least; of one run, over its
/// steps.
Estimate over_repeats(const std::vector<const Measured*>& repeats, Estimate Figures::*figure);

enum class ScalingKind : std::uint8_t {
  strong,  // the same global batch
  weak     // the same batch per rank
};

/// Runs of one layout, or several of which the fastest is shown.
struct ScalingPoint {
  int ranks = 0;
  std::string layout;
  std::int64_t micro_batch = 0;
  int nodes = 1;
  std::vector<const Run*> runs;  // repeats, on as many nodes
  Estimate tokens_per_second;    // see over_repeats
  /// Speed per rank over that of the reference: of all runs of the same work, in whatever layout,
  /// the fastest point on the fewest ranks. Its interval is the quotient of the ends of both, which
  /// holds the quotient of the medians wherever both hold theirs: of two 95 % intervals, with at
  /// least 90 %. None where either has none.
  Estimate efficiency;
  std::string reference;  // "tensor 1 × pipeline 1 × data 1 on 1 ranks"; of itself: empty
  /// The study's name of its layout, else the degrees.
  std::string name() const;
};
/// The speed that `trireme plan --machine` gives a layout.
struct Prediction {
  int ranks = 0;
  double tokens_per_second = 0;
  double low = 0, high = 0;   // band, as the study has it; 0: none
  bool extrapolated = false;  // on ranks that are not run
};
struct Predictions {
  std::string machine;             // the file
  std::vector<Prediction> points;  // by ranks
  /// None where there is none on so many ranks.
  const Prediction* on(int ranks) const;
};
struct ScalingLine {
  ScalingKind kind = ScalingKind::strong;
  std::string fingerprint;
  std::string label;                 // what grows, what is held
  std::vector<ScalingPoint> points;  // by ranks, two at least
  std::vector<std::string> notes;    // in what its runs differ
  Predictions predicted{};           // of a study's layout, see set_predictions
};

/// Lines of runs of equal essentials and equal batch (weak: equal batch per rank), in which one
/// degree grows and the others are held; and, where several degrees change, one line of the fastest
/// layout at each number of ranks, labeled so. Of a study, a line for each of its layouts.
std::vector<ScalingLine> scaling_lines(const std::vector<Measured>& runs);

/// Runs of the same work: equal essentials but for `parallel`, `zero` and `comm`, and equal batch
/// (weak: per rank).
struct WorkGroup {
  ScalingKind kind = ScalingKind::strong;
  std::string work;                  // "batch 64", "batch 16 per rank"
  std::vector<ScalingPoint> points;  // every configuration, by ranks and layout
  bool scales() const { return points.front().ranks < points.back().ranks; }
};
/// Groups of several configurations.
std::vector<WorkGroup> work_groups(const std::vector<Measured>& runs);

}  // namespace trireme::report
