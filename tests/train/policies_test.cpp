// When a run stops and saves, by a clock that the test moves.
#include "trireme/train/policies.hpp"

#include <csignal>

#include <gtest/gtest.h>

namespace trireme::train {
namespace {

struct FakeSources {
  double now = 0;
  std::optional<double> scheduler;
  int signal = 0;
  StopSources sources() {
    return {.now = [this] { return now; },
            .scheduler_seconds = [this] { return scheduler; },
            .signal = [this] { return signal; }};
  }
};

TrainConfig with_limit(const std::string& limit, double margin) {
  TrainConfig config;
  config.time_limit = limit;
  config.time_margin = margin;
  return config;
}

TEST(StopPolicy, ASignalCountsOnEveryRankAndBeforeTime) {
  FakeSources fake;
  const StopPolicy policy(with_limit("10", 60), fake.sources());
  EXPECT_EQ(policy.wanted(true, 0), StopPolicy::time_is_up);
  EXPECT_EQ(policy.wanted(false, 0), 0);  // the root's clock decides
  fake.signal = SIGUSR1;
  EXPECT_EQ(policy.wanted(true, 0), SIGUSR1);
  EXPECT_EQ(policy.wanted(false, 0), SIGUSR1);
  EXPECT_EQ(policy.reason(SIGUSR1), "signal SIGUSR1");
  EXPECT_EQ(policy.reason(StopPolicy::time_is_up), "its time is up");
}

TEST(StopPolicy, LeavesRoomForTheMarginTheLongestPeriodAndASave) {
  FakeSources fake;
  StopPolicy policy(with_limit("1000", 60), fake.sources());
  const auto last_moment = [&](double save) {
    for (fake.now = 0; fake.now < 1000; fake.now += 0.5) {
      if (policy.wanted(true, save) != 0) return fake.now;
    }
    return fake.now;
  };
  EXPECT_EQ(last_moment(0), 940.5);
  EXPECT_EQ(last_moment(20), 910.5);
  // A period of two steps; the next one may be shorter, but the longest counts.
  policy.note_step(4);
  policy.note_step(6);
  EXPECT_EQ(last_moment(20), 895.5);
  policy.end_period();
  policy.note_step(1);
  policy.end_period();
  EXPECT_EQ(last_moment(20), 895.5);
}

TEST(StopPolicy, TheNearerOfLimitAndSchedulerCounts) {
  FakeSources fake;
  const StopPolicy limited(with_limit("100", 10), fake.sources());
  const StopPolicy unlimited(with_limit("none", 10), fake.sources());
  EXPECT_EQ(limited.wanted(true, 0), 0);
  EXPECT_EQ(unlimited.wanted(true, 0), 0);
  fake.scheduler = 9;
  EXPECT_EQ(limited.wanted(true, 0), StopPolicy::time_is_up);
  EXPECT_EQ(unlimited.wanted(true, 0), StopPolicy::time_is_up);
  fake.scheduler = 1000;
  fake.now = 91;
  EXPECT_EQ(limited.wanted(true, 0), StopPolicy::time_is_up);
  EXPECT_EQ(unlimited.wanted(true, 0), 0);
}

TEST(MultipleBetween, SeesEveryMultipleOnceHoweverStepsAreGrouped) {
  EXPECT_FALSE(multiple_between(0, 0, 100));
  EXPECT_FALSE(multiple_between(4, 0, 3));
  EXPECT_TRUE(multiple_between(4, 3, 4));
  EXPECT_TRUE(multiple_between(4, 3, 7));
  EXPECT_FALSE(multiple_between(4, 4, 7));
  EXPECT_TRUE(multiple_between(4, 5, 9));
}

}  // namespace
}  // namespace trireme::train
