// Applies bias, GELU or its slope to the sums of a product before they are rounded.
#pragma once

#include "elements.cuh"
#include "gelu.cuh"

namespace trireme::ops {

template <class T>
struct FinishViews {
  const T* bias;
  bool bias_aligned, accumulate;
  View<T> before_gelu, gelu_input;

  explicit FinishViews(const Finish& finish)
      : bias(static_cast<const T*>(finish.bias)),
        bias_aligned(is_aligned(finish.bias)),
        accumulate(finish.accumulate),
        before_gelu(view<T>(finish.before_gelu)),
        gelu_input(view<T>(finish.gelu_input)) {}

  template <class To>
  __device__ void apply(float (&v)[pack], const View<To>& c, std::int64_t r, std::int64_t column,
                        int count) const {
    float other[pack];
    if (bias != nullptr) {
      load(other, bias + column, count, bias_aligned);
#pragma unroll
      for (int i = 0; i < pack; ++i) v[i] += other[i];
    }
    if (before_gelu.data != nullptr) {
      before_gelu.store(v, r, column, count);
#pragma unroll
      for (int i = 0; i < pack; ++i) v[i] = gelu_value(v[i]);
    }
    if (gelu_input.data != nullptr) {
      gelu_input.load(other, r, column, count);
#pragma unroll
      for (int i = 0; i < pack; ++i) v[i] *= gelu_slope(other[i]);
    }
    if (accumulate) {
      c.load(other, r, column, count);
#pragma unroll
      for (int i = 0; i < pack; ++i) v[i] += other[i];
    }
    c.store(v, r, column, count);
  }
};

}  // namespace trireme::ops
