// GELU and SwiGLU, through the logistic function.

#include <algorithm>

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/activation.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "narrow-inl.hpp"
#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

/// The logistic function 1/(1 + exp(−z)); exp may be +∞, which gives 0.
HWY_INLINE Floats logistic(Floats z) {
  const FloatTag d;
  const Floats one = hn::Set(d, 1.0F);
  const Floats e = exponential(d, hn::Min(hn::Neg(z), hn::Set(d, 89.0F)));
  return hn::Div(one, hn::Add(one, e));
}

/// The logistic function of z and its slope, by exp(−|z|): no infinity, no cancellation.
struct Sigmoid {
  Floats value, slope;
};

HWY_INLINE Sigmoid sigmoid(Floats z) {
  const FloatTag d;
  const Floats one = hn::Set(d, 1.0F);
  const Floats e = exponential(d, hn::Neg(hn::Abs(z)));
  const Floats r = hn::Div(one, hn::Add(one, e));
  const Floats er = hn::Mul(e, r);
  return {hn::IfThenElse(hn::Lt(z, hn::Zero(d)), er, r), hn::Mul(er, r)};
}

// ½(1 + tanh u) = 1/(1 + 2ᵗ), t = −2u·log₂ e = x(a + b·x²), with a = −2√(2/π)·log₂ e and
// b = 0.044715·a. 2ᵗ costs less than exp and is as accurate, since t is rounded in any case.
constexpr float log2_gelu_a = -1.4426950408889634F * 1.5957691216057308F;
constexpr float log2_gelu_b = 0.044715F * log2_gelu_a;
// Where t is ∓123: the slope is 1 or below 3e-35, and no power of two overflows.
constexpr float gelu_limit = 9.9F;
/// Terms of power_of_two for results of type T.
template <class T>
constexpr int gelu_terms = std::is_same_v<T, Bf16> ? 4 : 5;

template <int terms>
HWY_INLINE Floats gelu_value(Floats x) {
  const FloatTag d;
  const Floats inner = hn::MulAdd(hn::Set(d, log2_gelu_b), hn::Mul(x, x), hn::Set(d, log2_gelu_a));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0F), power_of_two<terms>(hn::Mul(x, inner))));
}

/// With r = 1/(1 + 2ᵗ): r + x·(2u)'·r·(1 − r), with 1 − r as r·2ᵗ to avoid cancellation.
template <int terms>
HWY_INLINE Floats gelu_slope(Floats x) {
  const FloatTag d;
  constexpr float ln2 = 0.6931471805599453F;
  const Floats c = at_least(-gelu_limit, at_most(gelu_limit, x)), square = hn::Mul(c, c);
  const Floats inner = hn::MulAdd(hn::Set(d, log2_gelu_b), square, hn::Set(d, log2_gelu_a));
  const Floats e = power_of_two<terms>(hn::Mul(c, inner));
  const Floats one = hn::Set(d, 1.0F), r = hn::Div(one, hn::Add(one, e));
  const Floats inner_slope =
      hn::MulAdd(hn::Set(d, -3 * ln2 * log2_gelu_b), square, hn::Set(d, -ln2 * log2_gelu_a));
  return hn::MulAdd(hn::Mul(hn::Mul(c, inner_slope), hn::Mul(e, r)), r, r);
}

template <class T>
void gelu_range(std::size_t n, T* y, const T* x, bool streamed) {
  map_out(
      streamed, n, y, [](Floats v) HWY_ATTR { return gelu_value<gelu_terms<T>>(v); },
      prefetched(x));
}
TRIREME_INSTANCES(gelu_range);

/// x += bias; x stays cached for the next pass.
void add_bias(std::size_t n, float* x, const float* bias) {
  map(
      n, x, [](Floats v, Floats b) HWY_ATTR { return hn::Add(v, b); }, prefetched(x), bias);
}

template <class T>
void gelu_backward_range(std::size_t n, T* dx, const T* dy, const T* x, bool streamed) {
  map_out(
      streamed, n, dx,
      [](Floats g, Floats v) HWY_ATTR { return hn::Mul(g, gelu_slope<gelu_terms<T>>(v)); },
      prefetched(dy), prefetched(x));
}
TRIREME_INSTANCES(gelu_backward_range);

/// 1/(1 + exp(−z)) times a, for results in bf16.
HWY_INLINE Floats narrow_logistic(Floats z, Floats a) {
  const FloatTag d;
  const Floats e = power_of_two<4>(hn::Mul(z, hn::Set(d, -log2_e)));
  return hn::Div(a, hn::Add(hn::Set(d, 1.0F), e));
}

template <class T>
void swiglu_row(std::size_t n, T* y, const T* gate_up, std::int64_t ahead, bool streamed) {
  const Prefetched<T> gate{gate_up, ahead}, up{gate_up + n, ahead};
  if constexpr (std::is_same_v<T, Bf16>) {
    map_out(
        streamed, n, y,
        [](Floats g, Floats u) HWY_ATTR { return hn::Mul(narrow_logistic(g, g), u); }, gate, up);
  } else {
    map_out(
        streamed, n, y,
        [](Floats g, Floats u) HWY_ATTR { return hn::Mul(hn::Mul(g, logistic(g)), u); }, gate, up);
  }
}
TRIREME_INSTANCES(swiglu_row);

struct GateGradients {
  Floats gate, up;
};
template <class T>
HWY_INLINE GateGradients gate_gradients(Floats gradient, Floats g, Floats u) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const Floats one = hn::Set(FloatTag(), 1.0F), r = narrow_logistic(g, one);
    const Floats slope = hn::Mul(r, hn::MulAdd(g, hn::Sub(one, r), one));
    return {hn::Mul(hn::Mul(gradient, u), slope), hn::Mul(gradient, hn::Mul(g, r))};
  } else {
    const Sigmoid s = sigmoid(g);
    return {hn::Mul(hn::Mul(gradient, u), hn::MulAdd(g, s.slope, s.value)),
            hn::Mul(gradient, hn::Mul(g, s.value))};
  }
}

/// Rows of [n] and [2n]; `ahead` and `pair_ahead`: prefetch distances in dy and gate_up.
template <class T>
void swiglu_backward_row(std::size_t n, T* dgate, const T* dy, const T* gate_up, std::int64_t ahead,
                         std::int64_t pair_ahead, bool streamed) {
  const FloatTag d;
  T* dup = dgate + n;
  const Prefetched<T> gradient{dy, ahead}, gate{gate_up, pair_ahead}, up{gate_up + n, pair_ahead};
  const std::size_t lanes = hn::Lanes(d), vector = lanes * sizeof(float);
  streamed = streamed && reinterpret_cast<std::uintptr_t>(dgate) % vector == 0 &&
             reinterpret_cast<std::uintptr_t>(dup) % vector == 0;
  std::size_t i = 0;
#if TRIREME_OPS_PAIRS
  if constexpr (std::is_same_v<T, Bf16>) {
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
      prefetch_line(gradient + i);
      prefetch_line(gate + i);
      prefetch_line(up + i);
      const FloatPair vdy = load_pair(dy + i), g = load_pair(gate + i), u = load_pair(up + i);
      const GateGradients even = gate_gradients<T>(vdy.even, g.even, u.even);
      const GateGradients odd = gate_gradients<T>(vdy.odd, g.odd, u.odd);
      if (streamed) {
        store_pair<true>({even.gate, odd.gate}, dgate + i);
        store_pair<true>({even.up, odd.up}, dup + i);
      } else {
        store_pair<false>({even.gate, odd.gate}, dgate + i);
        store_pair<false>({even.up, odd.up}, dup + i);
      }
    }
  }
#endif
  if constexpr (std::is_same_v<T, float>) {
    for (; streamed && i + lanes <= n; i += lanes) {
      prefetch_line(gradient + i);
      prefetch_line(gate + i);
      prefetch_line(up + i);
      const GateGradients v = gate_gradients<T>(hn::LoadU(d, dy + i), hn::LoadU(d, gate_up + i),
                                                hn::LoadU(d, gate_up + n + i));
      hn::Stream(v.gate, d, dgate + i);
      hn::Stream(v.up, d, dup + i);
    }
  }
  const std::size_t rest = i;
  for_vectors(n - rest, [&](std::size_t j, auto access) HWY_ATTR {
    const std::size_t at = rest + j;
    prefetch_line(gradient + at);
    prefetch_line(gate + at);
    prefetch_line(up + at);
    const GateGradients v = gate_gradients<T>(access.load(d, dy + at), access.load(d, gate + at),
                                              access.load(d, up + at));
    access.store(v.gate, d, dgate + at);
    access.store(v.up, d, dup + at);
  });
}
TRIREME_INSTANCES(swiglu_backward_row);

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

TRIREME_EXPORT(gelu_range);
HWY_EXPORT(add_bias);
TRIREME_EXPORT(gelu_backward_range);
TRIREME_EXPORT(swiglu_row);
TRIREME_EXPORT(swiglu_backward_row);

void gelu_row(std::int64_t n, Bf16* y, const Bf16* x) {
  TRIREME_KERNEL(gelu_range, Bf16)(static_cast<std::size_t>(n), y, x, false);
}

void biased_gelu_row(std::int64_t n, float* y, float* x, const float* bias, bool streamed) {
  const auto elements = static_cast<std::size_t>(n);
  if (bias != nullptr) HWY_DYNAMIC_DISPATCH(add_bias)(elements, x, bias);
  const bool aligned = reinterpret_cast<std::uintptr_t>(y) % 64 == 0;
  TRIREME_KERNEL(gelu_range, float)(elements, y, x, streamed && aligned);
}

void gelu_backward_row(std::int64_t n, Bf16* dx, const Bf16* dy, const Bf16* x) {
  TRIREME_KERNEL(gelu_backward_range, Bf16)(static_cast<std::size_t>(n), dx, dy, x, false);
}

void gelu_backward_row(std::int64_t n, float* dx, const float* dy, const float* x) {
  TRIREME_KERNEL(gelu_backward_range, float)(static_cast<std::size_t>(n), dx, dy, x, false);
}

void CpuOps::gelu(const Tensor& y, const Tensor& x) {
  const std::int64_t n = y.elements();
  with_storage(x.type(), [&]<class T>(T) {
    for_elements(threads_, n, TRIREME_KERNEL(gelu_range, T), flat<T>(y, n), flat<T>(x, n));
  });
}

void CpuOps::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) {
  const std::int64_t n = dx.elements();
  with_storage(x.type(), [&]<class T>(T) {
    for_elements(threads_, n, TRIREME_KERNEL(gelu_backward_range, T), flat<T>(dx, n),
                 flat<T>(dy, n), flat<T>(x, n));
  });
}

void CpuOps::swiglu(const Tensor& y, const Tensor& gate_up) {
  with_storage(y.type(), [&]<class T>(T) {
    const Rows<T> out = rows_of<T>(y), in = rows_of<T>(gate_up);
    TRIREME_ASSERT(in.rows == out.rows && in.columns == 2 * out.columns, "swiglu of {} into {}",
                   gate_up.shape().to_string(), y.shape().to_string());
    const auto n = static_cast<std::size_t>(out.columns);
    const bool streamed = writes_apart(out.data, out.rows * out.columns, in.data);
    const auto kernel = TRIREME_KERNEL(swiglu_row, T);
    const auto row = [&](std::int64_t r) {
      kernel(n, out.row(r), in.row(r), in.ahead(), streamed);
    };
    for_rows(threads_, out.rows, out.columns, row, streamed);
  });
}

void CpuOps::swiglu_backward(const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up) {
  with_storage(dy.type(), [&]<class T>(T) {
    const Rows<T> dx = rows_of<T>(dgate_up), gradient = rows_of<T>(dy), x = rows_of<T>(gate_up);
    const std::int64_t columns = gradient.columns;
    TRIREME_ASSERT(dx.rows == x.rows && x.rows == gradient.rows && dx.columns == 2 * columns &&
                       x.columns == 2 * columns,
                   "swiglu_backward of {} into {}", dy.shape().to_string(),
                   dgate_up.shape().to_string());
    const auto n = static_cast<std::size_t>(columns);
    const bool streamed = writes_apart(dx.data, x.rows * 2 * columns, gradient.data, x.data);
    const auto kernel = TRIREME_KERNEL(swiglu_backward_row, T);
    const auto row = [&](std::int64_t r) {
      kernel(n, dx.row(r), gradient.row(r), x.row(r), gradient.ahead(), x.ahead(), streamed);
    };
    for_rows(threads_, x.rows, columns, row, streamed);
  });
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
