#include "support.hpp"

namespace trireme::ops {
namespace {

constexpr double epsilon = 1e-5;

/// LayerNorm (centered) or RMSNorm of rows of x in fp64.
std::vector<double> norm(const std::vector<double>& x, const std::vector<double>& gain,
                         const std::vector<double>& bias, bool centered) {
  const std::size_t columns = gain.size();
  std::vector<double> y(x.size());
  for (std::size_t begin = 0; begin < x.size(); begin += columns) {
    const auto n = static_cast<double>(columns);
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < columns && centered; ++i) mean += x[begin + i] / n;
    for (std::size_t i = 0; i < columns; ++i) variance += std::pow(x[begin + i] - mean, 2) / n;
    const double rstd = 1 / std::sqrt(variance + epsilon);
    for (std::size_t i = 0; i < columns; ++i) {
      y[begin + i] = (x[begin + i] - mean) * rstd * gain[i] + (bias.empty() ? 0 : bias[i]);
    }
  }
  return y;
}

/// What is added to the gradient for x.
enum class Beside : std::uint8_t { nothing, result, other };

struct Sizes {
  std::int64_t rows, columns, gap;
};

const std::vector<Sizes> sizes = {{7, 37, 0}, {7, 37, 3}, {1, 1, 0}, {130, 8, 0}, {3, 259, 1}};

/// Inputs and outputs of one norm, forward done.
struct Norm {
  Norm(Ops& ops, const Sizes& s, bool centered_, bool with_bias)
      : centered(centered_),
        x(random_array({s.rows, s.columns}, 1, 2, s.gap)),
        dy(random_array({s.rows, s.columns}, 2, 1, s.gap)),
        y({s.rows, s.columns}, s.gap),
        gain(random_array({s.columns}, 3)),
        bias(random_array({s.columns}, 4)),
        mean({s.rows}),
        rstd({s.rows}) {
    for (std::int64_t i = 0; i < x.elements(); ++i) x[i] += 0.5F;
    if (centered) {
      ops.norm(y, mean, rstd, x, gain, with_bias ? bias.view() : Tensor(), epsilon);
    } else {
      ops.norm(y, {}, rstd, x, gain, {}, epsilon);
    }
  }
  double loss(const std::vector<double>& at_x, const std::vector<double>& at_gain,
              const std::vector<double>& at_bias) const {
    return dot(norm(at_x, at_gain, at_bias, centered), widen(dy));
  }
  bool centered;
  Array x, dy, y, gain, bias, mean, rstd;
};

/// Sums of C terms of size up to 2.5 keep C·u; x − mean, rstd, gain and bias add a few roundings of
/// values up to |y|: |h| ≤ √C bounds them all. A wide constant: (C + 16)·u·(√C + 1).
double forward_bound(std::int64_t columns) {
  return static_cast<double>(columns + 16) * roundoff *
         (std::sqrt(static_cast<double>(columns)) + 1);
}

class NormTest : public OpsTest {};

TEST_P(NormTest, ForwardAgreesWithFp64) {
  for (const Sizes& s : sizes) {
    for (const bool centered : {true, false}) {
      for (const bool with_bias : {true, false}) {
        if (!centered && with_bias) continue;
        const Norm n(*ops, s, centered, with_bias);
        const auto expected = norm(widen(n.x), widen(n.gain),
                                   with_bias ? widen(n.bias) : std::vector<double>(), centered);
        expect_close(n.y, expected, std::vector<double>(expected.size(), forward_bound(s.columns)),
                     centered ? "layer_norm" : "rms_norm");
      }
    }
  }
}

TEST_P(NormTest, OfASumHasTheBitsOfSumAndNorm) {
  for (const Sizes& s : {Sizes{1, 1, 0}, Sizes{7, 37, 0}, Sizes{65, 384, 0}}) {
    for (const bool centered : {true, false}) {
      for (const int in_place : {0, 1, 2}) {  // no, into a, into b
        Array a = random_array({s.rows, s.columns}, 1), b = random_array({s.rows, s.columns}, 2);
        Array gain = random_array({s.columns}, 3), bias = random_array({s.columns}, 4);
        Array apart({s.rows, s.columns}), expected_sum({s.rows, s.columns});
        Array y({s.rows, s.columns}), expected({s.rows, s.columns});
        Array mean({s.rows}), rstd({s.rows}), expected_mean({s.rows}), expected_rstd({s.rows});
        const Tensor biases = centered ? Tensor(bias) : Tensor();
        ops->add(expected_sum, a, b);
        ops->norm(expected, centered ? Tensor(expected_mean) : Tensor(), expected_rstd,
                  expected_sum, gain, biases, 1e-5F);
        Array& sum = in_place == 0 ? apart : in_place == 1 ? a : b;
        ops->add_norm(y, centered ? Tensor(mean) : Tensor(), rstd, sum, a, b, gain, biases, 1e-5F);
        expect_same_bits(sum, expected_sum, "sum");
        expect_same_bits(y, expected, "norm of a sum");
        if (centered) expect_same_bits(mean, expected_mean, "mean");
        expect_same_bits(rstd, expected_rstd, "rstd");
      }
    }
  }
}

TEST_P(NormTest, InputGradientAgreesWithFiniteDifferences) {
  for (const Sizes& s : sizes) {
    for (const bool centered : {true, false}) {
      for (const Beside beside : {Beside::nothing, Beside::result, Beside::other}) {
        Norm n(*ops, s, centered, centered);
        Array dx = random_array({s.rows, s.columns}, 5, 1, s.gap);
        Array other = random_array({s.rows, s.columns}, 9, 1, s.gap);
        const Tensor residual = beside == Beside::nothing  ? Tensor()
                                : beside == Beside::result ? Tensor(dx)
                                                           : Tensor(other);
        std::vector<double> expected(static_cast<std::size_t>(s.rows * s.columns), 0.0);
        if (beside != Beside::nothing) expected = widen(beside == Beside::result ? dx : other);
        // One column: x is its own mean, and rstd = 1/√ε amplifies every rounding 300 times.
        if (s.columns == 1 && centered) continue;
        finite_differences([&](const auto& x) { return n.loss(x, widen(n.gain), widen(n.bias)); },
                           widen(n.x), 1,
                           [&](std::size_t i, double derivative) { expected[i] += derivative; });
        if (centered) {
          ops->norm_backward_input(dx, n.dy, n.x, n.gain, n.mean, n.rstd, residual);
        } else {
          ops->norm_backward_input(dx, n.dy, n.x, n.gain, {}, n.rstd, residual);
        }
        // dx = rstd·(g − mean g − h·mean(g·h)): rstd ≤ 4 for these rows (their deviation exceeds
        // ¼), the bracket as forward; 1e-8 for the differences (values up to 1e3).
        const std::vector<double> bound(expected.size(), 4 * forward_bound(s.columns) + 1e-8);
        expect_close(dx, expected, bound, centered ? "layer_norm dx" : "rms_norm dx");
      }
    }
  }
}

TEST_P(NormTest, WeightGradientsAccumulateAndAgreeWithFiniteDifferences) {
  for (const Sizes& s : sizes) {
    for (const bool centered : {true, false}) {
      Norm n(*ops, s, centered, centered);
      Array dgain = random_array({s.columns}, 5), dbias = random_array({s.columns}, 6);
      std::vector<double> expected_gain = widen(dgain), expected_bias = widen(dbias);
      finite_differences([&](const auto& gain) { return n.loss(widen(n.x), gain, widen(n.bias)); },
                         widen(n.gain), 1,
                         [&](std::size_t i, double derivative) { expected_gain[i] += derivative; });
      finite_differences([&](const auto& bias) { return n.loss(widen(n.x), widen(n.gain), bias); },
                         widen(n.bias), 1,
                         [&](std::size_t i, double derivative) { expected_bias[i] += derivative; });
      // R terms of at most √C + 1 each; each carries forward's error too; 1e-7 for the differences.
      const double rows = static_cast<double>(s.rows);
      const std::vector<double> bound(expected_gain.size(),
                                      2 * rows * forward_bound(s.columns) + 1e-7);
      if (centered) {
        Array only_gain = dgain;
        ops->norm_backward_weight(only_gain, {}, n.dy, n.x, n.mean, n.rstd);
        ops->norm_backward_weight(dgain, dbias, n.dy, n.x, n.mean, n.rstd);
        expect_close(dbias, expected_bias, bound, "layer_norm dbias");
        expect_same_bits(only_gain, dgain, "without a bias");
      } else {
        ops->norm_backward_weight(dgain, {}, n.dy, n.x, {}, n.rstd);
      }
      expect_close(dgain, expected_gain, bound, centered ? "layer_norm dgain" : "rms_norm dgain");
    }
  }
}

TEST_P(NormTest, ColumnSumAccumulates) {
  for (const auto& [rows, columns, gap] :
       std::vector<Sizes>{{7, 37, 2}, {1000, 101, 0}, {64, 5, 0}, {0, 4, 0}}) {
    Array x = random_array({rows, columns}, 1, 1, gap), sum = random_array({columns}, 2);
    std::vector<double> expected = widen(sum), size(expected.size(), 1.0);
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      expected[static_cast<std::size_t>(i % columns)] += x[i];
      size[static_cast<std::size_t>(i % columns)] += std::abs(x[i]);
    }
    // Depth of the additions: 64/8 + 3 in a tile, log₂ of the tiles, one for the sum.
    for (double& bound : size) bound *= 24 * roundoff;
    ops->column_sum(sum, x);
    expect_close(sum, expected, size, "column_sum");
  }
}

TEST_P(NormTest, RowsFarFromZeroKeepTheirVariance) {
  // mean 1000, deviation 1: E[x²] − mean² in fp32 would lose it.
  Array x = random_array({1, 64}, 1), y({1, 64}), gain({64}), mean({1}), rstd({1});
  double deviation = 0, center = 0;
  for (std::int64_t i = 0; i < 64; ++i) {
    x[i] += 1000.0F;
    gain[i] = 1;
    center += double{x[i]} / 64;
  }
  for (std::int64_t i = 0; i < 64; ++i) deviation += std::pow(double{x[i]} - center, 2) / 64;
  ops->norm(y, mean, rstd, x, gain, {}, 0.0F);
  // The mean is off by at most 6·u·1000 = 3.6e-4, so the variance by its square: 1.3e-7 of ⅓.
  EXPECT_NEAR(rstd[0] * std::sqrt(deviation), 1.0, 1e-6);
}

TRIREME_FOR_INSTRUCTION_SETS(NormTest);

}  // namespace
}  // namespace trireme::ops
