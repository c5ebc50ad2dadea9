#include "trireme/data/blend.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::data::test {
namespace {

using testing::ElementsAre;

std::vector<double> random_weights(std::mt19937& random) {
  std::vector<double> weights(1 + random() % 7);
  // Few digits, many digits, far apart, and equal ones.
  const auto kind = random() % 4;
  for (double& weight : weights) {
    const double whole = static_cast<double>(1 + random() % 20);
    const double fine = static_cast<double>(1 + random() % 997) / 1000;
    weight = kind == 0 ? whole : kind == 1 ? fine : kind == 2 ? std::pow(whole, 3) : 1;
    if (random() % 8 == 0) weight = 0;
  }
  weights[random() % weights.size()] = 2;
  return weights;
}

TEST(Shares, AreExactForWeightsOfFewDigits) {
  const auto parts = [](std::vector<double> weights) { return shares_of(weights).parts; };
  EXPECT_THAT(parts({0.7, 0.3}), ElementsAre(7, 3));
  EXPECT_THAT(parts({0.1, 0.2, 0.7}), ElementsAre(1, 2, 7));
  EXPECT_THAT(parts({50, 25, 25}), ElementsAre(2, 1, 1));
  EXPECT_THAT(parts({0.123456, 0.876544}), ElementsAre(1929, 13696));
  EXPECT_THAT(parts({0, 5}), ElementsAre(0, 1));
  EXPECT_THAT(parts({1e15, 1e15}), ElementsAre(1, 1));
}

TEST(Shares, AreNearestForOthers) {
  const std::vector<std::vector<double>> all{
      {1.0 / 3, 2.0 / 3}, {std::sqrt(2), std::sqrt(3), 1}, {1e9 + 7, 1e9 + 9, 3}, {1e-12, 1}};
  for (const std::vector<double>& weights : all) {
    const Shares shares = shares_of(weights);
    EXPECT_EQ(shares.all, most_parts);
    EXPECT_EQ(std::accumulate(shares.parts.begin(), shares.parts.end(), std::int64_t{0}),
              shares.all);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double ideal = weights[i] / sum * static_cast<double>(shares.all);
      EXPECT_LE(std::abs(static_cast<double>(shares.parts[i]) - ideal), 1) << i;
      EXPECT_GE(shares.parts[i], 1);
    }
  }
  // Of many tiny ones each still gives something.
  std::vector<double> weights(1000, 1e-15);
  weights.push_back(1);
  EXPECT_EQ(shares_of(weights).parts.back(), most_parts - 1000);
}

TEST(Blend, AHandCheckedOrder) {
  // Slots by deadline, with 3, 2 and 1 of 6: a before 1, 3, 5; b before 2, 5; c before 5.
  const Blend blend({{0, shares_of(std::vector<double>{3, 2, 1})}}, {0, 0, 0});
  std::vector<std::size_t> sources;
  for (std::int64_t n = 0; n < 7; ++n) sources.push_back(blend.at(n).source);
  EXPECT_THAT(sources, ElementsAre(0, 1, 0, 1, 0, 2, 0));
  EXPECT_EQ(blend.at(3), (Blend::Place{1, 1}));
  EXPECT_EQ(blend.at(5), (Blend::Place{2, 0}));
  EXPECT_EQ(blend.at(6), (Blend::Place{0, 3}));
  EXPECT_THAT(blend.given(4), ElementsAre(2, 2, 0));
  EXPECT_THAT(blend.given(6'000'003), ElementsAre(3'000'002, 2'000'001, 1'000'000));
}

TEST(Blend, EverySourceStaysWithinOneSampleOfItsWeight) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const Shares shares = shares_of(random_weights(random));
    const std::size_t count = shares.parts.size();
    const std::int64_t first = static_cast<std::int64_t>(random() % 1000);
    const Blend blend({{first, shares}}, std::vector<std::int64_t>(count));
    std::vector<std::int64_t> given(count);
    const std::int64_t samples = std::min<std::int64_t>(2 * shares.all + 3, 20'000);
    for (std::int64_t n = 1; n <= samples; ++n) {
      const Blend::Place place = blend.at(first + n - 1);
      ASSERT_EQ(place.sample, given[place.source]) << "trial " << trial << ", sample " << n;
      ++given[place.source];
      for (std::size_t i = 0; i < count; ++i) {
        // |given − n · part / all| < 1, in integers.
        ASSERT_LT(std::abs(given[i] * shares.all - n * shares.parts[i]), shares.all)
            << "trial " << trial << ", sample " << n << ", source " << i;
      }
    }
    EXPECT_EQ(blend.given(first + samples), given);
  }
}

TEST(Blend, WithinOneSampleAlsoWithAMillionParts) {
  std::vector<double> weights;
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) weights.push_back(static_cast<double>(1 + random() % 1'000'000));
  const Shares shares = shares_of(weights);
  ASSERT_EQ(shares.all, most_parts);
  const Blend blend({{0, shares}}, std::vector<std::int64_t>(weights.size()));
  std::vector<std::int64_t> given(weights.size());
  for (std::int64_t n = 1; n <= shares.all; ++n) {
    const std::size_t source = blend.at(n - 1).source;
    ++given[source];
    // A source is furthest ahead just after a sample of its, and furthest behind just before.
    ASSERT_LT(std::abs(given[source] * shares.all - n * shares.parts[source]), shares.all) << n;
    ASSERT_LT((n - 1) * shares.parts[source] - (given[source] - 1) * shares.all, shares.all) << n;
  }
  EXPECT_EQ(given, shares.parts);
}

/// 10⁵ cases: random weights, phases and restarts. Whatever the cut, each source's samples come in
/// order and none twice.
TEST(Blend, PhasesAndRestartsLoseAndRepeatNothing) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 100'000; ++trial) {
    std::vector<BlendPhase> phases;
    const std::size_t sources = 1 + random() % 4;
    std::int64_t first = 0;
    for (std::uint32_t i = 0; i <= random() % 3; ++i) {
      std::vector<double> weights(sources);
      for (double& weight : weights) weight = static_cast<double>(random() % 6);
      weights[random() % sources] = 1;
      phases.push_back({first, shares_of(weights)});
      first += 1 + random() % 9;
    }
    const Blend whole(phases, std::vector<std::int64_t>(sources));
    std::vector<std::int64_t> next(sources);
    for (std::int64_t n = 0; n < 24; ++n) {
      const Blend::Place place = whole.at(n);
      ASSERT_EQ(place.sample, next[place.source]) << "trial " << trial << ", sample " << n;
      ++next[place.source];
      ASSERT_EQ(whole.given(n + 1), next) << "trial " << trial << ", sample " << n;
    }
    // From any sample on, the phase it is in and what it began with give the same order.
    const auto from = static_cast<std::int64_t>(random() % 24);
    const Blend::Begun& begun = whole.begun(from);
    std::vector<BlendPhase> left{begun.phase};
    for (const BlendPhase& phase : phases) {
      if (phase.first > from) left.push_back(phase);
    }
    const Blend again(left, begun.given);
    // And with other weights from there on, sources go on where they are.
    const Blend other({{from, shares_of(std::vector<double>(sources, 1))}}, whole.given(from));
    std::vector<std::int64_t> others = whole.given(from);
    for (std::int64_t n = from; n < from + 24; ++n) {
      ASSERT_EQ(again.at(n), whole.at(n)) << "trial " << trial << ", sample " << n;
      const Blend::Place place = other.at(n);
      ASSERT_EQ(place.sample, others[place.source]++) << "trial " << trial << ", sample " << n;
    }
  }
}

}  // namespace
}  // namespace trireme::data::test
