#include "trireme/core/half.hpp"

#include "support.hpp"

namespace trireme::ops {
namespace {

class OptimizerTest : public OpsTest {};

TEST_P(OptimizerTest, SumOfSquaresMatchesItsOrderBitForBit) {
  for (const std::int64_t n : {0, 1, 15, 16, 37, 4096, 4097, 100001}) {
    Array x = random_array({n}, 1);
    // Squares are exact in fp64; chains i mod 16 of a block, joined pairwise, then blocks in order.
    double expected = 0;
    std::vector<double> blocks;
    for (std::int64_t begin = 0; begin < n; begin += 4096) {
      double chains[16] = {};
      for (std::int64_t i = begin; i < std::min(n, begin + 4096); ++i) {
        chains[(i - begin) % 16] += double{x[i]} * double{x[i]};
      }
      for (int step = 1; step < 16; step *= 2) {
        for (int j = 0; j < 16; j += 2 * step) chains[j] += chains[j + step];
      }
      expected += chains[0];
      blocks.push_back(1 + chains[0]);
    }
    double sum = 2;
    ops->add_squares(Tensor(&sum, {1}), x);
    EXPECT_EQ(sum, 2 + expected) << n;
    std::vector<double> apart(blocks.size(), 1.0);
    ops->add_squares(Tensor(apart.data(), {static_cast<std::int64_t>(apart.size())}), x);
    EXPECT_EQ(apart, blocks) << n;
  }
}

TEST_P(OptimizerTest, AdamWFollowsThePaper) {
  const std::int64_t n = 101;
  Array p = random_array({n}, 1), m({n}), v({n});
  std::vector<double> rp = widen(p), rm(n), rv(n);
  AdamWStep step;
  step.learning_rate = 0.01F;
  step.weight_decay = 0.1F;
  step.gradient_scale = 0.5F;
  const int steps = 10;
  for (int t = 1; t <= steps; ++t) {
    Array g = random_array({n}, 10 + static_cast<std::uint32_t>(t));
    g[3] = 0;
    step.correction1 = static_cast<float>(1 - std::pow(double{step.beta1}, t));
    step.correction2 = static_cast<float>(1 - std::pow(double{step.beta2}, t));
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      const double gradient = 0.5 * g[static_cast<std::int64_t>(i)];
      rm[i] = step.beta1 * rm[i] + (1 - double{step.beta1}) * gradient;
      rv[i] = step.beta2 * rv[i] + (1 - double{step.beta2}) * gradient * gradient;
      rp[i] -= double{step.learning_rate} * double{step.weight_decay} * rp[i];
      rp[i] -= step.learning_rate * (rm[i] / step.correction1) /
               (std::sqrt(rv[i] / step.correction2) + step.epsilon);
    }
    ops->adamw(p, m, v, g, step);
  }
  // Each step moves p by at most 0.01·√(1/(1 − β2)) ≈ 0.05 with a relative error of about 12u plus
  // that of the moments (3u a step), and rounds p (|p| ≤ 2) twice: 10·(0.05·42u + 4u).
  const auto count = static_cast<std::size_t>(n);
  expect_close(p, rp, std::vector<double>(count, 62 * roundoff), "p");
  // Moments of at most ½ and ¼: three roundings a step.
  expect_close(m, rm, std::vector<double>(count, 30 * roundoff), "m");
  expect_close(v, rv, std::vector<double>(count, 30 * roundoff), "v");
}

TEST_P(OptimizerTest, SgdWithMomentum) {
  const std::int64_t n = 37;
  Array p = random_array({n}, 1), buffer = random_array({n}, 2), g = random_array({n}, 3);
  std::vector<double> rp, rb;
  for (std::int64_t i = 0; i < n; ++i) {
    rb.push_back(0.9F * double{buffer[i]} + 0.25F * double{g[i]} + 0.1F * double{p[i]});
    rp.push_back(p[i] - 0.05F * rb.back());
  }
  ops->sgd(p, buffer, g, 0.05F, 0.9F, 0.1F, 0.25F);
  const auto count = static_cast<std::size_t>(n);
  expect_close(buffer, rb, std::vector<double>(count, 6 * roundoff), "buffer");
  expect_close(p, rp, std::vector<double>(count, 4 * roundoff), "p");
}

TEST_P(OptimizerTest, RoundedCopiesAreOfTheUpdatedParameters) {
  const std::int64_t n = 20011;
  Array p = random_array({n}, 1), m({n}), v({n}), g = random_array({n}, 2), buffer({n});
  std::vector<std::uint16_t> near(static_cast<std::size_t>(n)), drawn(near), sgd(near);
  const Tensor nearest(near.data(), DType::bf16, {n}), chance(drawn.data(), DType::bf16, {n});
  AdamWStep step;
  step.learning_rate = 0.01F;
  Array q = p, qm({n}), qv({n}), s = p;
  ops->adamw(p, m, v, g, step, {.values = nearest});
  const RandomKey key{5, Purpose::rounding, 0};
  ops->adamw(q, qm, qv, g, step,
             {.values = chance, .stochastic = true, .key = key, .indices = {.first = 100}});
  expect_same_bits(p, q, "parameters");
  ops->sgd(s, buffer, g, 0.1F, 0.9F, 0, 1, {.values = Tensor(sgd.data(), DType::f16, {n})});
  double bias = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ASSERT_EQ(near[at], float_to_bf16(p[i]));
    ASSERT_EQ(sgd[at], float_to_fp16(s[i]));
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(p[i]);
    const std::uint32_t noise = random_bits(key, static_cast<std::uint64_t>(100 + i)) & 0xffffU;
    ASSERT_EQ(drawn[at], static_cast<std::uint16_t>((bits + noise) >> 16));
    // In units of the last kept bit: variance below ¼ each.
    const float below = bf16_to_float(static_cast<std::uint16_t>(bits >> 16));
    const float above = bf16_to_float(static_cast<std::uint16_t>((bits >> 16) + 1));
    bias += double{bf16_to_float(drawn[at]) - p[i]} / double{above - below};
  }
  EXPECT_LT(std::abs(bias), 5 * 0.5 * std::sqrt(static_cast<double>(n))) << "rounding is biased";
}

TEST_P(OptimizerTest, EachElementIsRoundedByTheBitsOfItsIndex) {
  const std::int64_t n = 20011;
  Array x = random_array({n}, 1);
  const RandomKey key{5, Purpose::rounding, 3};
  for (const ElementIndices& indices :
       {ElementIndices{77}, ElementIndices{10, 4, 7, 3}, ElementIndices{0, 0, 1000, 5000}}) {
    std::vector<std::uint16_t> drawn(static_cast<std::size_t>(n));
    ops->round({Tensor(drawn.data(), DType::bf16, {n}), true, key, indices}, x);
    std::int64_t index = indices.first, column = indices.column;
    for (std::int64_t i = 0; i < n; ++i, ++index) {
      if (indices.skip > 0 && column++ == indices.width) {
        index += indices.skip;
        column = 1;
      }
      const std::uint32_t noise = random_bits(key, static_cast<std::uint64_t>(index)) & 0xffffU;
      ASSERT_EQ(drawn[static_cast<std::size_t>(i)], float_to_bf16_up_by(x[i], noise)) << i;
    }
    for (const std::int64_t begin : {1, 6, 2000}) {
      const ElementIndices rest = indices.from(begin);
      for (std::int64_t i = 0; i < 30; ++i) EXPECT_EQ(rest(i), indices(begin + i)) << begin;
    }
  }
}

TEST_P(OptimizerTest, RoundingUpIsProportionalToTheDistance) {
  // 16,384 steps with different bits: the mean is the value, within five deviations.
  constexpr int steps = 16384;
  Array x({4});
  x[0] = 1.0F + 0x1p-10F;
  x[1] = -3.0F - 0x1p-8F;
  x[2] = 1.0F + 0x1p-20F;
  double sums[4] = {}, ups = 0;
  for (int step = 0; step < steps; ++step) {
    std::uint16_t drawn[4];
    ops->round({Tensor(drawn, DType::bf16, {4}),
                true,
                {5, Purpose::rounding, static_cast<std::uint32_t>(step)},
                {.first = 4'000'000'000}},
               x);
    for (int i = 0; i < 4; ++i) sums[i] += double{bf16_to_float(drawn[i])};
    ups += bf16_to_float(drawn[2]) > 1 ? 1 : 0;
  }
  const double units[] = {0x1p-7, 0x1p-6, 0x1p-7, 0};  // from one neighbor to the other
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(sums[i] / steps, double{x[i]}, 5 * 0.5 * units[i] / std::sqrt(steps)) << i;
  }
  // The third is 2^-13 of the way: two expected in that many steps.
  EXPECT_LT(ups, 16);
}

TRIREME_FOR_INSTRUCTION_SETS(OptimizerTest);

}  // namespace
}  // namespace trireme::ops
