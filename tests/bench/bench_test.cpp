// The basis of benchmarks: their arithmetic, the numbers they check with, and the reference
// attention, which must detect wrong results.
#include <cmath>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/bench/benchmarks.hpp"
#include "trireme/bench/exact.hpp"

namespace trireme::bench {
namespace {

TEST(Times, AreOfAllValues) {
  std::vector<double> seconds;
  for (int i = 200; i >= 1; --i) seconds.push_back(i);
  const Times times = times_of(seconds);
  EXPECT_EQ(times.minimum, 1);
  EXPECT_EQ(times.maximum, 200);
  EXPECT_EQ(times.average, 100.5);
  EXPECT_EQ(times.p99, 198);  // 198 of 200 are at most that
  EXPECT_EQ(times_of({3}).p99, 3);
  EXPECT_EQ(times_of({1, 2}).p99, 2);
}

TEST(Sizes, GrowUpToTheEnd) {
  EXPECT_THAT((Sizes{8, 64, 2}.all()), testing::ElementsAre(8, 16, 32, 64));
  EXPECT_THAT((Sizes{10, 99, 3}.all()), testing::ElementsAre(10, 30, 90));
  EXPECT_THROW((Sizes{5, 4, 2}.all()), ConfigError);
  EXPECT_EQ((Sizes{1, INT64_MAX, 1 << 30}.all().size()), 3U);
}

/// Bytes that a rank must send, counted by message in the simplest schemes that reach the bound: S
/// bytes, n ranks.
TEST(BusFactor, IsTheMinimumThatARankMustSend) {
  for (const int n : {2, 3, 4, 8}) {
    const double slice = 1.0 / n;
    double scatter = 0, gather = 0;
    for (int other = 1; other < n; ++other) {
      scatter += slice;  // its share of every other rank's sum
      gather += slice;   // its own slice, to every other rank
    }
    EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, n), scatter);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, n), gather);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::all_to_all, n), scatter);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, n), scatter + gather);
    EXPECT_EQ(bus_factor(Collective::broadcast, n), 1);
    EXPECT_EQ(bus_factor(Collective::send_receive, n), 1);
  }
  for (int i = 0; i < static_cast<int>(Collective::count); ++i) {
    EXPECT_EQ(bus_factor(static_cast<Collective>(i), 1), 0);
  }
}

TEST(Numbers, AddUpWithoutRoundingInEveryType) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64}) {
    for (const std::int64_t ranks : {1, 2, 3, 64, 256}) {
      const Numbers numbers = Numbers::for_sums_of(ranks, type);
      ASSERT_GE(numbers.modulus, 2);
      const std::int64_t most = ranks * (numbers.modulus - 1);
      EXPECT_LE(most, exact_limit(type)) << ranks;
      std::byte memory[8];
      for (std::int64_t n = 0; n <= std::min<std::int64_t>(most, 4096); ++n) {
        store(type, memory, 0, static_cast<double>(n));
        ASSERT_EQ(load(type, memory, 0), static_cast<double>(n)) << name_of(type);
      }
    }
  }
}

TEST(Numbers, DifferBetweenPositionsAndRanks) {
  const Numbers numbers{64};
  std::set<std::int64_t> seen;
  int alike = 0;
  for (std::int64_t i = 0; i < 4096; ++i) {
    seen.insert(numbers.at(3, i));
    EXPECT_GE(numbers.at(3, i), 0);
    alike += numbers.at(3, i) == numbers.at(4, i) ? 1 : 0;
    alike += numbers.at(3, i) == numbers.at(3, i + 1) ? 1 : 0;
  }
  EXPECT_EQ(seen.size(), 64U);
  EXPECT_LT(alike, 8192 / 64 * 2);  // one in 64 by chance
}

TEST(CountWrong, ChecksEveryElement) {
  device::Device& device = device::host_device();
  std::vector<float> x(100);
  const Tensor tensor(x.data(), {100});
  const auto value = [](std::int64_t i) { return i % 7; };
  fill_with(device, tensor, value);
  EXPECT_EQ(count_wrong(device, tensor, value), 0);
  x[99] += 1;
  x[0] = std::nanf("");
  EXPECT_EQ(count_wrong(device, tensor, value), 2);
  poison(device, tensor);
  EXPECT_EQ(count_wrong(device, tensor, value), 100);
}

TEST(Products, OfALayerAreForwardAndBothBackwards) {
  // 5 tokens of 3 numbers through a weight [7, 3].
  const auto all = products_of_layer({5, 7, 3});
  ASSERT_EQ(all.size(), 3U);
  const auto is = [](const Product& p, Form form, std::int64_t m, std::int64_t n, std::int64_t k) {
    return p.form == form && p.shape.m == m && p.shape.n == n && p.shape.k == k;
  };
  EXPECT_TRUE(is(all[0], Form::nt, 5, 7, 3));  // y [5, 7] = x [5, 3]·wᵀ
  EXPECT_TRUE(is(all[1], Form::nn, 5, 3, 7));  // dx [5, 3] = dy [5, 7]·w
  EXPECT_TRUE(is(all[2], Form::tn, 7, 3, 5));  // dw [7, 3] = dyᵀ·x
}

TEST(Sheet, WritesGoogleBenchmarkJson) {
  Sheet sheet(true);
  testing::internal::CaptureStdout();
  sheet.note("device", "cpu");
  testing::internal::GetCapturedStdout();
  sheet.add({.name = "a/1",
             .iterations = 7,
             .times = {1e-6, 2e-6, 4e-6, 3e-6},
             .threads = 2,
             .counters = {{"flops", 5e9}}});
  const nlohmann::json all = sheet.json();
  EXPECT_EQ(all.at("context").at("device"), "cpu");
  for (const char* key : {"date", "host_name", "executable", "num_cpus", "library_build_type"}) {
    EXPECT_TRUE(all.at("context").contains(key)) << key;
  }
  const nlohmann::json& one = all.at("benchmarks").at(0);
  EXPECT_EQ(one.at("name"), "a/1");
  EXPECT_EQ(one.at("run_type"), "iteration");
  EXPECT_EQ(one.at("time_unit"), "us");
  EXPECT_EQ(one.at("iterations"), 7);
  EXPECT_NEAR(one.at("real_time").get<double>(), 2, 1e-12);
  EXPECT_EQ(one.at("flops"), 5e9);
  Sheet silent(false);
  silent.add({.name = "b"});
  EXPECT_TRUE(silent.json().at("benchmarks").empty());
}

/// Attention by its definition, with whole matrices.
AttentionValues plain_attention(const AttentionShape& s, double scale) {
  AttentionValues x;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const auto size = [&](std::int64_t heads) {
    return static_cast<std::size_t>(s.sequences * s.tokens * heads * s.head_size);
  };
  for (auto* one : {&x.q, &x.out, &x.dout, &x.dq}) one->resize(size(s.heads));
  for (auto* one : {&x.k, &x.v, &x.dk, &x.dv}) one->resize(size(s.kv_heads));
  for (auto* one : {&x.q, &x.k, &x.v, &x.dout}) {
    for (double& value : *one) value = uniform(random);
  }
  x.lse.resize(static_cast<std::size_t>(s.sequences * s.heads * s.tokens));
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t heads,
                      std::int64_t d) {
    return static_cast<std::size_t>(((b * s.tokens + t) * heads + h) * s.head_size + d);
  };
  const auto tokens = static_cast<std::size_t>(s.tokens);
  for (std::int64_t b = 0; b < s.sequences; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t g = h * s.kv_heads / s.heads, heads = s.heads, groups = s.kv_heads;
      std::vector<double> p(tokens * tokens), dp(tokens * tokens);
      for (std::int64_t i = 0; i < s.tokens; ++i) {
        double sum = 0, delta = 0;
        for (std::int64_t j = 0; j <= i; ++j) {
          const std::size_t place =
              static_cast<std::size_t>(i) * tokens + static_cast<std::size_t>(j);
          double score = 0;
          for (std::int64_t d = 0; d < s.head_size; ++d) {
            score += x.q[at(b, i, h, heads, d)] * x.k[at(b, j, g, groups, d)];
            dp[place] += x.dout[at(b, i, h, heads, d)] * x.v[at(b, j, g, groups, d)];
          }
          sum += p[place] = std::exp(scale * score);
        }
        x.lse[static_cast<std::size_t>((b * heads + h) * s.tokens + i)] = std::log(sum);
        for (std::int64_t j = 0; j <= i; ++j) {
          const std::size_t place =
              static_cast<std::size_t>(i) * tokens + static_cast<std::size_t>(j);
          p[place] /= sum;
          delta += p[place] * dp[place];
        }
        for (std::int64_t j = 0; j <= i; ++j) {
          const std::size_t place =
              static_cast<std::size_t>(i) * tokens + static_cast<std::size_t>(j);
          const double gradient = scale * p[place] * (dp[place] - delta);
          for (std::int64_t d = 0; d < s.head_size; ++d) {
            x.out[at(b, i, h, heads, d)] += p[place] * x.v[at(b, j, g, groups, d)];
            x.dq[at(b, i, h, heads, d)] += gradient * x.k[at(b, j, g, groups, d)];
            x.dk[at(b, j, g, groups, d)] += gradient * x.q[at(b, i, h, heads, d)];
            x.dv[at(b, j, g, groups, d)] += p[place] * x.dout[at(b, i, h, heads, d)];
          }
        }
      }
    }
  }
  return x;
}

TEST(AttentionOracle, AcceptsCorrectResultsAndRejectsWrongOnes) {
  const AttentionShape shape{2, 4, 9, 5, 2};
  const double scale = 0.4;
  const AttentionValues right = plain_attention(shape, scale);
  for (const DType type : {DType::f32, DType::bf16}) {
    EXPECT_EQ(count_wrong_rows(shape, type, scale, right, false), 0);
    EXPECT_EQ(count_wrong_rows(shape, type, scale, right, true), 0);
    // 20 % too much, in each result separately.
    for (auto member : {&AttentionValues::out, &AttentionValues::dq, &AttentionValues::dk,
                        &AttentionValues::dv}) {
      AttentionValues wrong = right;
      for (double& value : wrong.*member) value = value * 1.2 + 0.2;
      const bool backward = member != &AttentionValues::out;
      EXPECT_GT(count_wrong_rows(shape, type, scale, wrong, backward), 0);
    }
    // The mask is one key too wide or too narrow.
    AttentionValues lost = right;
    lost.out.back() = std::nan("");
    EXPECT_EQ(count_wrong_rows(shape, type, scale, lost, false), 1);
  }
  EXPECT_GT(count_wrong_rows(shape, DType::f32, 1.01 * scale, right, false), 0);
  EXPECT_GT(count_wrong_rows(shape, DType::f32, 1.01 * scale, right, true), 0);
}

}  // namespace
}  // namespace trireme::bench
