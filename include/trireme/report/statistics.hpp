// Medians and their uncertainty.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::report {

/// Values from here on give an interval: of five the least and the greatest hold the median between
/// them with probability 1 − 2^−4 = 0.9375 only.
constexpr std::int64_t least_for_interval = 6;

struct Estimate {
  std::int64_t n = 0;
  double median = 0, low = 0, high = 0;
  /// Whether `low` and `high` are a confidence interval of the median; else they are the least and
  /// the greatest of too few values.
  bool is_interval() const { return n >= least_for_interval; }
};

/// The value below which a share `q` in [0, 1] of `values` is, interpolated linearly between
/// order statistics (Hyndman and Fan, 1996, type 7, as numpy). `values` must not be empty.
double quantile(std::vector<double> values, double q);

/// The rank k, from 1, of the greatest order statistic for which [x(k), x(n+1−k)] holds the median
/// of any continuous distribution with probability 1 − 2·P(B ≤ k−1) ≥ 0.95, B binomial(n, 1/2)
/// (Conover, Practical Nonparametric Statistics, 3.2); 0 where n < 6. Assumes independent values.
std::int64_t interval_rank(std::int64_t n);

/// Median and its interval at 95 %, nonparametric as above; with fewer than six values their least
/// and greatest instead. n = 0: all zero.
Estimate estimate(std::vector<double> values);

}  // namespace trireme::report
