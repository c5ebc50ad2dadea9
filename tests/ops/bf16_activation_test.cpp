// Activations and losses of bf16 at every bf16 value, against fp64.
#include "bf16_support.hpp"

namespace trireme::ops {
namespace {

class NarrowActivationTest : public OpsTest {};

// 2ᵗ is within 2.9e-6; t carries up to 5 roundings of fp32: at most 126·ln 2·5·2⁻²⁴ = 2.6e-5 of it;
// quotient, sums and products add a few 2⁻²⁴. All below 2⁻¹⁴.
constexpr double arithmetic = 1.0 / (1 << 14);

/// All finite bf16.
std::vector<std::uint16_t> finite() {
  std::vector<std::uint16_t> bits;
  for (int i = 0; i < 65536; ++i) {
    if ((i & 0x7f80) != 0x7f80) bits.push_back(static_cast<std::uint16_t>(i));
  }
  return bits;
}

/// 2u of GELU, and its slope.
double gelu_argument(double x) { return 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
double gelu_argument_slope(double x) {
  return 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/// `actual` is `exact` rounded once, or off by `more`.
void expect_near(Bf16 actual, double exact, double more, float x, const char* what) {
  const double value = ops::widened(actual);
  // 2⁻¹³³: half of the least bf16.
  const double bound = narrow_roundoff * std::abs(exact) + more + std::ldexp(1.0, -133);
  ASSERT_LE(std::abs(value - exact), bound)
      << what << " of " << x << ": " << value << ", " << exact;
}

TEST_P(NarrowActivationTest, GeluOfEveryValue) {
  const std::vector<std::uint16_t> bits = finite();
  const auto n = static_cast<std::int64_t>(bits.size());
  Narrow x({n}), y = poisoned({n}), dx = poisoned({n}), dy({n});
  for (std::int64_t i = 0; i < n; ++i) {
    x[i].bits = bits[static_cast<std::size_t>(i)];
    dy[i].bits = 0x3f80;
  }
  ops->gelu(y, x);
  ops->gelu_backward(dx, dy, x);
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = ops::widened(x[i]);
    const double r = logistic(gelu_argument(v));
    // Where 2ᵗ overflows, x/2¹²⁸ counts as 0.
    expect_near(y[i], v * r, arithmetic * std::abs(v * r) + std::abs(double{v}) * 0x1p-126, v,
                "gelu");
    // Beyond ±9.9 the slope is constant: its parts are below 2⁻¹²²·220.
    const double inner = std::abs(v) < 1e3F ? v * gelu_argument_slope(v) * (1 - r) : 0;
    expect_near(dx[i], r * (1 + inner), arithmetic * r * (1 + std::abs(inner)) + 0x1p-114, v,
                "gelu_backward");
  }
}

TEST_P(NarrowActivationTest, SwigluOfEveryGate) {
  const std::vector<std::uint16_t> bits = finite();
  const auto n = static_cast<std::int64_t>(bits.size());
  const double up = 1.5, gradient = -0.75;
  Narrow pair({1, 2 * n}), y = poisoned({1, n}), dy({1, n}), dpair = poisoned({1, 2 * n});
  for (std::int64_t i = 0; i < n; ++i) {
    pair[i].bits = bits[static_cast<std::size_t>(i)];
    narrow(static_cast<float>(up), pair[n + i]);
    narrow(static_cast<float>(gradient), dy[i]);
  }
  ops->swiglu(y, pair);
  ops->swiglu_backward(dpair, dy, pair);
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = ops::widened(pair[i]);
    const double r = logistic(g), lost = std::abs(double{g}) * 0x1p-126;
    if (std::abs(double{g}) > 1e38) continue;  // products of them overflow
    expect_near(y[i], g * r * up, arithmetic * std::abs(g * r * up) + 2 * lost, g, "swiglu");
    expect_near(dpair[n + i], gradient * g * r, arithmetic * std::abs(g * r) + 2 * lost, g, "dup");
    const double inner = r > 0 && r < 1 ? g * (1 - r) : 0;
    expect_near(dpair[i], gradient * up * r * (1 + inner),
                2 * arithmetic * r * (1 + std::abs(inner)) + 2 * lost + 0x1p-126, g, "dgate");
  }
}

TEST_P(NarrowActivationTest, NaNStaysNaNAtAnyPosition) {
  for (std::int64_t n = 1; n < 70; ++n) {
    const Bf16 one{0x3f80}, nan{0xff81};
    Narrow x({1, n}), dy({1, n}), y = poisoned({1, n}), pair({1, 2 * n}), dpair({1, 2 * n});
    for (std::int64_t i = 0; i < n; ++i) x[i] = dy[i] = pair[i] = pair[n + i] = one;
    x[n - 1] = pair[n - 1] = nan;
    for (std::int64_t i = 0; i < n; ++i) y[i] = one;
    ops->gelu_backward(y, dy, x);
    EXPECT_TRUE(std::isnan(ops::widened(y[n - 1]))) << n;
    y[n - 1] = one;
    ops->swiglu(y, pair);
    EXPECT_TRUE(std::isnan(ops::widened(y[n - 1]))) << n;
    ops->swiglu_backward(dpair, dy, pair);
    EXPECT_TRUE(std::isnan(ops::widened(dpair[n - 1]))) << n;
    Array maximum({1}), sum({1}), target({1}), factor({1});
    Integers targets({1});
    maximum[0] = 1, factor[0] = 1;
    ops->exp_sum_and_target(sum, target, x, maximum, targets, 0);
    EXPECT_TRUE(std::isnan(sum[0])) << n;
    sum[0] = 1;
    ops->cross_entropy_gradient(x, maximum, sum, targets, factor, 0);
    EXPECT_TRUE(std::isnan(ops::widened(x[n - 1]))) << n;
  }
}

/// exp(x − maximum) of every logit up to the maximum, masked ones included.
TEST_P(NarrowActivationTest, ExponentialsOfEveryLogit) {
  const std::vector<std::uint16_t> bits = finite();
  const float most = 5;
  Array maximum({1}), sum({1}), target({1}), factor({1});
  maximum[0] = most, factor[0] = 1;
  Integers targets({1});
  targets[0] = -1;
  std::vector<Bf16> logits = {{0xff80}};  // −∞
  for (const std::uint16_t each : bits) {
    if (bf16_to_float(each) <= most) logits.push_back({each});
  }
  const auto n = static_cast<std::int64_t>(logits.size());
  Narrow x({1, n});
  double expected = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = logits[static_cast<std::size_t>(i)];
    expected += std::exp(double{ops::widened(x[i])} - most);
  }
  ops->exp_sum_and_target(sum, target, x, maximum, targets, 0);
  // Arguments d = x − 5 are exact in fp32 to 2⁻²⁴·|d|, and so are their products with log₂ e; terms
  // that count have d above −17. Chains of n/64 and more terms.
  const double chain = static_cast<double>(n) / 16;
  EXPECT_NEAR(sum[0], expected, (chain + 3 * 17 + 8) * roundoff * expected);
  Narrow gradient = x;
  sum[0] = 1;
  ops->cross_entropy_gradient(gradient, maximum, sum, targets, factor, 0);
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = ops::widened(x[i]);
    const double exact = std::exp(double{v} - most);
    // Set to 0 below 2⁻¹²⁶.
    expect_near(gradient[i], exact, arithmetic * exact + 0x1.01p-126, v, "gradient");
  }
}

TRIREME_FOR_INSTRUCTION_SETS(NarrowActivationTest);

}  // namespace
}  // namespace trireme::ops
