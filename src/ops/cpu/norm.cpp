// LayerNorm, RMSNorm and sums over rows.
#include <cmath>

#include "cpu_ops.hpp"
#include "row_sums.hpp"
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

template <class T>
void layer_norm_row(std::size_t n, T* y, float* mean, float* rstd, const T* x, const T* gain,
                    const T* bias, float epsilon, bool streamed) {
  const FloatTag d;
  const float count = static_cast<float>(n);
  const float m =
      sum_of(n, [&](std::size_t i, auto access) HWY_ATTR { return access.load(d, x + i); }) / count;
  const Floats vm = hn::Set(d, m);
  const float variance = sum_of(n,
                                [&](std::size_t i, auto access) HWY_ATTR {
                                  const Floats centred = hn::Sub(access.load(d, x + i), vm);
                                  return hn::Mul(centred, centred);
                                }) /
                         count;
  const float r = 1.0F / std::sqrt(variance + epsilon);
  *mean = m;
  *rstd = r;
  const Floats vr = hn::Set(d, r);
  if (bias != nullptr) {
    map_out(
        streamed, n, y,
        [&](Floats v, Floats g, Floats b)
            HWY_ATTR { return hn::MulAdd(hn::Mul(hn::Sub(v, vm), vr), g, b); },
        x, gain, bias);
  } else {
    map_out(
        streamed, n, y,
        [&](Floats v, Floats g) HWY_ATTR { return hn::Mul(hn::Mul(hn::Sub(v, vm), vr), g); }, x,
        gain);
  }
}
TRIREME_INSTANCES(layer_norm_row);

/// With h = (x − mean)·rstd and g = dy·gain: dx = rstd·(g − centred·mean(g) − h·mean(g·h));
/// `centred` is 1 for LayerNorm and 0 for RMSNorm, whose mean is 0.
template <bool centred, class T>
HWY_INLINE void norm_backward_row(std::size_t n, T* dx, const T* dy, const T* x, const T* gain,
                                  float mean, float rstd, bool accumulate, bool streamed) {
  const FloatTag d;
  const Floats vm = hn::Set(d, mean), vr = hn::Set(d, rstd);
  const auto normalised = [&](Floats v) HWY_ATTR {
    if (centred) v = hn::Sub(v, vm);
    return hn::Mul(v, vr);
  };
  const float count = static_cast<float>(n);
  float mean_g = 0;
  if (centred) {
    mean_g = sum_of(n,
                    [&](std::size_t i, auto access) HWY_ATTR {
                      return hn::Mul(access.load(d, dy + i), access.load(d, gain + i));
                    }) /
             count;
  }
  const float mean_gh = sum_of(n,
                               [&](std::size_t i, auto access) HWY_ATTR {
                                 const Floats g =
                                     hn::Mul(access.load(d, dy + i), access.load(d, gain + i));
                                 return hn::Mul(g, normalised(access.load(d, x + i)));
                               }) /
                        count;
  const Floats vmg = hn::Set(d, mean_g), vmgh = hn::Set(d, mean_gh);
  const auto gradient = [&](Floats vdy, Floats vx, Floats vgain) HWY_ATTR {
    Floats g = hn::Mul(vdy, vgain);
    if (centred) g = hn::Sub(g, vmg);
    return hn::Mul(vr, hn::NegMulAdd(normalised(vx), vmgh, g));
  };
  if (accumulate) {
    map(
        n, dx,
        [&](Floats vdy, Floats vx, Floats vgain, Floats before)
            HWY_ATTR { return hn::Add(gradient(vdy, vx, vgain), before); },
        dy, x, gain, dx);
  } else {
    map_out(streamed, n, dx, gradient, dy, x, gain);
  }
}

template <class T>
void layer_norm_backward_row(std::size_t n, T* dx, const T* dy, const T* x, const T* gain,
                             float mean, float rstd, bool accumulate, bool streamed) {
  norm_backward_row<true>(n, dx, dy, x, gain, mean, rstd, accumulate, streamed);
}
TRIREME_INSTANCES(layer_norm_backward_row);

template <class T>
void rms_norm_row(std::size_t n, T* y, float* rstd, const T* x, const T* gain, float epsilon,
                  bool streamed) {
  const FloatTag d;
  const float square = sum_of(n, [&](std::size_t i, auto access) HWY_ATTR {
    const Floats v = access.load(d, x + i);
    return hn::Mul(v, v);
  });
  const float r = 1.0F / std::sqrt(square / static_cast<float>(n) + epsilon);
  *rstd = r;
  const Floats vr = hn::Set(d, r);
  map_out(
      streamed, n, y, [&](Floats v, Floats g) HWY_ATTR { return hn::Mul(hn::Mul(v, vr), g); }, x,
      gain);
}
TRIREME_INSTANCES(rms_norm_row);

template <class T>
void rms_norm_backward_row(std::size_t n, T* dx, const T* dy, const T* x, const T* gain, float rstd,
                           bool accumulate, bool streamed) {
  norm_backward_row<false>(n, dx, dy, x, gain, 0.0F, rstd, accumulate, streamed);
}
TRIREME_INSTANCES(rms_norm_backward_row);

/// partial [C] = Σ over `rows` rows of x.
template <class T>
void column_sum_tile(std::size_t n, std::int64_t rows, float* partial, const T* x,
                     std::int64_t stride) {
  const FloatTag d;
  for_vectors(
      n, [&](std::size_t i, auto access) HWY_ATTR { access.store(hn::Zero(d), d, partial + i); });
  std::int64_t r = 0;
  for (; r + 8 <= rows; r += 8) {
    const T* p = x + r * stride;
    for_vectors(n, [&](std::size_t i, auto access) HWY_ATTR {
      const auto row = [&](int j) HWY_ATTR { return access.load(d, p + j * stride + i); };
      const Floats low = hn::Add(hn::Add(row(0), row(1)), hn::Add(row(2), row(3)));
      const Floats high = hn::Add(hn::Add(row(4), row(5)), hn::Add(row(6), row(7)));
      access.store(hn::Add(access.load(d, partial + i), hn::Add(low, high)), d, partial + i);
    });
  }
  for (; r < rows; ++r) {
    map(
        n, partial, [](Floats sum, Floats v) HWY_ATTR { return hn::Add(sum, v); }, partial,
        x + r * stride);
  }
}
TRIREME_INSTANCES(column_sum_tile);

/// partial [C] = Σ dy·(x − mean)·rstd, and, where `bias`, partial [C, 2C) = Σ dy. mean may be null.
template <class T>
void norm_weight_tile(std::size_t n, std::int64_t rows, float* partial, const T* dy,
                      std::int64_t dy_stride, const T* x, std::int64_t x_stride, const float* mean,
                      const float* rstd, bool bias) {
  const FloatTag d;
  for_vectors(bias ? 2 * n : n, [&](std::size_t i, auto access)
                                    HWY_ATTR { access.store(hn::Zero(d), d, partial + i); });
  const auto add_rows = [&](std::int64_t r, auto count) HWY_ATTR {
    constexpr int rows_at_once = decltype(count)::value;
    Floats m[rows_at_once], s[rows_at_once];
    for (int j = 0; j < rows_at_once; ++j) {
      m[j] = hn::Set(d, mean == nullptr ? 0.0F : mean[r + j]);
      s[j] = hn::Set(d, rstd[r + j]);
    }
    for_vectors(n, [&](std::size_t i, auto access) HWY_ATTR {
      Floats sum_g = access.load(d, partial + i);
      Floats sum_b = bias ? access.load(d, partial + n + i) : hn::Zero(d);
      for (int j = 0; j < rows_at_once; ++j) {
        const Floats g = access.load(d, dy + (r + j) * dy_stride + i);
        const Floats v = access.load(d, x + (r + j) * x_stride + i);
        sum_g = hn::MulAdd(g, hn::Mul(hn::Sub(v, m[j]), s[j]), sum_g);
        sum_b = hn::Add(sum_b, g);
      }
      access.store(sum_g, d, partial + i);
      if (bias) access.store(sum_b, d, partial + n + i);
    });
  };
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) add_rows(r, std::integral_constant<int, 4>());
  for (; r < rows; ++r) add_rows(r, std::integral_constant<int, 1>());
}
TRIREME_INSTANCES(norm_weight_tile);

void accumulate(std::size_t n, float* y, const float* x) {
  map(
      n, y, [](Floats a, Floats b) HWY_ATTR { return hn::Add(a, b); }, y, x);
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

TRIREME_EXPORT(layer_norm_row);
TRIREME_EXPORT(layer_norm_backward_row);
TRIREME_EXPORT(rms_norm_row);
TRIREME_EXPORT(rms_norm_backward_row);
TRIREME_EXPORT(column_sum_tile);
TRIREME_EXPORT(norm_weight_tile);
HWY_EXPORT(accumulate);

namespace {

template <class T>
void check_same_rows(const Rows<T>& a, const Rows<T>& b, const char* op) {
  TRIREME_ASSERT(a.rows == b.rows && a.columns == b.columns, "{}: [{}, {}] and [{}, {}]", op,
                 a.rows, a.columns, b.rows, b.columns);
}

}  // namespace

void accumulate_range(float* y, const float* x, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(accumulate)(static_cast<std::size_t>(end - begin), y + begin, x + begin);
}

void CpuOps::layer_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                        const Tensor& gain, const Tensor& bias, float epsilon) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> out = rows_of<T>(y), in = rows_of<T>(x);
    check_same_rows(out, in, "layer_norm");
    float* means = flat(mean, in.rows);
    float* rstds = flat(rstd, in.rows);
    const T* gains = flat<T>(gain, in.columns);
    const T* biases = flat_or_null<T>(bias, in.columns);
    const auto n = static_cast<std::size_t>(in.columns);
    const bool streamed = writes_apart(out.data, in.rows * in.columns, in.data);
    parallel_rows(threads_, in.rows, in.columns, [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = TRIREME_KERNEL(layer_norm_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel(n, out.row(r), means + r, rstds + r, in.row(r), gains, biases, epsilon, streamed);
      }
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
    const T* gains = flat<T>(gain, in.columns);
    const auto n = static_cast<std::size_t>(in.columns);
    const bool streamed =
        !accumulate && writes_apart(to.data, in.rows * in.columns, from.data, in.data);
    parallel_rows(threads_, in.rows, in.columns, [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = TRIREME_KERNEL(layer_norm_backward_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel(n, to.row(r), from.row(r), in.row(r), gains, means[r], rstds[r], accumulate,
               streamed);
      }
      end_stream(streamed);
    });
  });
}

void CpuOps::layer_norm_backward_weight(const Tensor& dgain, const Tensor& dbias, const Tensor& dy,
                                        const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> from = rows_of<T>(dy), in = rows_of<T>(x);
    check_same_rows(from, in, "layer_norm_backward_weight");
    const float* means = flat(mean, in.rows);
    const float* rstds = flat(rstd, in.rows);
    float* const sums[] = {flat(dgain, in.columns), flat_or_null(dbias, in.columns)};
    const bool bias = sums[1] != nullptr;
    sum_row_tiles(in.rows, in.columns, sums, bias ? 2 : 1,
                  [&](std::int64_t begin, std::int64_t end, float* partial) {
                    TRIREME_KERNEL(norm_weight_tile, T)
                    (static_cast<std::size_t>(in.columns), end - begin, partial, from.row(begin),
                     from.stride, in.row(begin), in.stride, means + begin, rstds + begin, bias);
                  });
  });
}

void CpuOps::rms_norm(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& gain,
                      float epsilon) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> out = rows_of<T>(y), in = rows_of<T>(x);
    check_same_rows(out, in, "rms_norm");
    float* rstds = flat(rstd, in.rows);
    const T* gains = flat<T>(gain, in.columns);
    const auto n = static_cast<std::size_t>(in.columns);
    const bool streamed = writes_apart(out.data, in.rows * in.columns, in.data);
    parallel_rows(threads_, in.rows, in.columns, [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = TRIREME_KERNEL(rms_norm_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel(n, out.row(r), rstds + r, in.row(r), gains, epsilon, streamed);
      }
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
    const T* gains = flat<T>(gain, in.columns);
    const auto n = static_cast<std::size_t>(in.columns);
    const bool streamed =
        !accumulate && writes_apart(to.data, in.rows * in.columns, from.data, in.data);
    parallel_rows(threads_, in.rows, in.columns, [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = TRIREME_KERNEL(rms_norm_backward_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel(n, to.row(r), from.row(r), in.row(r), gains, rstds[r], accumulate, streamed);
      }
      end_stream(streamed);
    });
  });
}

void CpuOps::rms_norm_backward_weight(const Tensor& dgain, const Tensor& dy, const Tensor& x,
                                      const Tensor& rstd) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> from = rows_of<T>(dy), in = rows_of<T>(x);
    check_same_rows(from, in, "rms_norm_backward_weight");
    const float* rstds = flat(rstd, in.rows);
    float* const sums[] = {flat(dgain, in.columns)};
    sum_row_tiles(in.rows, in.columns, sums, 1,
                  [&](std::int64_t begin, std::int64_t end, float* partial) {
                    TRIREME_KERNEL(norm_weight_tile, T)
                    (static_cast<std::size_t>(in.columns), end - begin, partial, from.row(begin),
                     from.stride, in.row(begin), in.stride, nullptr, rstds + begin, false);
                  });
  });
}

void CpuOps::column_sum(const Tensor& sum, const Tensor& x) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> in = rows_of<T>(x);
    float* const sums[] = {flat(sum, in.columns)};
    sum_row_tiles(
        in.rows, in.columns, sums, 1, [&](std::int64_t begin, std::int64_t end, float* partial) {
          TRIREME_KERNEL(column_sum_tile, T)
          (static_cast<std::size_t>(in.columns), end - begin, partial, in.row(begin), in.stride);
        });
  });
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
