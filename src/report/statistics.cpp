#include "trireme/report/statistics.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.hpp"

namespace trireme::report {
namespace {

/// P(B ≤ k) of a binomial(n, 1/2), summed from k down until terms no longer count.
double binomial_below(std::int64_t n, std::int64_t k) {
  if (k < 0) return 0;
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  double sum = 0;
  double term = std::exp(std::lgamma(real(n) + 1) - std::lgamma(real(k) + 1) -
                         std::lgamma(real(n - k) + 1) - real(n) * std::log(2.0));
  for (std::int64_t i = k; i >= 0 && term > 1e-18 * sum; --i) {
    sum += term;
    term *= real(i) / real(n - i + 1);  // C(n, i−1) / C(n, i)
  }
  return sum;
}

double quantile_of_sorted(const std::vector<double>& values, double q) {
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  TRIREME_ASSERT(!values.empty() && q >= 0 && q <= 1, "quantile {} of {} values", q, values.size());
  std::sort(values.begin(), values.end());
  return quantile_of_sorted(values, q);
}

std::int64_t interval_rank(std::int64_t n) {
  std::int64_t low = 0, high = n / 2 + 1;  // rank 0 always holds, `high` never does
  while (high - low > 1) {
    const std::int64_t k = (low + high) / 2;
    (1 - 2 * binomial_below(n, k - 1) >= 0.95 ? low : high) = k;
  }
  return low;
}

Estimate estimate(std::vector<double> values) {
  Estimate result{.n = static_cast<std::int64_t>(values.size())};
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  result.median = quantile_of_sorted(values, 0.5);
  const auto rank = static_cast<std::size_t>(std::max<std::int64_t>(1, interval_rank(result.n)));
  result.low = values[rank - 1];
  result.high = values[values.size() - rank];
  return result;
}

}  // namespace trireme::report
