#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "trireme/schedule/schedule.hpp"

namespace trireme::schedule {

namespace {

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

/// Costs as whole numbers with a sum of at most about 2³⁰, by a power of two: sums and their
/// squares are exact then, and equal costs stay equal.
std::vector<std::int64_t> whole(std::span<const double> costs) {
  double sum = 0;
  for (const double cost : costs) {
    TRIREME_ASSERT(std::isfinite(cost) && cost >= 0, "cost {}", cost);
    sum += cost;
  }
  TRIREME_ASSERT(std::isfinite(sum), "the costs' sum overflows");
  int exponent = 0;
  std::frexp(sum, &exponent);  // sum < 2^exponent
  std::vector<std::int64_t> scaled;
  for (const double cost : costs)
    scaled.push_back(std::llround(std::ldexp(cost, sum > 0 ? 30 - exponent : 0)));
  return scaled;
}

/// best[k][i]: the least cost of units i … n−1 in k runs, where a run's cost and the rest's are
/// joined by `join`; `never` where there are too few units or a run is forbidden (run(…) ==
/// never).
template <class Run, class Join>
std::vector<std::vector<std::int64_t>> best_of_rests(int units, int runs, Run run, Join join) {
  const auto columns = static_cast<std::size_t>(units) + 1;
  std::vector best(static_cast<std::size_t>(runs) + 1, std::vector(columns, never));
  best[0][columns - 1] = 0;
  for (std::size_t k = 1; k < best.size(); ++k) {
    for (std::size_t i = 0; i + 1 < columns; ++i) {
      for (std::size_t end = i + 1; end < columns; ++end) {
        const std::int64_t first = run(i, end), rest = best[k - 1][end];
        if (first == never || rest == never) continue;
        best[k][i] = std::min(best[k][i], join(first, rest));
      }
    }
  }
  return best;
}

}  // namespace

std::vector<int> split_units(std::span<const double> costs, int virtual_stages) {
  TRIREME_ASSERT(virtual_stages >= 1, "{} virtual stages", virtual_stages);
  const int units = static_cast<int>(costs.size());
  if (units < virtual_stages)
    throw ConfigError(
        "parallel.pipeline x parallel.virtual_stages", std::to_string(virtual_stages),
        fmt::format("each needs at least one of the model's {} units (embedding, blocks, head)",
                    units),
        fmt::format("use a product of at most {}, or more layers", units));
  std::vector<std::int64_t> sums{0};  // of the first i units
  for (const std::int64_t cost : whole(costs)) sums.push_back(sums.back() + cost);
  const auto cost = [&sums](std::size_t begin, std::size_t end) { return sums[end] - sums[begin]; };
  const auto runs = static_cast<std::size_t>(virtual_stages);

  const std::int64_t largest =
      best_of_rests(units, virtual_stages, cost,
                    [](std::int64_t a, std::int64_t b) { return std::max(a, b); })[runs][0];
  const auto square = [&](std::size_t begin, std::size_t end) {
    const std::int64_t sum = cost(begin, end);
    return sum <= largest ? sum * sum : never;
  };
  const auto best = best_of_rests(units, virtual_stages, square,
                                  [](std::int64_t a, std::int64_t b) { return a + b; });
  std::vector<int> first{0};
  for (std::size_t left = runs, begin = 0; left > 0; --left) {
    std::size_t end = begin + 1;
    while (best[left - 1][end] == never || square(begin, end) == never ||
           square(begin, end) + best[left - 1][end] != best[left][begin])
      ++end;
    first.push_back(static_cast<int>(end));
    begin = end;
  }
  return first;
}

}  // namespace trireme::schedule
