// Tensors as kernels of every backend see them.
#pragma once

#include <cstdint>

#include "trireme/core/tensor.hpp"

namespace trireme::ops {

/// [rows, columns], rows `stride` elements apart.
struct RowShape {
  std::int64_t rows, columns, stride;
};

/// [R, C] with any row stride; one dimension is one row; more must be contiguous and fold into
/// rows.
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

}  // namespace trireme::ops
