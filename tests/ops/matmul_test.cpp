#include "support.hpp"

namespace trireme::ops {
namespace {

struct Case {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate, bias;
};

/// An inner product of k terms summed in any order is off by at most (k + 2)·u·Σ|a||b| (Higham,
/// "Accuracy and stability", 3.1), with 2 more for what c or the bias adds.
void check_product(Ops& ops, const Case& t, std::int64_t gap) {
  Array a = random_array(t.transpose_a ? Shape{t.k, t.m} : Shape{t.m, t.k}, 1, 1, gap);
  Array b = random_array(t.transpose_b ? Shape{t.n, t.k} : Shape{t.k, t.n}, 2, 1, gap);
  Array c = random_array({t.m, t.n}, 3, 1, gap);
  Array bias = random_array({t.n}, 4);
  std::vector<double> expected, bound;
  for (std::int64_t i = 0; i < t.m; ++i) {
    for (std::int64_t j = 0; j < t.n; ++j) {
      double sum = (t.accumulate ? c[i * t.n + j] : 0.0F) + (t.bias ? bias[j] : 0.0F);
      double size = std::abs(sum);
      for (std::int64_t l = 0; l < t.k; ++l) {
        const double term = double{t.transpose_a ? a[l * t.m + i] : a[i * t.k + l]} *
                            double{t.transpose_b ? b[j * t.k + l] : b[l * t.n + j]};
        sum += term;
        size += std::abs(term);
      }
      expected.push_back(sum);
      bound.push_back(static_cast<double>(t.k + 4) * roundoff * size);
    }
  }
  MatmulOptions options;
  options.transpose_a = t.transpose_a;
  options.transpose_b = t.transpose_b;
  options.accumulate = t.accumulate;
  if (t.bias) options.bias = bias;
  ops.matmul(c, a, b, options);
  expect_close(c, expected, bound,
               "m " + std::to_string(t.m) + " n " + std::to_string(t.n) + " k " +
                   std::to_string(t.k) + (t.transpose_a ? " T" : " N") +
                   (t.transpose_b ? "T" : "N") + (t.accumulate ? " accumulated" : "") +
                   (t.bias ? " with bias" : ""));
}

class MatmulForms : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Reproducible, MatmulForms, testing::Bool());

TEST_P(MatmulForms, AgreeWithFp64) {
  const auto ops = make_cpu_ops(2, nullptr, GetParam());
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{7, 37, 11},
                                                                        {37, 101, 48},
                                                                        {1, 5, 3},
                                                                        {5, 1, 1},
                                                                        {1, 1, 64},
                                                                        {130, 40, 257},
                                                                        {50, 230, 19}}) {
    for (int form = 0; form < 4; ++form) {
      for (const std::int64_t gap : {0, 5}) {
        const bool ta = form & 1, tb = form & 2;
        check_product(*ops, {m, n, k, ta, tb, false, false}, gap);
        check_product(*ops, {m, n, k, ta, tb, true, false}, gap);
        check_product(*ops, {m, n, k, ta, tb, false, true}, gap);
      }
    }
  }
}

TEST(Matmul, AnEmptyInnerDimensionGivesZerosOrTheBias) {
  const auto ops = make_cpu_ops(2);
  check_product(*ops, {3, 4, 0, false, false, false, false}, 0);
  check_product(*ops, {3, 4, 0, false, false, true, false}, 0);
  check_product(*ops, {3, 4, 0, false, false, false, true}, 0);
  check_product(*ops, {0, 4, 3, false, false, false, true}, 0);
}

/// Only repetition is guaranteed: another number of threads splits rows and columns differently.
TEST(Matmul, IsRepeatable) {
  for (int form = 0; form < 4; ++form) {
    MatmulOptions options;
    options.transpose_a = form & 1;
    options.transpose_b = form & 2;
    Array a = random_array(options.transpose_a ? Shape{150, 301} : Shape{301, 150}, 1);
    Array b = random_array(options.transpose_b ? Shape{203, 150} : Shape{150, 203}, 2);
    for (const int threads : {1, 2, 3}) {
      Array first({301, 203}), second({301, 203});
      make_cpu_ops(threads)->matmul(first, a, b, options);
      make_cpu_ops(threads)->matmul(second, a, b, options);
      expect_same_bits(first, second, std::to_string(threads) + " threads");
    }
  }
}

/// The sizes have one piece, several of rows, several of columns, and both.
TEST(Matmul, ReproducibleBitsDoNotDependOnThreads) {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {31, 75, 203}, {201, 50, 147}, {47, 403, 96}, {270, 391, 150}}) {
    for (int form = 0; form < 4; ++form) {
      const bool ta = form & 1, tb = form & 2;
      Array a = random_array(ta ? Shape{k, m} : Shape{m, k}, 1);
      Array b = random_array(tb ? Shape{n, k} : Shape{k, n}, 2);
      Array bias = random_array({n}, 3), input = random_array({m, n}, 4);
      const auto results = [&, m = m, n = n](int threads) {
        const auto ops = make_cpu_ops(threads, nullptr, true);
        std::vector<Array> all(4, Array({m, n}));
        const MatmulOptions product{.transpose_a = ta, .transpose_b = tb};
        MatmulOptions sum = product, gelu = product, slope = product;
        sum.accumulate = true;
        gelu.bias = bias;
        gelu.before_gelu = all[2];
        slope.gelu_input = input;
        ops->matmul(all[0], a, b, product);
        ops->matmul(all[0], a, b, sum);
        ops->matmul(all[1], a, b, gelu);
        ops->matmul(all[3], a, b, slope);
        return all;
      };
      const std::vector<Array> one = results(1);
      for (const int threads : {2, 3, 4}) {
        const std::vector<Array> several = results(threads);
        for (std::size_t i = 0; i < one.size(); ++i) {
          expect_same_bits(one[i], several[i],
                           fmt::format("result {} of {} x {} x {}, form {}, on {} threads", i, m, n,
                                       k, form, threads));
        }
      }
    }
  }
}

// Tiles of unequal widths, one of them empty: threads share all of them, and each has the bits of a
// call of its own.
TEST(Matmul, IndependentProductsHaveTheBitsOfSingleOnes) {
  const std::int64_t rows = 130, in = 70;
  const std::vector<std::int64_t> widths{200, 31, 0, 97, 64};
  Array x = random_array({rows, in}, 1);
  std::vector<Array> weights, biases, dy;
  for (const std::int64_t width : widths) {
    weights.push_back(random_array({width, in}, 2 + width));
    biases.push_back(random_array({width}, 3 + width));
    dy.push_back(random_array({rows, width}, 4 + width));
  }
  for (const bool reproducible : {false, true}) {
    for (const int threads : {1, 2, 3, 8}) {
      const auto ops = make_cpu_ops(threads, nullptr, reproducible);
      const auto results = [&](bool at_once) {
        std::vector<Array> all;
        for (const std::int64_t width : widths) {
          all.emplace_back(Shape{rows, width}), all.emplace_back(Shape{rows, width});
          all.emplace_back(Shape{width, in}), all.emplace_back(Shape{width});
          ops->fill(all.back(), 0);
        }
        std::vector<Matmul> forward, backward;
        for (std::size_t i = 0; i < widths.size(); ++i) {
          MatmulOptions gelu{.transpose_b = true};
          gelu.bias = biases[i];
          gelu.before_gelu = all[4 * i + 1];
          forward.push_back({all[4 * i], x, weights[i], gelu});
          MatmulOptions sums{.transpose_a = true};
          sums.row_sum = all[4 * i + 3];
          backward.push_back({all[4 * i + 2], dy[i], x, sums});
        }
        for (const std::vector<Matmul>& products : {forward, backward}) {
          if (at_once) {
            ops->independent_matmuls(products);
          } else {
            for (const Matmul& p : products) ops->matmul(p.c, p.a, p.b, p.options);
          }
        }
        return all;
      };
      const std::vector<Array> single = results(false), at_once = results(true);
      for (std::size_t i = 0; i < single.size(); ++i) {
        expect_same_bits(single[i], at_once[i], fmt::format("result {} on {} threads", i, threads));
      }
    }
  }
}

TEST(Matmul, WrongShapesAreRefused) {
  const auto ops = make_cpu_ops(1);
  Array a({3, 4}), b({5, 6}), c({3, 6});
  EXPECT_ANY_THROW(ops->matmul(c, a, b, {}));
}

/// A fused product matches the separate operations bit for bit.
TEST(Matmul, FusedEqualsSeparate) {
  const auto ops = make_cpu_ops(2);
  for (const std::int64_t gap : {0, 3}) {
    const std::int64_t m = 9, n = 21, k = 13;
    Array a = random_array({m, k}, 1, 1, gap), b = random_array({n, k}, 2),
          bias = random_array({n}, 3);
    Array apart({m, n}), gelu({m, n});
    ops->matmul(apart, a, b, {.transpose_b = true, .bias = bias});
    ops->gelu(gelu, apart);
    Array c({m, n}, gap), before({m, n}, gap);
    ops->matmul(c, a, b, {.transpose_b = true, .bias = bias, .before_gelu = before});
    expect_same_bits(c, gelu, "gelu");
    expect_same_bits(before, apart, "before gelu");
    EXPECT_TRUE(c.gaps_untouched() && before.gaps_untouched());

    Array input = random_array({m, n}, 4, 2, gap), dense = random_array({m, n}, 4, 2);
    ops->matmul(apart, a, b, {.transpose_b = true});
    ops->gelu_backward(gelu, apart, dense);
    ops->matmul(c, a, b, {.transpose_b = true, .gelu_input = input});
    expect_same_bits(c, gelu, "gelu backward");

    Array dy = random_array({m, n}, 5, 1, gap), sum = random_array({n}, 6), expected = sum;
    Array weight = random_array({n, k}, 7), expected_weight = weight;
    ops->matmul(weight, dy, a, {.transpose_a = true, .accumulate = true, .row_sum = sum});
    ops->matmul(expected_weight, dy, a, {.transpose_a = true, .accumulate = true});
    ops->column_sum(expected, dy);
    expect_same_bits(weight, expected_weight, "weight gradient");
    expect_same_bits(sum, expected, "bias gradient");
  }
}

TEST(Matmul, EpiloguesOfTheWholeAreNotAccumulated) {
  const auto ops = make_cpu_ops(1);
  Array a({2, 2}), b({2, 2}), c({2, 2}), other({2, 2}), bias({2});
  EXPECT_ANY_THROW(ops->matmul(c, a, b, {.accumulate = true, .bias = bias}));
  EXPECT_ANY_THROW(ops->matmul(c, a, b, {.accumulate = true, .before_gelu = other}));
  EXPECT_ANY_THROW(ops->matmul(c, a, b, {.accumulate = true, .gelu_input = other}));
  EXPECT_ANY_THROW(ops->matmul(c, a, b, {.before_gelu = other, .gelu_input = other}));
  EXPECT_ANY_THROW(ops->matmul(c, a, b, {.row_sum = bias}));
}

}  // namespace
}  // namespace trireme::ops
