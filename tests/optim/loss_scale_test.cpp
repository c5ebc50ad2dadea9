#include <limits>

#include <gtest/gtest.h>

#include "trireme/core/error.hpp"
#include "trireme/optim/optimizer.hpp"

namespace trireme::optim {
namespace {

TEST(LossScale, IsOneIfNotDynamic) {
  LossScale scale(false);
  scale.note(true);
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.may_shrink());
}

TEST(LossScale, HalvesAtOnceAndDoublesAfterPatience) {
  LossScale scale(true);
  scale.note(true);
  scale.note(true);
  EXPECT_EQ(scale.value(), LossScale::first / 4);
  for (std::int64_t i = 1; i < LossScale::patience; ++i) scale.note(false);
  EXPECT_EQ(scale.value(), LossScale::first / 4);
  scale.note(false);
  EXPECT_EQ(scale.value(), LossScale::first / 2);
  // An overflow restarts the count.
  for (std::int64_t i = 1; i < LossScale::patience; ++i) scale.note(false);
  scale.note(true);
  scale.note(false);
  EXPECT_EQ(scale.value(), LossScale::first / 4);
}

TEST(LossScale, StaysWithinItsBounds) {
  LossScale scale(true);
  for (int i = 0; i < 40; ++i) scale.note(true);
  EXPECT_EQ(scale.value(), LossScale::least);
  EXPECT_FALSE(scale.may_shrink());
  for (std::int64_t i = 0; i < 40 * LossScale::patience; ++i) scale.note(false);
  EXPECT_EQ(scale.value(), LossScale::most);
}

TEST(LossScale, ResumesFromSavedState) {
  LossScale one(true), other(true);
  for (int i = 0; i < 7; ++i) one.note(false);
  one.note(true);
  one.note(false);
  other.restore(one.value(), one.steps_since_change());
  for (std::int64_t i = 0; i < LossScale::patience; ++i) {
    one.note(false);
    other.note(false);
    ASSERT_EQ(one.value(), other.value());
  }
  for (const double damaged : {0.0, 3.0, -2.0, 1e30, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(other.restore(damaged, 0), Error) << damaged;
  }
  EXPECT_THROW(other.restore(2, LossScale::patience), Error);
  EXPECT_THROW(other.restore(2, -1), Error);
}

}  // namespace
}  // namespace trireme::optim
