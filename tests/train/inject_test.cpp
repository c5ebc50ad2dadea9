// Faults made on purpose: when and where they strike.
#include "trireme/train/inject.hpp"

#include <chrono>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.hpp"

namespace trireme::train {
namespace {

using ::testing::HasSubstr;

data::Batch batch_of_ones() {
  data::Batch batch;
  batch.weights = {1, 1};
  return batch;
}

bool strikes(const FaultInjector& faults, std::int64_t step) {
  data::Batch batch = batch_of_ones();
  faults.into_batch(batch, step);
  EXPECT_EQ(batch.weights.back(), 1);
  return std::isnan(batch.weights.front());
}

bool strikes_once(FaultInjector& faults, std::int64_t step) {
  data::Batch batch = batch_of_ones();
  faults.into_batch_once(batch, step);
  return std::isnan(batch.weights.front());
}

TEST(ParseFaults, KindStepAndRank) {
  EXPECT_TRUE(parse_faults("none").empty());
  const auto faults = parse_faults("nan@7, spike@8/2,flip@12/1");
  ASSERT_EQ(faults.size(), 3U);
  EXPECT_EQ(faults[0].kind, Fault::Kind::nan);
  EXPECT_EQ(faults[0].step, 7);
  EXPECT_EQ(faults[0].rank, 0);
  EXPECT_EQ(faults[1].kind, Fault::Kind::spike);
  EXPECT_EQ(faults[1].rank, 2);
  EXPECT_EQ(faults[2].kind, Fault::Kind::flip);
  EXPECT_EQ(faults[2].step, 12);
  for (const char* wrong : {"nan", "nan@", "nan@0", "nan@-1", "nan@3/", "nan@3/-1", "x@3",
                            "nan@3,,", "@3", "nan@3/1/2"}) {
    EXPECT_THAT(error_of([&] { parse_faults(wrong); }), HasSubstr("train.inject = ")) << wrong;
  }
}

TEST(FaultInjector, StrikesItsStepOnItsRankAlone) {
  const auto faults = parse_faults("nan@3/1, inf@4/1");
  const FaultInjector own(faults, 1), other(faults, 0);
  for (std::int64_t step = 1; step < 6; ++step) {
    EXPECT_EQ(strikes(own, step), step == 3) << step;
    EXPECT_FALSE(strikes(other, step)) << step;
  }
}

// An asynchronous worker cannot know which steps it will have.
TEST(FaultInjector, OnceStrikesTheFirstStepFromItsOwnOn) {
  FaultInjector faults(parse_faults("nan@3"), 0);
  EXPECT_FALSE(strikes_once(faults, 2));
  EXPECT_TRUE(strikes_once(faults, 5));
  EXPECT_FALSE(strikes_once(faults, 5));
  EXPECT_FALSE(strikes_once(faults, 6));
}

TEST(FaultInjector, StrikesEveryRankWithTheSameBatch) {
  const auto faults = parse_faults("nan@3/1");
  const auto pairs = [](int own) { return [own](int rank) { return rank / 2 == own / 2; }; };
  EXPECT_TRUE(strikes(FaultInjector(faults, 0, pairs(0)), 3));
  EXPECT_FALSE(strikes(FaultInjector(faults, 2, pairs(2)), 3));
}

TEST(FaultInjector, SlowsOneRankByItsFactor) {
  const auto faults = parse_faults("slow@3/1");
  EXPECT_EQ(FaultInjector(faults, 1).slowness(), 3);
  EXPECT_EQ(FaultInjector(faults, 0).slowness(), 1);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  FaultInjector(faults, 1).slow_down(0.01);
  EXPECT_GE(std::chrono::duration<double>(Clock::now() - begin).count(), 0.02);
}

}  // namespace
}  // namespace trireme::train
