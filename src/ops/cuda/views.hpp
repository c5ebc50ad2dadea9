// Tensors as kernels take them.
#pragma once

#include <cstdint>

#include "trireme/core/tensor.hpp"

#include "kernels.hpp"

namespace trireme::ops {

/// One of the compute types.
inline Element element_of(DType type) {
  TRIREME_ASSERT(type == DType::f32 || type == DType::bf16 || type == DType::f16, "tensor of {}",
                 name_of(type));
  return type == DType::f32 ? Element::f32 : type == DType::bf16 ? Element::bf16 : Element::f16;
}

/// [R, C] with any row stride; one dimension is one row; more must be contiguous and fold into
/// rows.
inline Matrix matrix_of(const Tensor& x) {
  const int dimensions = x.shape().dimensions();
  const Element type = element_of(x.type());
  if (dimensions == 1) return {x.data(), type, 1, x.extent(0), x.extent(0)};
  if (dimensions == 2) return {x.data(), type, x.extent(0), x.extent(1), x.stride(0)};
  TRIREME_ASSERT(x.contiguous(), "a view of shape {} is not contiguous", x.shape().to_string());
  const std::int64_t columns = x.extent(dimensions - 1);
  return {x.data(), type, columns == 0 ? 0 : x.elements() / columns, columns, columns};
}

/// The same, of a type and shape.
inline Matrix matrix_like(const Tensor& x, const Matrix& other, const char* op) {
  const Matrix own = matrix_of(x);
  TRIREME_ASSERT(own.rows == other.rows && own.columns == other.columns && own.type == other.type,
                 "{}: {} {} beside {} columns of {} rows", op, name_of(x.type()),
                 x.shape().to_string(), other.columns, other.rows);
  return own;
}

/// All elements of a contiguous tensor as one row.
inline Matrix row_of(const Tensor& x, std::int64_t elements) {
  TRIREME_ASSERT(x.contiguous() && x.elements() == elements,
                 "shape {} where {} contiguous elements are needed", x.shape().to_string(),
                 elements);
  return {x.data(), element_of(x.type()), 1, elements, elements};
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

/// The elements of a contiguous tensor of a type, or null when it is absent.
inline const void* vector_of(const Tensor& x, Element type, std::int64_t elements) {
  if (!x) return nullptr;
  TRIREME_ASSERT(element_of(x.type()) == type, "a vector of {}", name_of(x.type()));
  return row_of(x, elements).data;
}

}  // namespace trireme::ops
