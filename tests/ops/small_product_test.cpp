// Products of small integers against exact sums, which reveal any wrong, missing or duplicated
// term.
#include "../../src/ops/cpu/small_product.hpp"

#include "support.hpp"

namespace trireme::ops {
namespace {

class SmallProductTest : public OpsTest {};

/// Integers from −8 to 8.
Array small_integers(const Shape& shape, std::uint32_t stream, std::int64_t gap) {
  const Integers from = random_integers(shape, stream, 17);
  Array x(shape, gap);
  for (std::int64_t i = 0; i < x.elements(); ++i) x[i] = static_cast<float>(from[i] - 8);
  return x;
}

bool in_triangle(Triangle triangle, std::int64_t reach, std::int64_t i, std::int64_t j) {
  if (triangle == Triangle::transposed) return i < reach + j;
  return triangle == Triangle::none || j < reach + i;
}

struct Case {
  std::int64_t m, n, k;
  Triangle triangle = Triangle::none;
  std::int64_t reach = 0;
};

void check(const Case& c, bool turned, bool accumulate) {
  SCOPED_TRACE(testing::Message() << c.m << " x " << c.n << " x " << c.k << ", triangle "
                                  << static_cast<int>(c.triangle) << " reach " << c.reach
                                  << (turned ? ", a turned" : "") << (accumulate ? ", +=" : ""));
  constexpr std::int64_t gap = 3;
  Array a = small_integers(turned ? Shape{c.k, c.m} : Shape{c.m, c.k}, 1, gap);
  const std::int64_t a_row = turned ? 1 : c.k + gap, a_column = turned ? c.m + gap : 1;
  Array b = small_integers({c.k, c.n}, 2, gap), y = small_integers({c.m, c.n}, 3, gap);
  const auto factor = [&](std::int64_t i, std::int64_t p) -> float& {
    return turned ? a[p * c.m + i] : a[i * c.k + p];
  };
  std::vector<double> expected;
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < c.k; ++p) {
        if (c.triangle != Triangle::result && !in_triangle(c.triangle, c.reach, i, p)) {
          factor(i, p) = 0;
        }
        sum += double{factor(i, p)} * b[p * c.n + j];
      }
      expected.push_back(0.5 * sum + (accumulate ? y[i * c.n + j] : 0));
    }
  }
  if (!accumulate) {
    for (std::int64_t i = 0; i < y.elements(); ++i) {
      y[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  small_product({.m = c.m,
                 .n = c.n,
                 .k = c.k,
                 .a = a.view().as<float>(),
                 .a_row = a_row,
                 .a_column = a_column,
                 .b = b.view().as<float>(),
                 .b_row = c.n + gap,
                 .c = y.view().as<float>(),
                 .c_row = c.n + gap,
                 .scale = 0.5F,
                 .accumulate = accumulate,
                 .triangle = c.triangle,
                 .reach = c.reach});
  if (c.triangle == Triangle::result) {  // elsewhere 0 or the value
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        const auto at = static_cast<std::size_t>(i * c.n + j);
        if (!in_triangle(c.triangle, c.reach, i, j) && y[i * c.n + j] == 0) expected[at] = 0;
      }
    }
  }
  expect_close(y, expected, std::vector<double>(expected.size(), 0.0), "c");
}

TEST_P(SmallProductTest, IsExactOnIntegers) {
  for (const std::int64_t m : {1, 5, 6, 7, 12, 13, 64}) {
    for (const std::int64_t n : {1, 3, 16, 17, 33, 50, 64, 70, 131}) {
      for (const std::int64_t k : {1, 2, 127, 128, 129, 300}) {
        check({m, n, k}, (m + n) % 2 == 0, k % 2 == 0);
      }
    }
  }
}

TEST_P(SmallProductTest, TrianglesLeaveOutOnlyZeros) {
  for (const Triangle triangle : {Triangle::result, Triangle::factor, Triangle::transposed}) {
    for (const std::int64_t reach : {-200, -9, 0, 1, 17, 130, 400}) {
      for (const bool turned : {false, true}) {
        for (const bool accumulate : {false, true}) {
          if (accumulate && triangle == Triangle::result) continue;
          check({64, 70, 64, triangle, reach}, turned, accumulate);
          check({33, 150, 290, triangle, reach}, turned, accumulate);
        }
      }
    }
  }
}

TEST_P(SmallProductTest, NothingToAdd) {
  Array y = random_array({3, 5}, 1);
  const Array before = y;
  const float one = 1;
  SmallProduct product{.m = 3,
                       .n = 5,
                       .k = 0,
                       .a = &one,
                       .b = &one,
                       .c = y.view().as<float>(),
                       .c_row = 5,
                       .accumulate = true};
  small_product(product);
  expect_same_bits(y, before, "kept");
  product.accumulate = false;
  small_product(product);
  expect_same_bits(y, Array({3, 5}), "zeros");
}

TEST_P(SmallProductTest, Transposes) {
  for (const std::int64_t rows : {1, 3, 4, 15, 16, 21, 40}) {
    for (const std::int64_t columns : {1, 3, 4, 7, 64}) {
      Array x = random_array({rows, columns}, 5, 1, 2), y({columns, rows}, 3);
      transpose(y.view().as<float>(), rows + 3, x.view().as<float>(), columns + 2, rows, columns);
      std::vector<double> expected;
      for (std::int64_t c = 0; c < columns; ++c) {
        for (std::int64_t r = 0; r < rows; ++r) expected.push_back(x[r * columns + c]);
      }
      expect_close(y, expected, std::vector<double>(expected.size(), 0.0), "transposed");
    }
  }
}

TRIREME_FOR_INSTRUCTION_SETS(SmallProductTest);

}  // namespace
}  // namespace trireme::ops
