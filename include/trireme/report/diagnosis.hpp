// Finds where a run loses speed, and what to do about it.
#pragma once

#include <string>
#include <vector>

#include "trireme/report/runs.hpp"

namespace trireme::report {

struct Finding {
  std::string rule;  // a short name, as docs/reports.md lists them
  double share = 0;  // the number that the rule looked at
  std::string text;  // one line: the number, what it is of, what to do
};

/// The findings of a valid run whose record has what they need (format 2; sections time the host,
/// so on a device that is not the host only those of the loader, checkpoints and steadiness are
/// looked for). Rules and thresholds: docs/reports.md. Largest share first.
std::vector<Finding> diagnose(const Run& run, const ReadOptions& options);

/// Seconds that a rank computed in the steps of its attempt: forward and backward without the waits
/// and the tensor axis's sums inside them.
double compute_seconds(const Run& run, const RankAccount& rank);

}  // namespace trireme::report
