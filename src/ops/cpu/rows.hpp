// A tensor seen as rows of contiguous columns, elementwise passes, and activations of one row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "trireme/device/memory.hpp"
#include "trireme/ops/tensor_rows.hpp"

#include "prefetch.hpp"
#include "storage.hpp"
#include "threads.hpp"

namespace trireme::ops {

/// Whether a result of `bytes` is written by streaming stores, which bypass the caches: it is about
/// twice the last-level cache of a core complex or larger.
inline bool beyond_caches(std::int64_t bytes) { return bytes >= std::int64_t{64} << 20; }
/// To be called after a thread's last streaming store.
void end_stream(bool streamed);

/// The same for a result that is none of the inputs: in-place updates have its lines cached.
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
  /// Elements from a row to the one to prefetch meanwhile.
  std::int64_t ahead() const {
    constexpr std::int64_t most = 65536, element = sizeof(T);
    const std::int64_t bytes = stride * element;
    if (bytes <= 0 || bytes > most) return fetch_distance / element;
    return (fetch_distance + bytes - 1) / bytes * stride;
  }
  bool contiguous() const { return rows <= 1 || stride == columns; }
};

template <class T>
Rows<T> rows_of(const Tensor& x) {
  const RowShape shape = row_shape(x);
  return {x.as<T>(), shape.rows, shape.columns, shape.stride};
}

/// Asserts that a and b have one shape.
template <class T>
void check_same_rows(const Rows<T>& a, const Rows<T>& b, const char* op) {
  TRIREME_ASSERT(a.rows == b.rows && a.columns == b.columns, "{}: [{}, {}] and [{}, {}]", op,
                 a.rows, a.columns, b.rows, b.columns);
}

inline Rows<float> rows_of(const Tensor& x) { return rows_of<float>(x); }

/// A parameter as kernels of type T read it, or null if it is absent. fp32 beside bf16 is rounded
/// to nearest into `rounded_scratch` [elements].
template <class T>
const T* read_as(const Tensor& parameter, std::int64_t elements, T* rounded_scratch) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (parameter && parameter.type() == DType::f32) {
      const float* wide = flat(parameter, elements);
      for (std::int64_t i = 0; i < elements; ++i) rounded_scratch[i] = rounded(wide[i]);
      return rounded_scratch;
    }
  }
  return flat_or_null<T>(parameter, elements);
}
/// Bytes of `rounded_scratch`.
inline std::size_t rounded_vector_bytes(std::int64_t elements) {
  return device::aligned(static_cast<std::size_t>(elements) * sizeof(Bf16));
}

/// kernel(n, y, x..., streamed) on all threads, over the elements of contiguous tensors.
template <class T, class Kernel, class... Inputs>
void for_elements(int threads, std::int64_t elements, Kernel* kernel, T* y, const Inputs*... x) {
  const bool streamed = writes_apart(y, elements, x...);
  parallel_elements(threads, elements, [&](std::int64_t begin, std::int64_t end) {
    kernel(static_cast<std::size_t>(end - begin), y + begin, (x + begin)..., streamed);
    end_stream(streamed);
  });
}

/// body(r) for each row on all threads. `streamed`: it writes by streaming stores.
template <class Body>
void for_rows(int threads, std::int64_t rows, std::int64_t columns, const Body& body,
              bool streamed = false) {
  parallel_rows(threads, rows, columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) body(r);
    end_stream(streamed);
  });
}

/// Elements [begin, end) of an axis.
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// y += x on a block of rows and columns, on the calling thread.
void add_block(const Rows<float>& y, const Rows<float>& x, Range rows, Range columns);

// Activations of one row, for fusion into products.
/// y = gelu(x)
void gelu_row(std::int64_t n, Bf16* y, const Bf16* x);
/// x += bias, y = gelu(x); null: no bias. `streamed`: y bypasses the caches if it is aligned.
void biased_gelu_row(std::int64_t n, float* y, float* x, const float* bias, bool streamed);
/// dx = dy·gelu'(x); dx may be dy.
void gelu_backward_row(std::int64_t n, Bf16* dx, const Bf16* dy, const Bf16* x);
void gelu_backward_row(std::int64_t n, float* dx, const float* dy, const float* x);

}  // namespace trireme::ops
