// A tensor seen as rows of contiguous columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "trireme/core/tensor.hpp"
#include "trireme/device/memory.hpp"

#include "prefetch.hpp"
#include "storage.hpp"

namespace trireme::ops {

/// Whether a result of so many bytes is written past the caches: it could not stay there, and its
/// lines need not be read before they are overwritten. Twice the usual last level of a core
/// complex.
inline bool beyond_caches(std::int64_t bytes) { return bytes >= std::int64_t{64} << 20; }
/// After the last of a thread's stores past the caches.
void end_stream(bool streamed);

/// The same of a result that is none of the inputs: what is updated in place was read already.
template <class T, class... Inputs>
bool writes_apart(const T* y, std::int64_t elements, const Inputs*... inputs) {
  return beyond_caches(elements * static_cast<std::int64_t>(sizeof(T))) &&
         (true && ... && (static_cast<const void*>(y) != static_cast<const void*>(inputs)));
}

template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t rows = 0, columns = 0, stride = 0;
  T* row(std::int64_t r) const { return data + r * stride; }
  /// Rows [begin, end).
  Rows from(std::int64_t begin, std::int64_t end) const {
    return {row(begin), end - begin, columns, stride};
  }
  Rows from(std::int64_t begin) const { return from(begin, rows); }
  /// Elements from a row to the one to be fetched while it is worked on.
  std::int64_t ahead() const {
    constexpr std::int64_t most = 65536, element = sizeof(T);
    const std::int64_t bytes = stride * element;
    if (bytes <= 0 || bytes > most) return fetch_distance / element;
    return (fetch_distance + bytes - 1) / bytes * stride;
  }
  bool contiguous() const { return rows <= 1 || stride == columns; }
};

/// [R, C] with any row stride; one dimension is one row; more must be contiguous and fold into
/// rows.
template <class T>
Rows<T> rows_of(const Tensor& x) {
  const int dimensions = x.shape().dimensions();
  if (dimensions == 1) return {x.as<T>(), 1, x.extent(0), x.extent(0)};
  if (dimensions == 2) return {x.as<T>(), x.extent(0), x.extent(1), x.stride(0)};
  TRIREME_ASSERT(x.contiguous(), "a view of shape {} is not contiguous", x.shape().to_string());
  const std::int64_t columns = x.extent(dimensions - 1);
  return {x.as<T>(), columns == 0 ? 0 : x.elements() / columns, columns, columns};
}

/// Whether a and b are of one shape, as `op` needs it.
template <class T>
void check_same_rows(const Rows<T>& a, const Rows<T>& b, const char* op) {
  TRIREME_ASSERT(a.rows == b.rows && a.columns == b.columns, "{}: [{}, {}] and [{}, {}]", op,
                 a.rows, a.columns, b.rows, b.columns);
}

inline Rows<float> rows_of(const Tensor& x) { return rows_of<float>(x); }

/// The elements of a contiguous tensor.
template <class T = float>
T* flat(const Tensor& x, std::int64_t elements) {
  TRIREME_ASSERT(x.contiguous() && x.elements() == elements,
                 "shape {} where {} contiguous elements are needed", x.shape().to_string(),
                 elements);
  return x.as<T>();
}

/// The elements of a contiguous tensor, or null when it is absent.
template <class T = float>
T* flat_or_null(const Tensor& x, std::int64_t elements) {
  return x ? flat<T>(x, elements) : nullptr;
}

/// What a parameter beside activations of type T is read as, or null when it is absent: fp32 ones
/// beside bf16 are rounded to nearest into `room` [elements].
template <class T>
const T* read_as(const Tensor& parameter, std::int64_t elements, T* room) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (parameter && parameter.type() == DType::f32) {
      const float* wide = flat(parameter, elements);
      for (std::int64_t i = 0; i < elements; ++i) room[i] = rounded(wide[i]);
      return room;
    }
  }
  return flat_or_null<T>(parameter, elements);
}
/// Bytes of that room.
inline std::size_t rounded_vector_bytes(std::int64_t elements) {
  return device::aligned(static_cast<std::size_t>(elements) * sizeof(Bf16));
}

}  // namespace trireme::ops
