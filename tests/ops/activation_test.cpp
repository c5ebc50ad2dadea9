#include "support.hpp"

namespace trireme::ops {
namespace {

double gelu(double x) {
  // ½(1 + tanh u) as a logistic function: tanh itself would cancel for negative x.
  return x * logistic(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}

double silu(double x) { return x * logistic(x); }

/// The argument z of exp carries about 4 roundings, which exp turns into a relative error of 4u|z|;
/// exp, sum, quotient and product add about 6u. Beyond |z| = 104 the result is 0.
double gelu_bound(double x) {
  const double z = std::min(104.0, std::abs(1.6 * (x + 0.045 * x * x * x)));
  // The logistic function is set to 0 below exp(−89), and denormal just above it.
  return roundoff * (4 * z + 8) * std::abs(gelu(x)) + std::abs(x) * 1.2e-38;
}

std::vector<float> interesting() {
  std::vector<float> x;
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) * 0.004F);
  for (const float large : {20.0F, 29.9F, 30.1F, 88.0F, 1e3F, 1e7F, 1e13F, 1e20F, 3e38F, 1e-20F}) {
    x.push_back(large);
    x.push_back(-large);
  }
  return x;
}

class ActivationTest : public OpsTest {};

TEST_P(ActivationTest, GeluIsAccurateEverywhere) {
  const std::vector<float> points = interesting();
  const auto n = static_cast<std::int64_t>(points.size());
  Array x({n}), y({n});
  std::vector<double> expected, bound;
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = points[static_cast<std::size_t>(i)];
    expected.push_back(gelu(x[i]));
    bound.push_back(gelu_bound(x[i]));
    if (std::abs(x[i]) < 1) {
      // Tighter near the origin, where most activations are.
      bound.back() = std::min(bound.back(), 1e-6 * std::abs(expected.back()) + 1e-37);
    }
  }
  ops->gelu(y, x);
  expect_close(y, expected, bound, "gelu");
}

TEST_P(ActivationTest, GeluBackwardAgreesWithFiniteDifferences) {
  const std::vector<float> points = interesting();
  const auto n = static_cast<std::int64_t>(points.size());
  Array x({n}), dy = random_array({n}, 1), dx({n});
  std::vector<double> expected, bound;
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = points[static_cast<std::size_t>(i)];
    const double h = 1e-5, at = std::clamp(double{x[i]}, -25.0, 25.0);  // constant slope beyond
    expected.push_back(dy[i] * (gelu(at + h) - gelu(at - h)) / (2 * h));
    // |slope| ≤ 1.13; its parts are below 3 and carry (4|z| + 8)u where exp(−|z|)·|z| is not yet
    // small: |z|·exp(−|z|) ≤ 0.4, |z|²·exp(−|z|) ≤ 0.6. Differences: h²/6·|f'''| < 1e-10.
    bound.push_back(40 * roundoff * std::abs(dy[i]) + 1e-9);
  }
  ops->gelu_backward(dx, dy, x);
  expect_close(dx, expected, bound, "gelu_backward");
  ops->gelu_backward(dy, dy, x);
  expect_same_bits(dy, dx, "in place");
}

TEST_P(ActivationTest, NanStaysNan) {
  for (std::int64_t n = 1; n < 20; ++n) {
    Array x({n}), dy({n}), y({n});
    for (std::int64_t i = 0; i < n; ++i) dy[i] = 1;
    x[n - 1] = std::numeric_limits<float>::quiet_NaN();
    ops->gelu(y, x);
    EXPECT_TRUE(std::isnan(y[n - 1]));
    ops->gelu_backward(y, dy, x);
    EXPECT_TRUE(std::isnan(y[n - 1]));
    Array pair({1, 2 * n}), out({1, n});
    for (std::int64_t i = 0; i < 2 * n; ++i) pair[i] = 1;
    pair[n - 1] = std::numeric_limits<float>::quiet_NaN();
    ops->swiglu(out, pair);
    EXPECT_TRUE(std::isnan(out[n - 1]));
  }
}

TEST_P(ActivationTest, SwigluAgreesWithFp64AndFiniteDifferences) {
  for (const std::int64_t gap : {0, 3}) {
    const std::int64_t rows = 7, columns = 37;
    Array x = random_array({rows, 2 * columns}, 1, 9, gap), y({rows, columns}, gap);
    Array dy = random_array({rows, columns}, 2, 1, gap), dx({rows, 2 * columns}, gap);
    std::vector<double> expected, bound, gradient(static_cast<std::size_t>(x.elements()));
    std::vector<double> gradient_bound(gradient.size());
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const std::int64_t gate = i / columns * 2 * columns + i % columns, up = gate + columns;
      const double g = x[gate], u = x[up], h = 1e-5;
      expected.push_back(silu(g) * u);
      // exp of an exact argument: quotient, products and exp itself, 8 roundings.
      bound.push_back(8 * roundoff * std::abs(expected.back()));
      gradient[static_cast<std::size_t>(gate)] = dy[i] * u * (silu(g + h) - silu(g - h)) / (2 * h);
      gradient[static_cast<std::size_t>(up)] = dy[i] * silu(g);
      // The slope is a sum of two parts below 1.1 each; differences are accurate to 1e-9.
      gradient_bound[static_cast<std::size_t>(gate)] =
          (24 * roundoff + 1e-9) * (std::abs(dy[i] * u) + 1e-9);
      gradient_bound[static_cast<std::size_t>(up)] = 8 * roundoff * std::abs(dy[i] * silu(g));
    }
    ops->swiglu(y, x);
    expect_close(y, expected, bound, "swiglu");
    ops->swiglu_backward(dx, dy, x);
    expect_close(dx, gradient, gradient_bound, "swiglu_backward");
  }
}

TEST_P(ActivationTest, SwigluOfLargeGatesIsFinite) {
  Array x({1, 4}), y({1, 2}), dy({1, 2}), dx({1, 4});
  x[0] = -1000, x[1] = 1000, x[2] = x[3] = 2;
  dy[0] = dy[1] = 1;
  ops->swiglu(y, x);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 2000);
  ops->swiglu_backward(dx, dy, x);
  EXPECT_EQ(dx[0], 0);
  EXPECT_EQ(dx[1], 2);
  EXPECT_EQ(dx[2], 0);
  EXPECT_EQ(dx[3], 1000);
}

TRIREME_FOR_INSTRUCTION_SETS(ActivationTest);

}  // namespace
}  // namespace trireme::ops
