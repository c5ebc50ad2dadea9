#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "trireme/optim/optimizer.hpp"

namespace trireme::optim {
namespace {

OptimConfig config_of(const std::string& schedule) {
  return {
      .learning_rate = 2.0, .schedule = schedule, .warmup_steps = 4, .final_learning_rate = 0.25};
}

TEST(Schedule, WarmupIsLinearAndReachesThePeak) {
  for (const char* name : {"constant", "linear", "cosine", "wsd"}) {
    const OptimConfig config = config_of(name);
    EXPECT_DOUBLE_EQ(learning_rate(config, 0, 100), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(config, 3, 100), 2.0);
    EXPECT_DOUBLE_EQ(learning_rate(config, 4, 100), 2.0) << name;
  }
}

TEST(Schedule, ConstantStays) {
  EXPECT_DOUBLE_EQ(learning_rate(config_of("constant"), 99, 100), 2.0);
}

TEST(Schedule, LinearFallsToTheFinalShare) {
  const OptimConfig config = config_of("linear");
  EXPECT_DOUBLE_EQ(learning_rate(config, 52, 100), 2.0 - 0.5 * 1.5);  // half of the 96 steps
  EXPECT_DOUBLE_EQ(learning_rate(config, 100, 100), 0.5);
}

TEST(Schedule, CosineHasItsQuarterPoints) {
  const OptimConfig config = config_of("cosine");
  EXPECT_NEAR(learning_rate(config, 52, 100), 2.0 - 0.5 * 1.5, 1e-12);
  EXPECT_NEAR(learning_rate(config, 28, 100), 2.0 - 1.5 * 0.5 * (1 - std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(learning_rate(config, 100, 100), 0.5, 1e-12);
}

TEST(Schedule, DecayStepsEndEarlyAndStay) {
  OptimConfig config = config_of("cosine");
  config.decay_steps = 10;
  EXPECT_NEAR(learning_rate(config, 14, 100), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(config, 80, 100), 0.5, 1e-12);
}

TEST(Schedule, WarmupStableDecayFallsAtTheEnd) {
  OptimConfig config = config_of("wsd");
  EXPECT_DOUBLE_EQ(learning_rate(config, 90, 100), 2.0);  // a tenth of the steps decays
  EXPECT_DOUBLE_EQ(learning_rate(config, 95, 100), 2.0 - 0.5 * 1.5);
  config.decay_steps = 40;
  EXPECT_DOUBLE_EQ(learning_rate(config, 60, 100), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 80, 100), 2.0 - 0.5 * 1.5);
}

}  // namespace
}  // namespace trireme::optim
