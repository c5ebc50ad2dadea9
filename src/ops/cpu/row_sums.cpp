// Sums over rows: gradients of norm weights and of biases.
#include "row_sums.hpp"

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/row_sums.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

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
      const auto row = [&](int j) HWY_ATTR {
        const Prefetched<T> in{p + j * stride + i, 8 * stride};
        prefetch_line(in);
        return access.load(d, in);
      };
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

/// partial [C] = Σ dy·(x − mean)·rstd and, with `bias`, partial [C, 2C) = Σ dy. mean may be null.
template <class T>
void norm_weight_tile(std::size_t n, std::int64_t rows, float* partial, const T* dy,
                      std::int64_t dy_stride, const T* x, std::int64_t x_stride, const float* mean,
                      const float* rstd, bool bias) {
  const FloatTag d;
  for_vectors(bias ? 2 * n : n, [&](std::size_t i, auto access)
                                    HWY_ATTR { access.store(hn::Zero(d), d, partial + i); });
  // One row at a time: reading several at once is slower.
  for (std::int64_t r = 0; r < rows; ++r) {
    const Floats m = hn::Set(d, mean == nullptr ? 0.0F : mean[r]), s = hn::Set(d, rstd[r]);
    for_vectors(n, [&](std::size_t i, auto access) HWY_ATTR {
      const Prefetched<T> gradient = prefetched(dy + r * dy_stride + i),
                          in = prefetched(x + r * x_stride + i);
      prefetch_line(gradient);
      prefetch_line(in);
      const Floats g = access.load(d, gradient), v = access.load(d, in);
      const Floats sum = access.load(d, partial + i);
      access.store(hn::MulAdd(g, hn::Mul(hn::Sub(v, m), s), sum), d, partial + i);
      if (bias) access.store(hn::Add(access.load(d, partial + n + i), g), d, partial + n + i);
    });
  }
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

TRIREME_EXPORT(column_sum_tile);
TRIREME_EXPORT(norm_weight_tile);
HWY_EXPORT(accumulate);

void accumulate_range(float* y, const float* x, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(accumulate)(static_cast<std::size_t>(end - begin), y + begin, x + begin);
}

void CpuOps::norm_backward_weight(const Tensor& dgain, const Tensor& dbias, const Tensor& dy,
                                  const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> from = rows_of<T>(dy), in = rows_of<T>(x);
    check_same_rows(from, in, "norm_backward_weight");
    const float* means = flat_or_null(mean, in.rows);
    const float* rstds = flat(rstd, in.rows);
    float* const sums[] = {flat(dgain, in.columns), flat_or_null(dbias, in.columns)};
    const bool bias = sums[1] != nullptr;
    sum_row_tiles(in.rows, in.columns, sums, bias ? 2 : 1,
                  [&](std::int64_t begin, std::int64_t end, float* partial) {
                    TRIREME_KERNEL(norm_weight_tile, T)
                    (static_cast<std::size_t>(in.columns), end - begin, partial, from.row(begin),
                     from.stride, in.row(begin), in.stride,
                     means == nullptr ? means : means + begin, rstds + begin, bias);
                  });
  });
}

void CpuOps::layer_norm_backward_weight(const Tensor& dgain, const Tensor& dbias, const Tensor& dy,
                                        const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  norm_backward_weight(dgain, dbias, dy, x, mean, rstd);
}

void CpuOps::rms_norm_backward_weight(const Tensor& dgain, const Tensor& dy, const Tensor& x,
                                      const Tensor& rstd) {
  norm_backward_weight(dgain, {}, dy, x, {}, rstd);
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
