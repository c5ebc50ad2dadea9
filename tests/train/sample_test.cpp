#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/train/setup.hpp"

namespace trireme::train {
namespace {

// Probabilities 0.5, 0.3, 0.2 in the order of ids 2, 0, 1.
const std::vector<float> logits{std::log(0.3F), std::log(0.2F), std::log(0.5F)};

TEST(Sample, ZeroTemperatureTakesTheMostLikely) {
  EXPECT_EQ(sample_token(logits, 0, 0, 1, 0.999), 2);
}

TEST(Sample, FollowsTheDistribution) {
  EXPECT_EQ(sample_token(logits, 1, 0, 1, 0.49), 2);
  EXPECT_EQ(sample_token(logits, 1, 0, 1, 0.51), 0);
  EXPECT_EQ(sample_token(logits, 1, 0, 1, 0.79), 0);
  EXPECT_EQ(sample_token(logits, 1, 0, 1, 0.81), 1);
}

TEST(Sample, TopKKeepsTheMostLikely) {
  EXPECT_EQ(sample_token(logits, 1, 2, 1, 0.999), 0);
  EXPECT_EQ(sample_token(logits, 1, 1, 1, 0.999), 2);
}

TEST(Sample, TopPKeepsTheFewestThatReachIt) {
  EXPECT_EQ(sample_token(logits, 1, 0, 0.4, 0.999), 2);
  EXPECT_EQ(sample_token(logits, 1, 0, 0.6, 0.999), 0);
  EXPECT_EQ(sample_token(logits, 1, 0, 0.9, 0.999), 1);
}

TEST(Sample, HighTemperatureFlattens) {
  // At temperature 2 the weights are √0.5, √0.3, √0.2.
  const double all = std::sqrt(0.5) + std::sqrt(0.3) + std::sqrt(0.2);
  EXPECT_EQ(sample_token(logits, 2, 0, 1, std::sqrt(0.5) / all - 0.01), 2);
  EXPECT_EQ(sample_token(logits, 2, 0, 1, std::sqrt(0.5) / all + 0.01), 0);
}

}  // namespace
}  // namespace trireme::train
