// Times of operations that were measured one by one, and what they say of others.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "trireme/plan/work.hpp"

namespace trireme::plan {

/// An operation's time, in seconds above 0.
struct OperationTime {
  Work work;
  double seconds = 0;
};

/// A formula that gives a work's seconds.
using Formula = std::function<double(const Work&)>;

class OperationTable {
 public:
  using Place = std::array<double, 5>;  // logarithms of m, n, k, count and bytes
  OperationTable() = default;
  explicit OperationTable(std::vector<OperationTime> times);
  const std::vector<OperationTime>& times() const { return times_; }
  /// Adds to each.
  void add(double seconds);

  /// The formula's time, times what measurements of the same operation and type took beside it: the
  /// geometric mean of their ratios, weighted by the inverse square of their distance (Shepard
  /// 1968). The distance is that of the logarithms of extents, heads and bytes. `without`: a
  /// measurement that does not count.
  double seconds(const Work& work, const Formula& formula, const Work* without = nullptr) const;

  /// CSV with a header; one operation on each line.
  std::string text() const;
  /// Throws ConfigError that names `where`, the line, the rule and the remedy.
  static OperationTable parse(const std::string& text, const std::string& where);

 private:
  std::vector<OperationTime> times_;  // by key
  std::vector<Place> places_;         // of each
};

}  // namespace trireme::plan
