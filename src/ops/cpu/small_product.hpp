// Matrix products of factors in a core's caches, on the calling thread, for attention. Factors are
// not copied or packed, so a product of a few rows costs no more than its arithmetic.
#pragma once

#include <cstdint>

#include "prefetch.hpp"

namespace trireme::ops {

/// A triangular factor or result, the rest of which is skipped: row i has `reach` + i columns.
enum class Triangle : std::uint8_t {
  none,
  result,      // c(i, j) is wanted for j < reach + i, and 0 or its value elsewhere
  factor,      // a(i, p) is 0 for p ≥ reach + i
  transposed,  // a(i, p) is 0 for i ≥ reach + p
};

/// c [m, n] = scale·a·b, or += a·b with `accumulate`. Element (i, p) of a [m, k] is
/// a[i·a_row + p·a_column]; b [k, n] and c are strided in rows and may not overlap. An element's
/// sum runs over p in order, in blocks of `product_depth` that are added in order: its bits depend
/// on the factors and k alone.
struct SmallProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  std::int64_t a_row = 0, a_column = 1;
  const float* b = nullptr;
  std::int64_t b_row = 0;
  float* c = nullptr;
  std::int64_t c_row = 0;
  float scale = 1;
  bool accumulate = false;  // not together with Triangle::result
  Triangle triangle = Triangle::none;
  std::int64_t reach = 0;
  PrefetchQueue* ahead = nullptr;  // if not null, memory to prefetch meanwhile
};

/// Rows of b per block: with 64 columns they fill a first-level cache of 32 KiB.
inline constexpr std::int64_t product_depth = 128;

void small_product(const SmallProduct& product);

/// out [columns, rows] = xᵀ of x [rows, columns]; both strided in rows.
void transpose(float* out, std::int64_t out_row, const float* x, std::int64_t x_row,
               std::int64_t rows, std::int64_t columns);

}  // namespace trireme::ops
