// The tanh form of GELU and the logistic function, as in the CPU backend.
#pragma once

#include "language.cuh"

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

}  // namespace trireme::ops
