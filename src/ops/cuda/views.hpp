// Tensors as kernels take them.
#pragma once

#include <cmath>
#include <cstdint>

#include "trireme/ops/ops.hpp"
#include "trireme/ops/tensor_rows.hpp"

#include "kernels.hpp"

namespace trireme::ops {

/// One of the compute types.
inline Element element_of(DType type) {
  TRIREME_ASSERT(type == DType::f32 || type == DType::bf16 || type == DType::f16, "tensor of {}",
                 name_of(type));
  return type == DType::f32 ? Element::f32 : type == DType::bf16 ? Element::bf16 : Element::f16;
}

inline Matrix matrix_of(const Tensor& x) {
  const RowShape shape = row_shape(x);
  return {x.data(), element_of(x.type()), shape.rows, shape.columns, shape.stride};
}

/// The same, of the type and shape of `other`.
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

/// The elements of a contiguous tensor of a type, or null when it is absent.
inline const void* vector_of(const Tensor& x, Element type, std::int64_t elements) {
  if (!x) return nullptr;
  TRIREME_ASSERT(element_of(x.type()) == type, "a vector of {}", name_of(x.type()));
  return row_of(x, elements).data;
}

/// Dropout as kernels take it: threshold and factor of the CPU backend.
inline Keep keep_of(const Dropout& dropout) {
  return {dropout.key.seed, static_cast<std::uint32_t>(dropout.key.purpose), dropout.key.stream,
          static_cast<std::uint32_t>(std::ceil(double{dropout.rate} * 4294967296.0)),
          1.0F / (1.0F - dropout.rate)};
}

}  // namespace trireme::ops
