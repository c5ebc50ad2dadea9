// Assignment of units to virtual stages, against every possible split of small cases.
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/schedule/schedule.hpp"

#include "schedule/support.hpp"

namespace trireme::schedule {
namespace {

/// All splits, in ascending order of the numbers of units of the first, second, … run.
void every_split(int units, int runs, std::vector<int> begun,
                 std::vector<std::vector<int>>& result) {
  const int first = begun.back();
  if (runs == 1) {
    begun.push_back(units);
    result.push_back(begun);
    return;
  }
  for (int end = first + 1; end <= units - (runs - 1); ++end) {
    begun.push_back(end);
    every_split(units, runs - 1, begun, result);
    begun.pop_back();
  }
}

/// (largest run's cost, sum of squares).
std::pair<double, double> merit(const std::vector<double>& costs, const std::vector<int>& split) {
  double largest = 0, squares = 0;
  for (std::size_t run = 0; run + 1 < split.size(); ++run) {
    double sum = 0;
    for (int unit = split[run]; unit < split[run + 1]; ++unit)
      sum += costs[static_cast<std::size_t>(unit)];
    largest = std::max(largest, sum);
    squares += sum * sum;
  }
  return {largest, squares};
}

TEST(SplitUnits, IsTheFirstBestOfAll) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const int units = 1 + static_cast<int>(random() % 9);
    const int runs = 1 + static_cast<int>(random() % static_cast<unsigned>(units));
    std::vector<double> costs;
    for (int unit = 0; unit < units; ++unit) costs.push_back(static_cast<double>(random() % 6));
    std::vector<std::vector<int>> splits;
    every_split(units, runs, {0}, splits);
    const auto best =
        std::min_element(splits.begin(), splits.end(), [&](const auto& a, const auto& b) {
          return merit(costs, a) < merit(costs, b);
        });  // the first of equals
    EXPECT_EQ(split_units(costs, runs), *best);
  }
}

TEST(SplitUnits, WeighsEmbeddingAndHead) {
  // Embedding 0.1, twelve blocks, a head of three blocks' cost: the last stage has one block less
  // than its share.
  std::vector<double> costs(14, 1.0);
  costs.front() = 0.1, costs.back() = 3;
  EXPECT_EQ(split_units(costs, 4), (std::vector<int>{0, 4, 8, 12, 14}));
  // Equal runs come first if blocks do not divide.
  EXPECT_EQ(split_units(std::vector<double>(10, 0.1), 4), (std::vector<int>{0, 2, 4, 7, 10}));
  EXPECT_EQ(split_units(std::vector<double>(3, 0.0), 3), (std::vector<int>{0, 1, 2, 3}));
}

TEST(SplitUnits, RefusesMoreStagesThanUnits) {
  EXPECT_EQ(error_of([] { split_units(std::vector<double>(6, 1.0), 8); }),
            "parallel.pipeline x parallel.virtual_stages = 8: each needs at least one of the "
            "model's 6 units (embedding, blocks, head); use a product of at most 6, or more "
            "layers");
}

}  // namespace
}  // namespace trireme::schedule
