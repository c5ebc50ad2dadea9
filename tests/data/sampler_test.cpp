#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/data/loader.hpp"

#include "support.hpp"

namespace trireme::data::test {
namespace {

using testing::HasSubstr;

std::vector<std::int64_t> epoch_of(const Sampler& sampler, std::int64_t epoch) {
  std::vector<std::int64_t> begins;
  for (std::int64_t i = 0; i < sampler.windows_per_epoch(); ++i) {
    begins.push_back(sampler.begin(epoch * sampler.windows_per_epoch() + i));
  }
  return begins;
}

struct Case {
  std::int64_t tokens, length, group_tokens;
};

TEST(Sampler, EveryWindowOnceInEveryEpoch) {
  for (const Case& c : {Case{2, 1, 1}, Case{9, 8, 100}, Case{15, 8, 8}, Case{16, 8, 8},
                        Case{24, 8, 8}, Case{25, 8, 8}, Case{1000, 7, 50}, Case{1000, 7, 1},
                        Case{1000, 1, 100}, Case{5003, 16, 333}, Case{5003, 16, 1 << 20}}) {
    const Sampler sampler(c.tokens, c.length, c.group_tokens, 42, true);
    const std::int64_t windows = sampler.windows_per_epoch();
    // At most one window fewer than fit without an offset.
    EXPECT_GE(windows, std::max<std::int64_t>(1, (c.tokens - 1) / c.length - 1));
    for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
      std::vector<std::int64_t> begins = epoch_of(sampler, epoch);
      std::sort(begins.begin(), begins.end());
      EXPECT_GE(begins.front(), 0);
      EXPECT_LT(begins.front(), c.length);
      for (std::size_t i = 0; i < begins.size(); ++i) {
        EXPECT_EQ(begins[i], begins[0] + static_cast<std::int64_t>(i) * c.length);
      }
      EXPECT_LE(begins.back() + c.length + 1, c.tokens);
    }
  }
}

TEST(Sampler, WithoutShufflingInFileOrder) {
  const Sampler sampler(100, 9, 50, 1, false);
  EXPECT_EQ(sampler.windows_per_epoch(), 11);
  for (std::int64_t i = 0; i < 30; ++i) EXPECT_EQ(sampler.begin(i), i % 11 * 9);
}

TEST(Sampler, PureInSeedAndNumber) {
  const Sampler one(100'000, 32, 5000, 7, true);
  const Sampler same(100'000, 32, 5000, 7, true);
  const Sampler other(100'000, 32, 5000, 8, true);
  std::int64_t differ = 0;
  for (std::int64_t i = 10'000; i-- > 0;) {  // backwards: no state
    EXPECT_EQ(one.begin(i), same.begin(i));
    differ += one.begin(i) != other.begin(i) ? 1 : 0;
  }
  EXPECT_GT(differ, 9900);
}

TEST(Sampler, EpochsDifferInOrderAndOffset) {
  const Sampler sampler(100'000, 32, 5000, 7, true);
  std::set<std::vector<std::int64_t>> orders;
  std::set<std::int64_t> offsets;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const std::vector<std::int64_t> begins = epoch_of(sampler, epoch);
    orders.insert(begins);
    offsets.insert(*std::min_element(begins.begin(), begins.end()));
  }
  EXPECT_EQ(orders.size(), 20U);
  // 20 draws of 32 values leave about 15 distinct ones; 8 or fewer have probability below 1e-6.
  EXPECT_GT(offsets.size(), 8U);
}

TEST(Sampler, WorksFromOneGroupAtATime) {
  const std::int64_t length = 10;
  const std::int64_t group = 37;  // windows
  const Sampler sampler(10'100, length, group * length, 3, true);
  const std::int64_t windows = sampler.windows_per_epoch();
  ASSERT_NE(windows % group, 0);  // a smaller last group
  std::set<std::int64_t> places_of_rest;
  for (std::int64_t epoch = 0; epoch < 12; ++epoch) {
    const std::vector<std::int64_t> begins = epoch_of(sampler, epoch);
    std::vector<std::int64_t> visited;
    for (const std::int64_t begin : begins) {
      const std::int64_t number = begin / length / group;
      if (visited.empty() || visited.back() != number) visited.push_back(number);
    }
    const std::int64_t groups = (windows + group - 1) / group;
    EXPECT_EQ(visited.size(), static_cast<std::size_t>(groups));  // each entered once
    const auto rest = std::find(visited.begin(), visited.end(), groups - 1);
    places_of_rest.insert(rest - visited.begin());
    EXPECT_FALSE(std::is_sorted(begins.begin(), begins.begin() + group));
  }
  EXPECT_GT(places_of_rest.size(), 3U);
}

TEST(Sampler, TooFewTokensAreNamed) {
  const std::string message = error_of([] { Sampler(64, 64, 100, 1, true); });
  EXPECT_THAT(message, HasSubstr("64 tokens cannot hold one window of 64 tokens"));
  EXPECT_THAT(message, HasSubstr("at most 63"));
  EXPECT_THROW(Sampler(0, 1, 1, 1, false), AgreedError);
  EXPECT_THROW(Sampler(10, 0, 1, 1, false), AgreedError);
}

}  // namespace
}  // namespace trireme::data::test
