// Matrix products of fp32 by oneDNN.
#include <algorithm>
#include <bit>
#include <cstring>

#include <dnnl.h>

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "threads.hpp"

namespace trireme::ops {

namespace {

// A thread multiplies at least so many rows of the result in fast mode.
constexpr std::int64_t enough_rows = 96;

/// Elements [begin, end) of an axis.
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// How reproducible mode divides a result [m, n] among threads. It depends on the shape alone: the
/// bits of oneDNN's sums may change with the shape of a product. Counts are powers of two.
class Pieces {
 public:
  // Smaller pieces cost more packing than a second thread saves.
  static constexpr std::int64_t least_rows = 48, least_columns = 96, enough = 16;

  Pieces(std::int64_t m, std::int64_t n) : m_(m), n_(n), of_rows_(pieces_of(m, least_rows)) {
    if (of_rows_ < enough) {
      of_columns_ = std::min(enough / of_rows_, pieces_of(n, least_columns));
    }
  }
  std::int64_t count() const { return of_rows_ * of_columns_; }
  Range rows(std::int64_t i) const { return part(m_, i / of_columns_, of_rows_); }
  Range columns(std::int64_t i) const { return part(n_, i % of_columns_, of_columns_); }

 private:
  static std::int64_t pieces_of(std::int64_t size, std::int64_t least) {
    return static_cast<std::int64_t>(
        std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, size / least))));
  }
  static Range part(std::int64_t all, std::int64_t i, std::int64_t count) {
    return {all * i / count, all * (i + 1) / count};
  }

  std::int64_t m_, n_, of_rows_, of_columns_ = 1;
};

/// c [m, n] (+)= op(a)·op(b), on one thread in a parallel region, else on all of OpenMP's.
void sgemm(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b,
           const float* a, std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate,
           float* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  // A view of one row may have any stride; oneDNN requires at least the width.
  const dnnl_status_t status =
      dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0F, a,
                 std::max(lda, transpose_a ? m : k), b, std::max(ldb, transpose_b ? k : n),
                 accumulate ? 1.0F : 0.0F, c, std::max(ldc, n));
  if (status == dnnl_out_of_memory) {
    throw Error(
        "memory: oneDNN has too little for a product of {} x {} x {}; use a smaller model or "
        "batch",
        m, n, k);
  }
  TRIREME_ASSERT(status == dnnl_success, "dnnl_sgemm of {} x {} x {} returned {}", m, n, k,
                 static_cast<int>(status));
}

}  // namespace

void CpuOps::matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                    const MatmulOptions& options) {
  const auto [m, n, k] = product_shape(c, a, b, options);
  if (options.row_sum) {
    TRIREME_ASSERT(options.transpose_a, "row sums of a factor that is not transposed");
    column_sum(options.row_sum, a);
  }
  if (a.type() == DType::bf16) return narrow_matmul(c, a, b, options, m, n, k);
  float_matmul(c, a, b, options, m, n, k);
}

void CpuOps::float_matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                          const MatmulOptions& options, std::int64_t m, std::int64_t n,
                          std::int64_t k) {
  const bool gelu = bool(options.before_gelu), dgelu = bool(options.gelu_input);
  const Rows<float> out = rows_of(gelu ? options.before_gelu : c);
  const Rows<float> left = rows_of(a), right = rows_of(b);
  const float* bias = flat_or_null(options.bias, n);
  const Rows<float> activated = gelu ? rows_of(c) : Rows<float>();
  const Rows<float> slopes = dgelu ? rows_of(options.gelu_input) : Rows<float>();
  const bool streamed = gelu && beyond_caches(m * n * std::int64_t{sizeof(float)});
  // The GELU pass adds the bias; else filled rows are, as fast as oneDNN's product with bias.
  const float* filling = gelu ? nullptr : bias;
  const bool fill = filling != nullptr || (k == 0 && !options.accumulate);
  // Rows and columns of the result.
  const auto multiply = [&](Range row, Range column) {
    const auto bytes = static_cast<std::size_t>(column.size()) * sizeof(float);
    for (std::int64_t r = row.begin; fill && r < row.end; ++r) {
      if (filling != nullptr) {
        std::memcpy(out.row(r) + column.begin, filling + column.begin, bytes);
      } else {
        std::memset(out.row(r) + column.begin, 0, bytes);
      }
    }
    if (k > 0) {
      sgemm(row.size(), column.size(), k, options.transpose_a, options.transpose_b,
            left.data + row.begin * (options.transpose_a ? 1 : left.stride), left.stride,
            right.data + column.begin * (options.transpose_b ? right.stride : 1), right.stride,
            fill || options.accumulate, out.row(row.begin) + column.begin, out.stride);
    }
  };
  const auto activate = [&](Range row, Range column) {
    const std::int64_t first = column.begin;
    for (std::int64_t r = row.begin; r < row.end; ++r) {
      float* to = out.row(r) + first;
      if (gelu) {
        biased_gelu_row(column.size(), activated.row(r) + first, to,
                        bias == nullptr ? nullptr : bias + first, streamed);
      }
      if (dgelu) gelu_backward_row(column.size(), to, to, slopes.row(r) + first);
    }
    if (gelu) end_stream(streamed);
  };
  const auto piece = [&](Range row, Range column) {
    const ThreadScope scope(1);
    multiply(row, column);
    if (gelu || dgelu) activate(row, column);
  };
  const Range all_columns{0, n};
  if (reproducible_) {
    const Pieces pieces(m, n);
    parallel_tasks(threads_, pieces.count(), [&](std::int64_t i, int /*thread*/) {
      piece(pieces.rows(i), pieces.columns(i));
    });
  } else if (threads_ > 1 && m >= enough_rows * threads_) {
    // This is up to 1.2 times as fast as oneDNN's own division.
    parallel_ranges(threads_, m, enough_rows, 16, [&](std::int64_t begin, std::int64_t end) {
      piece({begin, end}, all_columns);
    });
  } else {
    {
      const ThreadScope scope(threads_);
      multiply({0, m}, all_columns);
    }
    if (gelu || dgelu) {
      parallel_rows(threads_, m, n, [&](std::int64_t begin, std::int64_t end) {
        activate({begin, end}, all_columns);
      });
    }
  }
}

}  // namespace trireme::ops
