#include "trireme/report/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace trireme::report {
namespace {

TEST(Statistics, QuantilesMatchNumpy) {
  // numpy.quantile([3, 1, 4, 1, 5, 9, 2, 6], q), numpy 2.
  const std::vector<double> values = {3, 1, 4, 1, 5, 9, 2, 6};
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile(values, 0.1), 1);
  EXPECT_EQ(quantile(values, 0.25), 1.75);
  EXPECT_EQ(quantile(values, 0.5), 3.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 6.9);
  EXPECT_EQ(quantile(values, 1), 9);
  EXPECT_EQ(quantile({7}, 0.3), 7);
}

TEST(Statistics, RanksOfTheIntervalMatchTheBinomial) {
  // From exact binomial coefficients (Python's math.comb).
  const std::pair<std::int64_t, std::int64_t> exact[] = {
      {0, 0},  {1, 0},  {5, 0},  {6, 1},   {8, 1},   {9, 2},   {11, 2},   {12, 3},    {16, 4},
      {17, 5}, {20, 6}, {25, 8}, {30, 10}, {50, 18}, {71, 27}, {100, 40}, {500, 228}, {1000, 469}};
  for (const auto& [n, rank] : exact) EXPECT_EQ(interval_rank(n), rank) << n;
  // Where coefficients exceed every number type: n/2 − 0.98·√n.
  EXPECT_NEAR(static_cast<double>(interval_rank(1'000'000)), 500'000 - 980, 2);
}

TEST(Statistics, FewValuesGiveNoInterval) {
  const Estimate five = estimate({5, 1, 4, 2, 3});
  EXPECT_EQ(five.n, 5);
  EXPECT_EQ(five.median, 3);
  EXPECT_FALSE(five.is_interval());
  EXPECT_EQ(five.low, 1);
  EXPECT_EQ(five.high, 5);
  const Estimate six = estimate({5, 1, 4, 2, 3, 6});
  EXPECT_TRUE(six.is_interval());
  EXPECT_EQ(six.median, 3.5);
  EXPECT_EQ(six.low, 1);
  EXPECT_EQ(six.high, 6);
  const Estimate none = estimate({});
  EXPECT_EQ(none.n, 0);
  EXPECT_FALSE(none.is_interval());
}

TEST(Statistics, TheIntervalCoversTheMedianAtItsLevel) {
  std::mt19937 random(7);
  std::exponential_distribution<double> skewed(1);
  const double median = std::log(2.0);
  for (const int n : {6, 15, 40}) {
    int holds = 0;
    constexpr int trials = 4000;
    for (int t = 0; t < trials; ++t) {
      std::vector<double> values;
      for (int i = 0; i < n; ++i) values.push_back(skewed(random));
      const Estimate found = estimate(std::move(values));
      holds += static_cast<int>(found.low <= median && median <= found.high);
    }
    // At least 0.95 by construction; five standard deviations of a share of 4000 are 0.017.
    EXPECT_GT(holds, (0.95 - 0.017) * trials) << n;
  }
}

}  // namespace
}  // namespace trireme::report
