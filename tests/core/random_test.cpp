#include "trireme/core/random.hpp"

#include <bit>
#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

namespace trireme {
namespace {

using Block = std::array<std::uint32_t, 4>;
const RandomKey key{1234, Purpose::initialization, 7};

// The known answers published with the generator (Random123, kat_vectors).
TEST(Random, PhiloxGivesTheKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, TheCounterHoldsIndexPurposeAndStream) {
  const RandomKey wide{0x0123456789abcdefULL, Purpose::dropout, 5};
  const std::uint64_t index = (std::uint64_t{3} << 34) + 4 * 9 + 2;
  EXPECT_EQ(random_bits(wide, index), philox({9, 3, 2, 5}, {0x89abcdef, 0x01234567})[2]);
  EXPECT_EQ(random_block(wide, index / 4)[2], random_bits(wide, index));
}

TEST(Random, UniformIsOpenAndFlat) {
  constexpr int cells = 256;
  constexpr int draws = 1 << 20;
  std::vector<double> counts(cells);
  for (int i = 0; i < draws; ++i) {
    const float value = uniform(key, i);
    ASSERT_GT(value, 0.0F);
    ASSERT_LT(value, 1.0F);
    ++counts[static_cast<int>(value * cells)];
  }
  const double expected = double{draws} / cells;
  double chi_squared = 0;
  for (const double count : counts)
    chi_squared += (count - expected) * (count - expected) / expected;
  // Mean 255, standard deviation √(2·255); five of them.
  EXPECT_NEAR(chi_squared, 255, 5 * std::sqrt(2 * 255.0));
}

// The same words through the C library in extended precision. Ours has a relative error of about
// eight roundings of 2^-53, and |value| ≤ √(2·33·ln 2) < 6.8: 6.8 · 8 · 1.2e-16 < 1e-14.
TEST(Random, NormalAgreesWithTheLibrary) {
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    const long double u = (random_bits(key, 2 * i) + 0.5L) / 4294967296.0L;
    const long double v = (random_bits(key, 2 * i + 1) + 0.5L) / 4294967296.0L;
    const long double expected =
        std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi_v<long double> * v);
    ASSERT_NEAR(normal(key, i), static_cast<double>(expected), 1e-14) << i;
  }
}

// Standard errors of the mean of x^p over n draws: √((E x^2p − (E x^p)²)/n); five of each.
TEST(Random, NormalHasTheMomentsOfANormal) {
  constexpr int draws = 1 << 20;
  double sum[5] = {};
  for (int i = 0; i < draws; ++i) {
    const double x = normal(key, i);
    double power = 1;
    for (double& each : sum) {
      each += power;
      power *= x;
    }
  }
  const double root = std::sqrt(double{draws});
  EXPECT_NEAR(sum[1] / draws, 0, 5 * std::sqrt(1.0) / root);
  EXPECT_NEAR(sum[2] / draws, 1, 5 * std::sqrt(3.0 - 1) / root);
  EXPECT_NEAR(sum[3] / draws, 0, 5 * std::sqrt(15.0) / root);
  EXPECT_NEAR(sum[4] / draws, 3, 5 * std::sqrt(105.0 - 9) / root);
}

TEST(Random, StreamsAreUncorrelated) {
  constexpr int draws = 1 << 18;
  const RandomKey others[] = {
      {1235, key.purpose, 7}, {1234, Purpose::dropout, 7}, {1234, key.purpose, 8}};
  for (const RandomKey& other : others) {
    double product = 0;
    for (int i = 0; i < draws; ++i) product += normal(key, i) * normal(other, i);
    EXPECT_NEAR(product / draws, 0, 5 / std::sqrt(double{draws}));
  }
}

// A change here changes every initial weight, mask and sample order of every seed.
TEST(Random, BitsNeverChange) {
  std::uint64_t normals = 0;
  std::uint64_t uniforms = 0;
  std::uint64_t order = 0;
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    normals = normals * 1099511628211U + std::bit_cast<std::uint64_t>(normal(key, i));
    uniforms = uniforms * 1099511628211U + std::bit_cast<std::uint32_t>(uniform(key, i));
    order = order * 1099511628211U + permute(key, i, 100'000);
  }
  EXPECT_EQ(normals, 10218822285261664487ULL);
  EXPECT_EQ(uniforms, 6404229135807994239ULL);
  EXPECT_EQ(order, 12826184401773258306ULL);
  EXPECT_EQ(normal(key, 0), -0x1.824cf39dcd389p-1);
}

TEST(Random, ManyNormalsMatchSingleOnesBitForBit) {
  const RandomKey key{0x123456789abcdefULL, Purpose::initialization, 77};
  for (const std::uint64_t first : {0ULL, 1ULL, 127ULL, (1ULL << 33) - 5}) {
    for (const std::size_t count : {1U, 2U, 127U, 128U, 129U, 1000U}) {
      std::vector<double> drawn(count, -99.0);
      normals(key, first, drawn);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint64_t>(drawn[i]),
                  std::bit_cast<std::uint64_t>(normal(key, first + i)))
            << first << " + " << i << " of " << count;
      }
    }
  }
}

TEST(Permute, IsABijection) {
  std::vector<std::uint64_t> sizes = {100, 255, 256, 257, 1000, 4095, 4096, 4097, 65537};
  for (std::uint64_t size = 1; size <= 70; ++size) sizes.push_back(size);
  for (const std::uint64_t size : sizes) {
    std::vector<bool> seen(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t image = permute(key, i, size);
      ASSERT_LT(image, size);
      ASSERT_FALSE(seen[image]) << "size " << size;
      seen[image] = true;
    }
  }
}

TEST(Permute, LargeSizesStayInsideAndDistinct) {
  for (const std::uint64_t size :
       {(1ULL << 32) + 1, (1ULL << 40) + 1, (1ULL << 62) + 1, (1ULL << 63) + 5, ~0ULL}) {
    std::unordered_set<std::uint64_t> images;
    for (std::uint64_t i = 0; i < 2'000; ++i) {
      const std::uint64_t image = permute(key, i % 2 == 0 ? i : size - i, size);
      ASSERT_LT(image, size);
      ASSERT_TRUE(images.insert(image).second);
    }
  }
  EXPECT_THROW(permute(key, 5, 5), std::logic_error);
}

TEST(Permute, KeysGiveDifferentOrders) {
  std::set<std::vector<std::uint64_t>> orders;
  std::vector<RandomKey> keys;
  for (std::uint64_t seed = 0; seed < 32; ++seed) keys.push_back({seed, Purpose::sample_order, 0});
  for (std::uint32_t stream = 1; stream < 32; ++stream) {
    keys.push_back({0, Purpose::sample_order, stream});
  }
  keys.push_back({0, Purpose::window_offset, 0});
  for (const RandomKey& each : keys) {
    std::vector<std::uint64_t> order(37);
    for (std::uint64_t i = 0; i < order.size(); ++i) order[i] = permute(each, i, order.size());
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), keys.size());
}

// Over keys, every order of a few items and every position of many is equally likely. Counts of k
// equally likely outcomes give chi-squared with f = k − 1 degrees of freedom; by the
// Wilson–Hilferty approximation its cube root over f is normal with mean 1 − 2/9f and variance
// 2/9f: five deviations.
double chi_squared_bound(double freedom) {
  const double variance = 2 / (9 * freedom);
  return freedom * std::pow(1 - variance + 5 * std::sqrt(variance), 3);
}

double chi_squared(const std::map<std::uint64_t, double>& counts, double outcomes, double draws) {
  const double expected = draws / outcomes;
  double sum = (outcomes - static_cast<double>(counts.size())) * expected;
  for (const auto& [outcome, count] : counts) {
    sum += (count - expected) * (count - expected) / expected;
  }
  return sum;
}

TEST(Permute, OrdersAreEquallyLikely) {
  constexpr std::uint64_t keys = 20'000;
  double orders = 1;
  for (const std::uint64_t size : {2, 3, 4}) {
    orders *= static_cast<double>(size);
    std::map<std::uint64_t, double> counts;
    for (std::uint64_t seed = 0; seed < keys; ++seed) {
      std::uint64_t order = 0;
      for (std::uint64_t i = 0; i < size; ++i) {
        order = order * size + permute({seed, Purpose::sample_order, 0}, i, size);
      }
      ++counts[order];
    }
    EXPECT_LT(chi_squared(counts, orders, keys), chi_squared_bound(orders - 1)) << size;
  }
}

TEST(Permute, PositionsAreEquallyLikely) {
  constexpr std::uint64_t keys = 20'000;
  for (const std::uint64_t size : {5, 10, 16, 37}) {
    for (const std::uint64_t index : {std::uint64_t{0}, size - 1}) {
      std::map<std::uint64_t, double> counts;
      for (std::uint64_t seed = 0; seed < keys; ++seed) {
        ++counts[permute({seed, Purpose::sample_order, 0}, index, size)];
      }
      const auto outcomes = static_cast<double>(size);
      EXPECT_LT(chi_squared(counts, outcomes, keys), chi_squared_bound(outcomes - 1))
          << size << " " << index;
    }
  }
}

}  // namespace
}  // namespace trireme
