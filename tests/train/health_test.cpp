// Checks of a step's loss and norm: not finite, or far from earlier ones.
#include "trireme/train/health.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "trireme/core/error.hpp"

namespace trireme::train {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Sound steps whose losses and norms swing between 1 and 3 about 2.
Health accustomed(double limit, std::size_t steps) {
  Health health(limit);
  for (std::size_t i = 0; i < steps; ++i) {
    const double value = i % 2 == 0 ? 1 : 3;
    health.note(Verdict::sound, value, value);
  }
  return health;
}

// A NaN fails every comparison, so that a test for "too large" lets it pass.
TEST(Health, NonFiniteValuesAreFoundWithAndWithoutALimit) {
  for (const double limit : {0.0, 3.0}) {
    for (const std::size_t steps : {std::size_t{0}, Health::least}) {
      const Health health = accustomed(limit, steps);
      for (const double bad : {nan, -nan, infinity, -infinity}) {
        EXPECT_EQ(health.judge(bad, 1), Verdict::not_finite);
        EXPECT_EQ(health.judge(1, bad), Verdict::not_finite);
        EXPECT_EQ(health.judge(bad, bad), Verdict::not_finite);
      }
      EXPECT_EQ(health.judge(2, 2), Verdict::sound);
    }
  }
}

TEST(Health, OutliersAreAboveTheLimit) {
  const Health health = accustomed(3, Health::least);
  // 32 values of 2 ± 1: deviation √(32/31).
  const double edge = 2 + 3 * std::sqrt(32.0 / 31);
  EXPECT_EQ(health.judge(edge - 1e-9, 2), Verdict::sound);
  EXPECT_EQ(health.judge(edge + 1e-9, 2), Verdict::outlier);
  EXPECT_EQ(health.judge(2, edge + 1e-9), Verdict::outlier);
  EXPECT_EQ(health.judge(-100, 0), Verdict::sound);  // a low loss is no outlier
}

TEST(Health, TooFewStepsOrNoLimitOrNoSpreadMeanNoOutliers) {
  EXPECT_EQ(accustomed(3, Health::least - 1).judge(1e9, 1e9), Verdict::sound);
  EXPECT_EQ(accustomed(0, Health::window).judge(1e9, 1e9), Verdict::sound);
  Health flat(3);
  for (std::size_t i = 0; i < Health::least; ++i) flat.note(Verdict::sound, 1, 1);
  EXPECT_EQ(flat.judge(1e9, 1e9), Verdict::sound);
}

TEST(Health, OldStepsAreForgottenAndSkippedOnesNotLearned) {
  Health health = accustomed(3, Health::window);
  for (int i = 0; i < 1000; ++i) health.note(Verdict::outlier, 1e9, 1e9);
  EXPECT_EQ(health.skipped_in_a_row(), 1000);
  EXPECT_EQ(health.judge(1e9, 2), Verdict::outlier);
  for (std::size_t i = 0; i < Health::window; ++i) {
    const double value = i % 2 == 0 ? 101 : 103;
    health.note(Verdict::sound, value, value);
  }
  EXPECT_EQ(health.skipped_in_a_row(), 0);
  EXPECT_EQ(health.judge(104, 104), Verdict::sound);
  EXPECT_EQ(health.judge(110, 102), Verdict::outlier);
}

TEST(Health, RestoresFromACheckpointBitForBit) {
  Health health(3);
  for (int i = 0; i < 200; ++i) health.note(Verdict::sound, 2 + std::sin(i), 1 / (1.0 + i));
  health.note(Verdict::not_finite, nan, nan);
  Health again(3);
  again.from_json(nlohmann::json::parse(health.to_json().dump()));
  EXPECT_EQ(again.to_json(), health.to_json());
  EXPECT_EQ(again.skipped_in_a_row(), 1);
}

TEST(Health, DamagedStateIsRefused) {
  for (const char* text :
       {"{}", "[]", "3", R"({"losses": [1], "norms": [], "skipped_in_a_row": 0})",
        R"({"losses": ["x"], "norms": [1], "skipped_in_a_row": 0})",
        R"({"losses": [1], "norms": [1], "skipped_in_a_row": "x"})"}) {
    Health health(3);
    EXPECT_THROW(health.from_json(nlohmann::json::parse(text)), Error) << text;
  }
}

TEST(Health, AnOverflowOfScaledGradientsIsNotAFailure) {
  const double infinite = std::numeric_limits<double>::infinity();
  Health health(0);
  EXPECT_EQ(health.judge(1, infinite, true), Verdict::overflow);
  EXPECT_EQ(health.judge(1, infinite, false), Verdict::not_finite);
  EXPECT_EQ(health.judge(infinite, infinite, true), Verdict::not_finite);
  EXPECT_EQ(health.judge(1, 1, true), Verdict::sound);
  health.note(Verdict::not_finite, 1, infinite);
  health.note(Verdict::overflow, 1, infinite);  // neither counts nor resets the count
  EXPECT_EQ(health.skipped_in_a_row(), 1);
}

}  // namespace
}  // namespace trireme::train
