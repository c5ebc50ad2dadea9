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
    health.note(StepOutcome::sound, value, value);
  }
  return health;
}

// A NaN fails every comparison, so that a test for "too large" lets it pass.
TEST(Health, NonFiniteValuesAreFoundWithAndWithoutALimit) {
  for (const double limit : {0.0, 3.0}) {
    for (const std::size_t steps : {std::size_t{0}, Health::least}) {
      const Health health = accustomed(limit, steps);
      for (const double bad : {nan, -nan, infinity, -infinity}) {
        EXPECT_EQ(health.judge(bad, 1), StepOutcome::not_finite);
        EXPECT_EQ(health.judge(1, bad), StepOutcome::not_finite);
        EXPECT_EQ(health.judge(bad, bad), StepOutcome::not_finite);
      }
      EXPECT_EQ(health.judge(2, 2), StepOutcome::sound);
    }
  }
}

TEST(Health, OutliersAreAboveTheLimit) {
  const Health health = accustomed(3, Health::least);
  // 32 values of 2 ± 1: deviation √(32/31).
  const double edge = 2 + 3 * std::sqrt(32.0 / 31);
  EXPECT_EQ(health.judge(edge - 1e-9, 2), StepOutcome::sound);
  EXPECT_EQ(health.judge(edge + 1e-9, 2), StepOutcome::outlier);
  EXPECT_EQ(health.judge(2, edge + 1e-9), StepOutcome::outlier);
  EXPECT_EQ(health.judge(-100, 0), StepOutcome::sound);  // good news is none
}

TEST(Health, TooFewStepsOrNoLimitOrNoSpreadMeanNoOutliers) {
  EXPECT_EQ(accustomed(3, Health::least - 1).judge(1e9, 1e9), StepOutcome::sound);
  EXPECT_EQ(accustomed(0, Health::window).judge(1e9, 1e9), StepOutcome::sound);
  Health flat(3);
  for (std::size_t i = 0; i < Health::least; ++i) flat.note(StepOutcome::sound, 1, 1);
  EXPECT_EQ(flat.judge(1e9, 1e9), StepOutcome::sound);
}

TEST(Health, OldStepsAreForgottenAndSkippedOnesNotLearned) {
  Health health = accustomed(3, Health::window);
  for (int i = 0; i < 1000; ++i) health.note(StepOutcome::outlier, 1e9, 1e9);
  EXPECT_EQ(health.skipped_in_a_row(), 1000);
  EXPECT_EQ(health.judge(1e9, 2), StepOutcome::outlier);
  for (std::size_t i = 0; i < Health::window; ++i) {
    const double value = i % 2 == 0 ? 101 : 103;
    health.note(StepOutcome::sound, value, value);
  }
  EXPECT_EQ(health.skipped_in_a_row(), 0);
  EXPECT_EQ(health.judge(104, 104), StepOutcome::sound);
  EXPECT_EQ(health.judge(110, 102), StepOutcome::outlier);
}

TEST(Health, ComesBackFromACheckpointToTheLastBit) {
  Health health(3, true);
  for (int i = 0; i < 200; ++i) health.note(StepOutcome::sound, 2 + std::sin(i), 1 / (1.0 + i));
  health.note(StepOutcome::not_finite, nan, nan);
  health.note(StepOutcome::overflow, 1, infinity);
  Health again(3, true);
  again.from_json(nlohmann::json::parse(health.to_json().dump()), "checkpoint");
  EXPECT_EQ(again.to_json(), health.to_json());
  EXPECT_EQ(again.skipped_in_a_row(), 1);
  EXPECT_EQ(again.loss_scale(), optim::LossScale::first / 2);
}

TEST(Health, DamagedStateIsRefused) {
  for (const char* text : {R"({"health": {}})", R"({"health": []})", R"({"health": 3})",
                           R"({"health": {"losses": [1], "norms": [], "skipped_in_a_row": 0}})",
                           R"({"health": {"losses": ["x"], "norms": [1], "skipped_in_a_row": 0}})",
                           R"({"health": {"losses": [1], "norms": [1], "skipped_in_a_row": "x"}})",
                           R"({"loss_scale": 2})", R"({"loss_scale": {"value": 2}})",
                           R"({"loss_scale": {"value": "2", "steps_since_change": 0}})",
                           R"({"loss_scale": {"value": 3, "steps_since_change": 0}})"}) {
    Health health(3);
    EXPECT_THROW(health.from_json(nlohmann::json::parse(text), "checkpoint"), Error) << text;
  }
  Health(3).from_json(nlohmann::json::object(), "checkpoint");  // an import has neither
}

TEST(Health, AnOverflowOfScaledGradientsIsNotAFailure) {
  Health scaled(0, true), unscaled(0);
  EXPECT_EQ(scaled.judge(1, infinity), StepOutcome::overflow);
  EXPECT_EQ(unscaled.judge(1, infinity), StepOutcome::not_finite);
  EXPECT_EQ(scaled.judge(infinity, infinity), StepOutcome::not_finite);
  EXPECT_EQ(scaled.judge(1, 1), StepOutcome::sound);
  scaled.note(StepOutcome::not_finite, 1, infinity);
  EXPECT_EQ(scaled.loss_scale(), optim::LossScale::first);
  scaled.note(StepOutcome::overflow, 1, infinity);  // neither one more nor the end of the row
  EXPECT_EQ(scaled.skipped_in_a_row(), 1);
  EXPECT_EQ(scaled.loss_scale(), optim::LossScale::first / 2);
  EXPECT_EQ(unscaled.loss_scale(), 1);
}

// Where ranks disagree, the largest value counts.
TEST(StepOutcome, TheMostSevereIsTheLargest) {
  EXPECT_LT(StepOutcome::sound, StepOutcome::overflow);
  EXPECT_LT(StepOutcome::overflow, StepOutcome::not_finite);
  EXPECT_LT(StepOutcome::not_finite, StepOutcome::outlier);
  EXPECT_EQ(name_of(StepOutcome::not_finite), "not finite");
}

}  // namespace
}  // namespace trireme::train
