// Matrix products on oneDNN.
#include <algorithm>
#include <cstring>

#include <dnnl.h>

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "threads.hpp"

namespace trireme::ops {

namespace {

/// c [m, n] = op(a)·op(b), or += where `accumulate`; leading dimensions in elements. On one thread
/// inside a parallel region, else on as many as OpenMP offers.
void sgemm(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b,
           const float* a, std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate,
           float* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  // A view of one row may have any stride; oneDNN wants leading dimensions of at least the width.
  const dnnl_status_t status =
      dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0F, a,
                 std::max(lda, transpose_a ? m : k), b, std::max(ldb, transpose_b ? k : n),
                 accumulate ? 1.0F : 0.0F, c, std::max(ldc, n));
  TRIREME_ASSERT(status == dnnl_success, "dnnl_sgemm of {} x {} x {} returned {}", m, n, k,
                 static_cast<int>(status));
}

}  // namespace

void CpuOps::matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                    const MatmulOptions& options) {
  if (a.type() == DType::bf16) return narrow_matmul(c, a, b, options);
  const Rows<float> out = rows_of(c), left = rows_of(a), right = rows_of(b);
  const std::int64_t m = out.rows, n = out.columns;
  const std::int64_t k = options.transpose_a ? left.rows : left.columns;
  TRIREME_ASSERT((options.transpose_a ? left.columns : left.rows) == m &&
                     (options.transpose_b ? right.columns : right.rows) == k &&
                     (options.transpose_b ? right.rows : right.columns) == n,
                 "product of {}{} and {}{} into {}", a.shape().to_string(),
                 options.transpose_a ? " transposed" : "", b.shape().to_string(),
                 options.transpose_b ? " transposed" : "", c.shape().to_string());
  const bool gelu = bool(options.before_gelu), dgelu = bool(options.gelu_input);
  TRIREME_ASSERT(!(options.accumulate && (options.bias || gelu || dgelu)) && !(gelu && dgelu),
                 "accumulation into {} together with what wants the whole", c.shape().to_string());
  if (options.row_sum) {
    TRIREME_ASSERT(options.transpose_a, "row sums of a factor that is not transposed");
    column_sum(options.row_sum, a);
  }
  if (gelu) {
    MatmulOptions plain = options;
    plain.before_gelu = plain.row_sum = {};
    matmul(options.before_gelu, a, b, plain);
    return for_each_row(c, options.before_gelu,
                        [&](const Tensor& y, const Tensor& x) { this->gelu(y, x); });
  }
  const float* bias = flat_or_null(options.bias, n);
  const bool fill = bias != nullptr || (k == 0 && !options.accumulate);
  const auto rows = [&](std::int64_t begin, std::int64_t end) {
    // Filling rows ahead and accumulating is as fast here as oneDNN's product with bias.
    const auto bytes = static_cast<std::size_t>(n) * sizeof(float);
    for (std::int64_t r = begin; fill && r < end; ++r) {
      if (bias != nullptr) {
        std::memcpy(out.row(r), bias, bytes);
      } else {
        std::memset(out.row(r), 0, bytes);
      }
    }
    if (k == 0) return;
    sgemm(end - begin, n, k, options.transpose_a, options.transpose_b,
          left.data + begin * (options.transpose_a ? 1 : left.stride), left.stride, right.data,
          right.stride, fill || options.accumulate, out.row(begin), out.stride);
  };
  // Each thread its rows: up to 1.2 times as fast as oneDNN's own division among threads.
  constexpr std::int64_t enough_rows = 96;
  if (product_threads_ > 1 && m >= enough_rows * product_threads_) {
    parallel_ranges(product_threads_, m, enough_rows, 16, rows);
  } else {
    const ThreadScope scope(product_threads_);
    rows(0, m);
  }
  if (dgelu) {
    for_each_row(c, options.gelu_input,
                 [&](const Tensor& y, const Tensor& x) { gelu_backward(y, y, x); });
  }
}

}  // namespace trireme::ops
