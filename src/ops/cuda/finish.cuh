// The tanh form of GELU and the logistic function, as in the CPU backend; and the finish of a
// product: bias, GELU or its slope, applied to its sums before they are rounded.
#pragma once

#include "elements.cuh"

namespace trireme::ops {

/// 1/(1 + exp(−z)); exp may be +∞, which gives 0.
__device__ inline float logistic(float z) { return 1.0F / (1.0F + expf(-z)); }

/// The logistic function and its slope, by exp(−|z|): no infinity, no cancellation.
struct Sigmoid {
  float value, slope;
};
__device__ inline Sigmoid sigmoid(float z) {
  const float e = expf(-fabsf(z)), r = 1.0F / (1.0F + e), er = e * r;
  return {z < 0.0F ? er : r, er * r};
}

// ½(1 + tanh u) = sigmoid(2u); 2u = x(a + b·x²) with a = 2√(2/π), b = 0.044715·a.
inline constexpr float gelu_a = 1.5957691216057308F;
inline constexpr float gelu_b = 0.07135481282618986F;

__device__ inline float gelu_value(float x) {
  return x * logistic(x * fmaf(gelu_b, x * x, gelu_a));
}

__device__ inline float gelu_slope(float x) {
  // Beyond ±30 the slope is 0 or 1; the cube of a much larger x would overflow.
  const float c = fmaxf(-30.0F, fminf(x, 30.0F)), square = c * c;
  const Sigmoid s = sigmoid(c * fmaf(gelu_b, square, gelu_a));
  const float slope = fmaf(c * fmaf(3.0F * gelu_b, square, gelu_a), s.slope, s.value);
  return x != x ? x : slope;  // the clamp loses a NaN
}

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
