// LayerNorm and RMSNorm: results, and gradients for inputs.
#include <cmath>

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"
#include "threads.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/norm.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

// Kernels read a row several times: what lies `ahead` elements further on, a later row, is fetched
// in the last pass, which writes. Forward, two rows go together, each in an order of its own: one
// alone waits for its sums.

/// Sums of `rows` rows, to each of which add(sum, v, r) gives the elements of row r.
template <int rows, class T, class Add>
HWY_INLINE std::array<float, rows> fold_rows(std::size_t n, const Add& add, const T* x,
                                             std::int64_t stride) {
  static_assert(rows == 1 || rows == 2);
  if constexpr (rows == 1) {
    return fold<1>(
        n, [&](Floats* sums, Floats v) HWY_ATTR { sums[0] = add(sums[0], v, 0); }, x);
  } else {
    const auto both = [&](Floats* sums, Floats first, Floats second) HWY_ATTR {
      sums[0] = add(sums[0], first, 0);
      sums[1] = add(sums[1], second, 1);
    };
    return fold<2>(n, both, x, x + stride);
  }
}

template <int rows, class T>
HWY_INLINE void layer_norm_together(std::size_t n, const Rows<T>& y, float* mean, float* rstd,
                                    const Rows<T>& x, const T* gain, const T* bias, float epsilon,
                                    bool streamed) {
  const FloatTag d;
  const float count = static_cast<float>(n);
  const auto add = [](Floats sum, Floats v, int) HWY_ATTR { return hn::Add(sum, v); };
  const auto sums = fold_rows<rows>(n, add, x.data, x.stride);
  for (std::size_t r = 0; r < rows; ++r) mean[r] = sums[r] / count;
  const auto add_square = [&](Floats sum, Floats v, int r) HWY_ATTR {
    const Floats centered = hn::Sub(v, hn::Set(d, mean[r]));
    return hn::MulAdd(centered, centered, sum);
  };
  const auto squares = fold_rows<rows>(n, add_square, x.data, x.stride);
  for (std::size_t r = 0; r < rows; ++r) rstd[r] = 1.0F / std::sqrt(squares[r] / count + epsilon);
  for (int r = 0; r < rows; ++r) {
    const Floats vm = hn::Set(d, mean[r]), vr = hn::Set(d, rstd[r]);
    const Prefetched<T> in{x.row(r), x.ahead() + (rows - 1) * x.stride};
    if (bias != nullptr) {
      map_out(
          streamed, n, y.row(r),
          [&](Floats v, Floats g, Floats b)
              HWY_ATTR { return hn::MulAdd(hn::Mul(hn::Sub(v, vm), vr), g, b); },
          in, gain, bias);
    } else {
      map_out(
          streamed, n, y.row(r),
          [&](Floats v, Floats g) HWY_ATTR { return hn::Mul(hn::Mul(hn::Sub(v, vm), vr), g); }, in,
          gain);
    }
  }
}

/// Rows [0, y.rows).
template <class T>
void layer_norm_rows(const Rows<T>& y, float* mean, float* rstd, const Rows<T>& x, const T* gain,
                     const T* bias, float epsilon, bool streamed) {
  const auto n = static_cast<std::size_t>(x.columns);
  std::int64_t r = 0;
  for (; r + 2 <= y.rows; r += 2) {
    layer_norm_together<2>(n, y.from(r), mean + r, rstd + r, x.from(r), gain, bias, epsilon,
                           streamed);
  }
  if (r < y.rows) {
    layer_norm_together<1>(n, y.from(r), mean + r, rstd + r, x.from(r), gain, bias, epsilon,
                           streamed);
  }
}
TRIREME_INSTANCES(layer_norm_rows);

/// With h = (x − mean)·rstd and g = dy·gain: dx = rstd·(g − centered·mean(g) − h·mean(g·h));
/// `centered` is 1 for LayerNorm and 0 for RMSNorm, whose mean is 0.
template <bool centered, class T>
HWY_INLINE void norm_backward_row(std::size_t n, T* dx, const T* dy, std::int64_t dy_ahead,
                                  const T* x, std::int64_t x_ahead, const T* gain, float mean,
                                  float rstd, bool accumulate, bool streamed) {
  const FloatTag d;
  const Floats vm = hn::Set(d, mean), vr = hn::Set(d, rstd);
  const auto normalized = [&](Floats v) HWY_ATTR {
    if (centered) v = hn::Sub(v, vm);
    return hn::Mul(v, vr);
  };
  const auto add = [&](Floats* sums, Floats vdy, Floats vx, Floats vgain) HWY_ATTR {
    const Floats g = hn::Mul(vdy, vgain);
    sums[0] = hn::MulAdd(g, normalized(vx), sums[0]);
    if (centered) sums[1] = hn::Add(sums[1], g);
  };
  const auto sums = fold < centered ? 2 : 1 > (n, add, dy, x, gain);
  const float count = static_cast<float>(n);
  const Floats vmgh = hn::Set(d, sums[0] / count);
  const Floats vmg = hn::Set(d, centered ? sums.back() / count : 0.0F);
  const auto gradient = [&](Floats vdy, Floats vx, Floats vgain) HWY_ATTR {
    Floats g = hn::Mul(vdy, vgain);
    if (centered) g = hn::Sub(g, vmg);
    return hn::Mul(vr, hn::NegMulAdd(normalized(vx), vmgh, g));
  };
  const Prefetched<T> gradients{dy, dy_ahead}, in{x, x_ahead};
  if (accumulate) {
    map(
        n, dx,
        [&](Floats vdy, Floats vx, Floats vgain, Floats before)
            HWY_ATTR { return hn::Add(gradient(vdy, vx, vgain), before); },
        gradients, in, gain, prefetched(dx));
  } else {
    map_out(streamed, n, dx, gradient, gradients, in, gain);
  }
}

template <class T>
void layer_norm_backward_row(std::size_t n, T* dx, const T* dy, std::int64_t dy_ahead, const T* x,
                             std::int64_t x_ahead, const T* gain, float mean, float rstd,
                             bool accumulate, bool streamed) {
  norm_backward_row<true>(n, dx, dy, dy_ahead, x, x_ahead, gain, mean, rstd, accumulate, streamed);
}
TRIREME_INSTANCES(layer_norm_backward_row);

template <int rows, class T>
HWY_INLINE void rms_norm_together(std::size_t n, const Rows<T>& y, float* rstd, const Rows<T>& x,
                                  const T* gain, float epsilon, bool streamed) {
  const auto add_square = [](Floats sum, Floats v, int) HWY_ATTR { return hn::MulAdd(v, v, sum); };
  const auto squares = fold_rows<rows>(n, add_square, x.data, x.stride);
  for (std::size_t r = 0; r < rows; ++r) {
    rstd[r] = 1.0F / std::sqrt(squares[r] / static_cast<float>(n) + epsilon);
  }
  for (int r = 0; r < rows; ++r) {
    const Floats vr = hn::Set(FloatTag(), rstd[r]);
    const Prefetched<T> in{x.row(r), x.ahead() + (rows - 1) * x.stride};
    map_out(
        streamed, n, y.row(r),
        [&](Floats v, Floats g) HWY_ATTR { return hn::Mul(hn::Mul(v, vr), g); }, in, gain);
  }
}

/// Rows [0, y.rows).
template <class T>
void rms_norm_rows(const Rows<T>& y, float* rstd, const Rows<T>& x, const T* gain, float epsilon,
                   bool streamed) {
  const auto n = static_cast<std::size_t>(x.columns);
  std::int64_t r = 0;
  for (; r + 2 <= y.rows; r += 2) {
    rms_norm_together<2>(n, y.from(r), rstd + r, x.from(r), gain, epsilon, streamed);
  }
  if (r < y.rows) {
    rms_norm_together<1>(n, y.from(r), rstd + r, x.from(r), gain, epsilon, streamed);
  }
}
TRIREME_INSTANCES(rms_norm_rows);

template <class T>
void rms_norm_backward_row(std::size_t n, T* dx, const T* dy, std::int64_t dy_ahead, const T* x,
                           std::int64_t x_ahead, const T* gain, float rstd, bool accumulate,
                           bool streamed) {
  norm_backward_row<false>(n, dx, dy, dy_ahead, x, x_ahead, gain, 0.0F, rstd, accumulate, streamed);
}
TRIREME_INSTANCES(rms_norm_backward_row);

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

TRIREME_EXPORT(layer_norm_rows);
TRIREME_EXPORT(layer_norm_backward_row);
TRIREME_EXPORT(rms_norm_rows);
TRIREME_EXPORT(rms_norm_backward_row);

void CpuOps::layer_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                        const Tensor& gain, const Tensor& bias, float epsilon) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> out = rows_of<T>(y), in = rows_of<T>(x);
    check_same_rows(out, in, "layer_norm");
    float* means = flat(mean, in.rows);
    float* rstds = flat(rstd, in.rows);
    TRIREME_ASSERT(!bias || bias.type() == gain.type(), "a gain of {} and a bias of {}",
                   name_of(gain.type()), name_of(bias.type()));
    T* room = rounding_scratch<T>(gain, 2 * in.columns);
    const T* gains = read_as(gain, in.columns, room);
    const T* biases = read_as(bias, in.columns, room == nullptr ? room : room + in.columns);
    const bool streamed = writes_apart(out.data, in.rows * in.columns, in.data);
    parallel_rows(threads_, in.rows, in.columns, [&](std::int64_t begin, std::int64_t end) {
      TRIREME_KERNEL(layer_norm_rows, T)
      (out.from(begin, end), means + begin, rstds + begin, in.from(begin, end), gains, biases,
       epsilon, streamed);
      end_stream(streamed);
    });
  });
}

void CpuOps::layer_norm_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x,
                                       const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                                       bool accumulate) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> to = rows_of<T>(dx), from = rows_of<T>(dy), in = rows_of<T>(x);
    check_same_rows(to, in, "layer_norm_backward_input");
    check_same_rows(from, in, "layer_norm_backward_input");
    const float* means = flat(mean, in.rows);
    const float* rstds = flat(rstd, in.rows);
    const T* gains = read_as(gain, in.columns, rounding_scratch<T>(gain, in.columns));
    const auto n = static_cast<std::size_t>(in.columns);
    const bool streamed =
        !accumulate && writes_apart(to.data, in.rows * in.columns, from.data, in.data);
    parallel_rows(threads_, in.rows, in.columns, [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = TRIREME_KERNEL(layer_norm_backward_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel(n, to.row(r), from.row(r), from.ahead(), in.row(r), in.ahead(), gains, means[r],
               rstds[r], accumulate, streamed);
      }
      end_stream(streamed);
    });
  });
}

void CpuOps::rms_norm(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& gain,
                      float epsilon) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> out = rows_of<T>(y), in = rows_of<T>(x);
    check_same_rows(out, in, "rms_norm");
    float* rstds = flat(rstd, in.rows);
    const T* gains = read_as(gain, in.columns, rounding_scratch<T>(gain, in.columns));
    const bool streamed = writes_apart(out.data, in.rows * in.columns, in.data);
    parallel_rows(threads_, in.rows, in.columns, [&](std::int64_t begin, std::int64_t end) {
      TRIREME_KERNEL(rms_norm_rows, T)
      (out.from(begin, end), rstds + begin, in.from(begin, end), gains, epsilon, streamed);
      end_stream(streamed);
    });
  });
}

void CpuOps::rms_norm_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x,
                                     const Tensor& gain, const Tensor& rstd, bool accumulate) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> to = rows_of<T>(dx), from = rows_of<T>(dy), in = rows_of<T>(x);
    check_same_rows(to, in, "rms_norm_backward_input");
    check_same_rows(from, in, "rms_norm_backward_input");
    const float* rstds = flat(rstd, in.rows);
    const T* gains = read_as(gain, in.columns, rounding_scratch<T>(gain, in.columns));
    const auto n = static_cast<std::size_t>(in.columns);
    const bool streamed =
        !accumulate && writes_apart(to.data, in.rows * in.columns, from.data, in.data);
    parallel_rows(threads_, in.rows, in.columns, [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = TRIREME_KERNEL(rms_norm_backward_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel(n, to.row(r), from.row(r), from.ahead(), in.row(r), in.ahead(), gains, rstds[r],
               accumulate, streamed);
      }
      end_stream(streamed);
    });
  });
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
