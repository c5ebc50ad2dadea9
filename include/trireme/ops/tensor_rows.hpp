// Tensors as kernels of every backend see them.
#pragma once

#include <cstdint>

#include "trireme/ops/ops.hpp"
#include "trireme/ops/workspace.hpp"

namespace trireme::ops {

/// [rows, columns], rows `stride` elements apart.
struct RowShape {
  std::int64_t rows, columns, stride;
};

/// [R, C] with any row stride; one dimension is a row; more are contiguous and fold into rows.
inline RowShape row_shape(const Tensor& x) {
  const int dimensions = x.shape().dimensions();
  if (dimensions == 1) return {1, x.extent(0), x.extent(0)};
  if (dimensions == 2) return {x.extent(0), x.extent(1), x.stride(0)};
  TRIREME_ASSERT(x.contiguous(), "a view of shape {} is not contiguous", x.shape().to_string());
  const std::int64_t columns = x.extent(dimensions - 1);
  return {columns == 0 ? 0 : x.elements() / columns, columns, columns};
}

/// The elements of a contiguous tensor.
template <class T = float>
T* flat(const Tensor& x, std::int64_t elements) {
  TRIREME_ASSERT(x.contiguous() && x.elements() == elements,
                 "shape {} where {} contiguous elements are needed", x.shape().to_string(),
                 elements);
  return x.as<T>();
}

/// The same, or null when it is absent.
template <class T = float>
T* flat_or_null(const Tensor& x, std::int64_t elements) {
  return x ? flat<T>(x, elements) : nullptr;
}

/// Of c [m, n] = op(a) [m, k]·op(b) [k, n]. Asserts that shapes fit, and that options do not
/// exclude each other.
inline ProductShape product_shape(const Tensor& c, const Tensor& a, const Tensor& b,
                                  const MatmulOptions& options) {
  const bool gelu = bool(options.before_gelu), dgelu = bool(options.gelu_input);
  const RowShape out = row_shape(c), left = row_shape(a), right = row_shape(b);
  const std::int64_t m = out.rows, n = out.columns;
  const std::int64_t k = options.transpose_a ? left.rows : left.columns;
  TRIREME_ASSERT((options.transpose_a ? left.columns : left.rows) == m &&
                     (options.transpose_b ? right.columns : right.rows) == k &&
                     (options.transpose_b ? right.rows : right.columns) == n,
                 "product of {}{} and {}{} into {}", a.shape().to_string(),
                 options.transpose_a ? " transposed" : "", b.shape().to_string(),
                 options.transpose_b ? " transposed" : "", c.shape().to_string());
  TRIREME_ASSERT(!(options.accumulate && (options.bias || gelu || dgelu)) && !(gelu && dgelu),
                 "accumulation into {} together with what wants the whole", c.shape().to_string());
  TRIREME_ASSERT((!gelu || c.shape() == options.before_gelu.shape()) &&
                     (!dgelu || c.shape() == options.gelu_input.shape()),
                 "an activation beside a product into {}", c.shape().to_string());
  return {m, n, k};
}

}  // namespace trireme::ops
