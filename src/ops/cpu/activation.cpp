// GELU and SwiGLU, through the logistic function.
#include "activation.hpp"

#include <algorithm>

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"
#include "threads.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/activation.cpp"  // from the include folder
#include <hwy/foreach_target.h>

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

/// The logistic function of z and its slope, through exp(−|z|): neither infinity nor cancellation.
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

// ½(1 + tanh u) = sigmoid(2u); 2u = x(a + b·x²) with a = 2√(2/π), b = 0.044715·a.
constexpr float gelu_a = 1.5957691216057308F;
constexpr float gelu_b = 0.07135481282618986F;
// Beyond ±30 the slope is 0 or 1; the cube of a much larger x would overflow.
constexpr float gelu_limit = 30.0F;

HWY_INLINE Floats gelu_value(Floats x) {
  const FloatTag d;
  const Floats inner = hn::MulAdd(hn::Set(d, gelu_b), hn::Mul(x, x), hn::Set(d, gelu_a));
  return hn::Mul(x, logistic(hn::Mul(x, inner)));
}

HWY_INLINE Floats gelu_slope(Floats x) {
  const FloatTag d;
  const Floats limit = hn::Set(d, gelu_limit);
  const Floats c = hn::Max(hn::Neg(limit), hn::Min(x, limit));
  const Floats square = hn::Mul(c, c);
  const Floats a = hn::Set(d, gelu_a);
  const Sigmoid s = sigmoid(hn::Mul(c, hn::MulAdd(hn::Set(d, gelu_b), square, a)));
  const Floats inner_slope = hn::MulAdd(hn::Set(d, 3 * gelu_b), square, a);
  const Floats slope = hn::MulAdd(hn::Mul(c, inner_slope), s.slope, s.value);
  return hn::IfThenElse(hn::IsNaN(x), x, slope);  // the clamp has lost a NaN
}

template <class T>
void gelu_range(std::size_t n, T* y, const T* x) {
  map(
      n, y, [](Floats v) HWY_ATTR { return gelu_value(v); }, x);
}
TRIREME_INSTANCES(gelu_range);

template <class T>
void gelu_backward_range(std::size_t n, T* dx, const T* dy, const T* x) {
  map(
      n, dx, [](Floats g, Floats v) HWY_ATTR { return hn::Mul(g, gelu_slope(v)); }, dy, x);
}
TRIREME_INSTANCES(gelu_backward_range);

template <class T>
void swiglu_row(std::size_t n, T* y, const T* gate, const T* up) {
  map(
      n, y, [](Floats g, Floats u) HWY_ATTR { return hn::Mul(hn::Mul(g, logistic(g)), u); }, gate,
      up);
}
TRIREME_INSTANCES(swiglu_row);

template <class T>
void swiglu_backward_row(std::size_t n, T* dgate, T* dup, const T* dy, const T* gate, const T* up) {
  const FloatTag d;
  for_vectors(n, [&](std::size_t i, auto access) HWY_ATTR {
    const Floats gradient = access.load(d, dy + i);
    const Floats g = access.load(d, gate + i);
    const Sigmoid s = sigmoid(g);
    const Floats u = access.load(d, up + i);
    access.store(hn::Mul(hn::Mul(gradient, u), hn::MulAdd(g, s.slope, s.value)), d, dgate + i);
    access.store(hn::Mul(gradient, hn::Mul(g, s.value)), d, dup + i);
  });
}
TRIREME_INSTANCES(swiglu_backward_row);

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

TRIREME_EXPORT(gelu_range);
TRIREME_EXPORT(gelu_backward_range);
TRIREME_EXPORT(swiglu_row);
TRIREME_EXPORT(swiglu_backward_row);

void gelu_row(std::int64_t n, Bf16* y, const Bf16* x) {
  TRIREME_KERNEL(gelu_range, Bf16)(static_cast<std::size_t>(n), y, x);
}

void gelu_backward_row(std::int64_t n, Bf16* dx, const Bf16* dy, const Bf16* x) {
  TRIREME_KERNEL(gelu_backward_range, Bf16)(static_cast<std::size_t>(n), dx, dy, x);
}

void CpuOps::gelu(const Tensor& y, const Tensor& x) {
  const std::int64_t elements = y.elements();
  with_storage(x.type(), [&]<class T>(T) {
    T* py = flat<T>(y, elements);
    const T* px = flat<T>(x, elements);
    parallel_elements(threads_, elements, [&](std::int64_t begin, std::int64_t end) {
      TRIREME_KERNEL(gelu_range, T)(static_cast<std::size_t>(end - begin), py + begin, px + begin);
    });
  });
}

void CpuOps::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) {
  const std::int64_t elements = dx.elements();
  with_storage(x.type(), [&]<class T>(T) {
    T* pdx = flat<T>(dx, elements);
    const T* pdy = flat<T>(dy, elements);
    const T* px = flat<T>(x, elements);
    parallel_elements(threads_, elements, [&](std::int64_t begin, std::int64_t end) {
      TRIREME_KERNEL(gelu_backward_range, T)
      (static_cast<std::size_t>(end - begin), pdx + begin, pdy + begin, px + begin);
    });
  });
}

void CpuOps::swiglu(const Tensor& y, const Tensor& gate_up) {
  with_storage(y.type(), [&]<class T>(T) {
    const Rows<T> out = rows_of<T>(y), in = rows_of<T>(gate_up);
    TRIREME_ASSERT(in.rows == out.rows && in.columns == 2 * out.columns, "swiglu of {} into {}",
                   gate_up.shape().to_string(), y.shape().to_string());
    const auto n = static_cast<std::size_t>(out.columns);
    parallel_rows(threads_, out.rows, out.columns, [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = TRIREME_KERNEL(swiglu_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel(n, out.row(r), in.row(r), in.row(r) + out.columns);
      }
    });
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
    parallel_rows(threads_, x.rows, columns, [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = TRIREME_KERNEL(swiglu_backward_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel(n, dx.row(r), dx.row(r) + columns, gradient.row(r), x.row(r), x.row(r) + columns);
      }
    });
  });
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
