// Sums over rows: no element is omitted or counted twice, and the order of additions is independent
// of the number of threads and of tiles per thread.
#include "support.hpp"

namespace trireme::ops {
namespace {

class RowSumsTest : public OpsTest {};

/// Whole numbers between −8 and 8, whose sums fp32 holds exactly.
Array whole_numbers(const Shape& shape, std::uint32_t stream) {
  const Integers drawn = random_integers(shape, stream, 17);
  Array x(shape);
  for (std::int64_t i = 0; i < x.elements(); ++i) x[i] = static_cast<float>(drawn[i] - 8);
  return x;
}

/// Around every number of tiles where a thread's share or its groups change.
const std::vector<std::int64_t> row_counts = {1,           63,           64,       65,
                                              7 * 64,      16 * 64,      17 * 64,  47 * 64,
                                              64 * 64 + 1, 100 * 64 + 5, 257 * 64, 515 * 64 + 63};

TEST_P(RowSumsTest, WholeNumbersAreExact) {
  const std::int64_t columns = 37;
  for (const std::int64_t rows : row_counts) {
    const Array x = whole_numbers({rows, columns}, 1), dy = whole_numbers({rows, columns}, 2);
    std::vector<double> sum(columns), product(columns);
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const auto column = static_cast<std::size_t>(i % columns);
      sum[column] += double{dy[i]};
      product[column] += double{dy[i]} * (double{x[i]} - 1) * 2;
    }
    Array mean({rows}), rstd({rows});
    for (std::int64_t r = 0; r < rows; ++r) mean[r] = 1, rstd[r] = 2;
    const std::vector<double> none(columns);
    for (const int threads : {1, 2, 3}) {
      const auto backend = make_cpu_ops(threads);
      Array total({columns}), dgain({columns}), dbias({columns}), in = x, gradient = dy;
      backend->column_sum(total, gradient);
      backend->norm_backward_weight(dgain, dbias, gradient, in, mean, rstd);
      const std::string what = std::to_string(rows) + " rows, " + std::to_string(threads);
      expect_close(total, sum, none, "column_sum, " + what);
      expect_close(dbias, sum, none, "dbias, " + what);
      expect_close(dgain, product, none, "dgain, " + what);
    }
  }
}

TEST_P(RowSumsTest, OrderDoesNotDependOnThreads) {
  for (const std::int64_t rows : row_counts) {
    for (const std::int64_t columns : {5, 19}) {
      Array x = random_array({rows, columns}, 1), dy = random_array({rows, columns}, 2);
      Array rstd = random_array({rows}, 3);
      std::vector<Array> results;
      for (const int threads : {1, 2, 3, 7}) {
        const auto backend = make_cpu_ops(threads);
        Array total({columns}), dgain({columns});
        backend->column_sum(total, x);
        backend->norm_backward_weight(dgain, {}, dy, x, {}, rstd);
        results.push_back(total);
        results.push_back(dgain);
      }
      for (std::size_t i = 2; i < results.size(); ++i) {
        expect_same_bits(results[i % 2], results[i], std::to_string(rows) + " rows");
      }
    }
  }
}

TRIREME_FOR_INSTRUCTION_SETS(RowSumsTest);

}  // namespace
}  // namespace trireme::ops
