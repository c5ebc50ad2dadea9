// oneDNN's single-precision product, row-major.
#pragma once

#include <cstdint>

namespace trireme::ops {

struct GemmShape {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
};

/// c [m, n] = alpha·op(a)·op(b) + beta·c; leading dimensions in elements. On one thread inside a
/// parallel region, else on as many as OpenMP offers.
void sgemm(const GemmShape& shape, float alpha, const float* a, std::int64_t lda, const float* b,
           std::int64_t ldb, float beta, float* c, std::int64_t ldc);

}  // namespace trireme::ops
