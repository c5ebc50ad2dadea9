// LayerNorm and RMSNorm; and sums over rows, gradients of norm weights and of biases, in an order
// that does not depend on the threads.
// Long because these kernels share the passes over a row.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "trireme/core/pairwise.hpp"
#include "trireme/ops/workspace.hpp"

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

// Kernels read a row several times; the last pass, which writes, prefetches a later row. Forward
// interleaves two rows to hide the latency of their sums; each keeps its own order of additions.

/// Sums of `rows` rows; add(sum, v, r) adds elements of row r.
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

/// `rows` rows, 1 or 2. Not `centered`: RMSNorm, whose mean is 0 and not stored.
template <bool centered, int rows, class T>
HWY_INLINE void norm_together(std::size_t n, const Rows<T>& y, float* mean, float* rstd,
                              const Rows<T>& x, const T* gain, const T* bias, float epsilon,
                              bool streamed) {
  const FloatTag d;
  const float count = static_cast<float>(n);
  if constexpr (centered) {
    const auto add = [](Floats sum, Floats v, int) HWY_ATTR { return hn::Add(sum, v); };
    const auto sums = fold_rows<rows>(n, add, x.data, x.stride);
    for (std::size_t r = 0; r < rows; ++r) mean[r] = sums[r] / count;
  }
  const auto add_square = [&](Floats sum, Floats v, int r) HWY_ATTR {
    if constexpr (centered) v = hn::Sub(v, hn::Set(d, mean[r]));
    return hn::MulAdd(v, v, sum);
  };
  const auto squares = fold_rows<rows>(n, add_square, x.data, x.stride);
  for (std::size_t r = 0; r < rows; ++r) rstd[r] = 1.0F / std::sqrt(squares[r] / count + epsilon);
  for (int r = 0; r < rows; ++r) {
    const Floats vm = hn::Set(d, centered ? mean[r] : 0.0F), vr = hn::Set(d, rstd[r]);
    const auto normalized = [&](Floats v) HWY_ATTR {
      if constexpr (centered) v = hn::Sub(v, vm);
      return hn::Mul(v, vr);
    };
    const Prefetched<T> in{x.row(r), x.ahead() + (rows - 1) * x.stride};
    if (bias != nullptr) {
      map_out(
          streamed, n, y.row(r),
          [&](Floats v, Floats g, Floats b) HWY_ATTR { return hn::MulAdd(normalized(v), g, b); },
          in, gain, bias);
    } else {
      map_out(
          streamed, n, y.row(r),
          [&](Floats v, Floats g) HWY_ATTR { return hn::Mul(normalized(v), g); }, in, gain);
    }
  }
}

template <bool centered, class T>
HWY_INLINE void norm_all(const Rows<T>& y, float* mean, float* rstd, const Rows<T>& x,
                         const T* gain, const T* bias, float epsilon, bool streamed) {
  const auto n = static_cast<std::size_t>(x.columns);
  const auto mean_of = [&](std::int64_t r) { return centered ? mean + r : nullptr; };
  std::int64_t r = 0;
  for (; r + 2 <= y.rows; r += 2) {
    norm_together<centered, 2>(n, y.from(r), mean_of(r), rstd + r, x.from(r), gain, bias, epsilon,
                               streamed);
  }
  if (r < y.rows) {
    norm_together<centered, 1>(n, y.from(r), mean_of(r), rstd + r, x.from(r), gain, bias, epsilon,
                               streamed);
  }
}

/// `mean` null: RMSNorm. `bias` may be null.
template <class T>
void norm_rows(const Rows<T>& y, float* mean, float* rstd, const Rows<T>& x, const T* gain,
               const T* bias, float epsilon, bool streamed) {
  if (mean != nullptr) {
    norm_all<true>(y, mean, rstd, x, gain, bias, epsilon, streamed);
  } else {
    norm_all<false>(y, mean, rstd, x, gain, bias, epsilon, streamed);
  }
}
TRIREME_INSTANCES(norm_rows);

/// y = a + b; y may be a or b.
template <class T>
void add_elements(std::size_t n, T* y, const T* a, const T* b) {
  map_out(
      false, n, y, [](Floats x, Floats z) HWY_ATTR { return hn::Add(x, z); }, a, b);
}
TRIREME_INSTANCES(add_elements);

/// With h = (x − mean)·rstd and g = dy·gain: dx = rstd·(g − centered·mean(g) − h·mean(g·h));
/// `centered` is 1 for LayerNorm and 0 for RMSNorm, whose mean is 0.
template <bool centered, class T>
HWY_INLINE void norm_gradient(std::size_t n, T* dx, const T* dy, std::int64_t dy_ahead, const T* x,
                              std::int64_t x_ahead, const T* gain, float mean, float rstd,
                              const T* residual, bool streamed) {
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
  if (residual != nullptr) {
    map_out(
        streamed, n, dx,
        [&](Floats vdy, Floats vx, Floats vgain, Floats beside)
            HWY_ATTR { return hn::Add(gradient(vdy, vx, vgain), beside); },
        gradients, in, gain, prefetched(residual));
  } else {
    map_out(streamed, n, dx, gradient, gradients, in, gain);
  }
}

/// `mean` null: RMSNorm.
template <class T>
void norm_backward_row(std::size_t n, T* dx, const T* dy, std::int64_t dy_ahead, const T* x,
                       std::int64_t x_ahead, const T* gain, const float* mean, float rstd,
                       const T* residual, bool streamed) {
  if (mean != nullptr) {
    norm_gradient<true>(n, dx, dy, dy_ahead, x, x_ahead, gain, *mean, rstd, residual, streamed);
  } else {
    norm_gradient<false>(n, dx, dy, dy_ahead, x, x_ahead, gain, 0.0F, rstd, residual, streamed);
  }
}
TRIREME_INSTANCES(norm_backward_row);

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

TRIREME_EXPORT(norm_rows);
TRIREME_EXPORT(add_elements);
TRIREME_EXPORT(norm_backward_row);
TRIREME_EXPORT(column_sum_tile);
TRIREME_EXPORT(norm_weight_tile);
HWY_EXPORT(accumulate);

void CpuOps::norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                  const Tensor& gain, const Tensor& bias, float epsilon) {
  normalize(y, mean, rstd, x, {}, {}, gain, bias, epsilon);
}

void CpuOps::add_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& sum,
                      const Tensor& a, const Tensor& b, const Tensor& gain, const Tensor& bias,
                      float epsilon) {
  TRIREME_ASSERT(a && b, "add_norm of one tensor");
  normalize(y, mean, rstd, sum, a, b, gain, bias, epsilon);
}

void CpuOps::normalize(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                       const Tensor& a, const Tensor& b, const Tensor& gain, const Tensor& bias,
                       float epsilon) {
  // Rows that are added at once, which stay in a core's cache until they are normalized.
  constexpr std::int64_t together = 4;
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> out = rows_of<T>(y), in = rows_of<T>(x);
    check_same_rows(out, in, "norm");
    T* const sum = a ? flat<T>(x, x.elements()) : nullptr;
    const T* const first = a ? flat<T>(a, x.elements()) : nullptr;
    const T* const second = a ? flat<T>(b, x.elements()) : nullptr;
    float* means = flat_or_null(mean, in.rows);
    float* rstds = flat(rstd, in.rows);
    TRIREME_ASSERT(mean || !bias, "a bias and no mean");
    TRIREME_ASSERT(!bias || bias.type() == gain.type(), "a gain of {} and a bias of {}",
                   name_of(gain.type()), name_of(bias.type()));
    T* rounded_scratch = rounding_scratch<T>(gain, 2 * in.columns);
    const T* gains = read_as(gain, in.columns, rounded_scratch);
    const T* biases =
        read_as(bias, in.columns,
                rounded_scratch == nullptr ? rounded_scratch : rounded_scratch + in.columns);
    const bool streamed = writes_apart(out.data, in.rows * in.columns, in.data);
    const auto rows = [&](std::int64_t begin, std::int64_t end) {
      TRIREME_KERNEL(norm_rows, T)
      (out.from(begin, end), means == nullptr ? means : means + begin, rstds + begin,
       in.from(begin, end), gains, biases, epsilon, streamed);
    };
    parallel_rows(threads_, in.rows, in.columns, [&](std::int64_t begin, std::int64_t end) {
      if (!a) rows(begin, end);
      for (std::int64_t r = begin; a && r < end; r += together) {
        const std::int64_t last = std::min(r + together, end), at = r * in.columns;
        TRIREME_KERNEL(add_elements, T)
        (static_cast<std::size_t>((last - r) * in.columns), sum + at, first + at, second + at);
        rows(r, last);
      }
      end_stream(streamed);
    });
  });
}

void CpuOps::norm_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x,
                                 const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                                 const Tensor& residual) {
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> to = rows_of<T>(dx), from = rows_of<T>(dy), in = rows_of<T>(x);
    check_same_rows(to, in, "norm_backward_input");
    check_same_rows(from, in, "norm_backward_input");
    const Rows<T> beside = residual ? rows_of<T>(residual) : Rows<T>();
    if (residual) check_same_rows(beside, in, "norm_backward_input");
    const float* means = flat_or_null(mean, in.rows);
    const float* rstds = flat(rstd, in.rows);
    const T* gains = read_as(gain, in.columns, rounding_scratch<T>(gain, in.columns));
    const auto n = static_cast<std::size_t>(in.columns);
    const bool streamed =
        writes_apart(to.data, in.rows * in.columns, from.data, in.data, beside.data);
    const auto kernel = TRIREME_KERNEL(norm_backward_row, T);
    const auto row = [&](std::int64_t r) {
      kernel(n, to.row(r), from.row(r), from.ahead(), in.row(r), in.ahead(), gains,
             means == nullptr ? means : means + r, rstds[r], beside.row(r), streamed);
    };
    for_rows(threads_, in.rows, in.columns, row, streamed);
  });
}

namespace {

/// Elements that pay for a thread: a core adds up some ten in a nanosecond.
constexpr std::int64_t enough = 65536;

/// Rows of one leaf of the tree of sums.
constexpr std::int64_t row_tile = 64;

/// Leaves of the tree.
std::int64_t row_tiles(std::int64_t rows) { return (rows + row_tile - 1) / row_tile; }

/// Leaves that one thread adds up before it continues: a power of two, so that they form a subtree;
/// as many as fit a core's second-level cache and leave every thread several groups.
std::int64_t tiles_of_group(std::int64_t tiles, std::int64_t width, int threads) {
  constexpr std::int64_t bytes = 256 << 10;
  std::int64_t group = 1;
  while (2 * group * width * std::int64_t{sizeof(float)} <= bytes &&
         tiles >= std::int64_t{8} * threads * group) {
    group *= 2;
  }
  return group;
}

/// y[i] += x[i].
void accumulate_range(float* y, const float* x, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(accumulate)(static_cast<std::size_t>(end - begin), y + begin, x + begin);
}

/// sums[i] [C] += Σ over row tiles of their partial sums; kernel(begin, end, partial) writes the
/// `outputs`·C partial sums of rows [begin, end). partial: [row tiles, outputs, C].
template <class Kernel>
void sum_row_tiles(int threads, float* partial, std::int64_t rows, std::int64_t columns,
                   float* const* sums, int outputs, const Kernel& kernel) {
  if (rows == 0 || columns == 0) return;
  const std::int64_t tiles = row_tiles(rows), width = outputs * columns;
  const std::int64_t group = tiles_of_group(tiles, width, threads);
  const std::int64_t groups = (tiles + group - 1) / group;
  const auto add_tiles = [&](float* area, std::int64_t count, std::int64_t step, std::int64_t begin,
                             std::int64_t end) {
    add_pairwise(count, [&](std::int64_t to, std::int64_t from) {
      accumulate_range(area + to * step * width, area + from * step * width, begin, end);
    });
  };
  const auto fill = [&](std::int64_t index, float* area) {
    const std::int64_t first = index * group, count = std::min(group, tiles - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = (first + i) * row_tile;
      kernel(begin, std::min(rows, begin + row_tile), area + i * width);
    }
    add_tiles(area, count, 1, 0, width);
  };
  const std::int64_t grain = std::max<std::int64_t>(1, enough / (row_tile * columns * group));
  parallel_ranges(threads, groups, grain, 1, [&](std::int64_t begin, std::int64_t end) {
    // Later groups use the second group's memory, which stays in the cache: the second comes last.
    const auto own = [&](std::int64_t index) { return partial + index * group * width; };
    fill(begin, own(begin));
    for (std::int64_t index = begin + 2; index < end; ++index) {
      fill(index, own(begin + 1));
      std::copy_n(own(begin + 1), width, own(index));
    }
    if (begin + 1 < end) fill(begin + 1, own(begin + 1));
  });
  parallel_ranges(threads, width, 8192, 16, [&](std::int64_t begin, std::int64_t end) {
    add_tiles(partial, groups, group, begin, end);
  });
  for (int i = 0; i < outputs; ++i) accumulate_range(sums[i], partial + i * columns, 0, columns);
}

std::int64_t elements_of_partial(const RowSums& call) {
  const RowShape shape = row_shape(call.dy);
  return row_tiles(shape.rows) * shape.columns * (call.dbias ? 2 : 1);
}

}  // namespace

std::size_t cpu_row_sum_workspace(std::int64_t rows, std::int64_t columns, int outputs, int calls,
                                  int threads) {
  const std::int64_t at_once = calls < threads ? 1 : threads;
  return static_cast<std::size_t>(at_once * row_tiles(rows) * columns * outputs) * sizeof(float);
}

void CpuOps::sum_rows(const RowSums& call, int threads, float* partial) {
  with_storage(call.dy.type(), [&]<class T>(T) {
    const Rows<T> from = rows_of<T>(call.dy);
    if (!call.x) {
      float* const sums[] = {flat(call.dgain, from.columns)};
      return sum_row_tiles(threads, partial, from.rows, from.columns, sums, 1,
                           [&](std::int64_t begin, std::int64_t end, float* tile) {
                             TRIREME_KERNEL(column_sum_tile, T)
                             (static_cast<std::size_t>(from.columns), end - begin, tile,
                              from.row(begin), from.stride);
                           });
    }
    const Rows<T> in = rows_of<T>(call.x);
    check_same_rows(from, in, "norm_backward_weight");
    const float* means = flat_or_null(call.mean, in.rows);
    const float* rstds = flat(call.rstd, in.rows);
    float* const sums[] = {flat(call.dgain, in.columns), flat_or_null(call.dbias, in.columns)};
    const bool bias = sums[1] != nullptr;
    sum_row_tiles(threads, partial, in.rows, in.columns, sums, bias ? 2 : 1,
                  [&](std::int64_t begin, std::int64_t end, float* tile) {
                    TRIREME_KERNEL(norm_weight_tile, T)
                    (static_cast<std::size_t>(in.columns), end - begin, tile, from.row(begin),
                     from.stride, in.row(begin), in.stride,
                     means == nullptr ? means : means + begin, rstds + begin, bias);
                  });
  });
}

void CpuOps::independent_row_sums(std::span<const RowSums> calls) {
  if (calls.empty()) return;
  std::int64_t most = 0, elements = 0;
  for (const RowSums& call : calls) {
    most = std::max(most, elements_of_partial(call));
    elements += call.dy.elements();
  }
  if (std::ssize(calls) < threads_ || threads_ == 1) {
    float* partial = scratch<float>(static_cast<std::size_t>(most));
    for (const RowSums& call : calls) sum_rows(call, threads_, partial);
    return;
  }
  float* partial = scratch<float>(static_cast<std::size_t>(threads_ * most));
  parallel_tasks(elements < 2 * enough ? 1 : threads_, std::ssize(calls),
                 [&](std::int64_t i, int thread) {
                   sum_rows(calls[static_cast<std::size_t>(i)], 1, partial + thread * most);
                 });
}

void CpuOps::norm_backward_weight(const Tensor& dgain, const Tensor& dbias, const Tensor& dy,
                                  const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  const RowSums call{dgain, dbias, dy, x, mean, rstd};
  independent_row_sums({&call, 1});
}

void CpuOps::column_sum(const Tensor& sum, const Tensor& x) {
  const RowSums call{.dgain = sum, .dy = x};
  independent_row_sums({&call, 1});
}

void CpuOps::norm_backward(const Tensor& dx, const Tensor& dgain, const Tensor& dbias,
                           const Tensor& dy, const Tensor& x, const Tensor& gain,
                           const Tensor& mean, const Tensor& rstd, const Tensor& residual) {
  norm_backward_weight(dgain, dbias, dy, x, mean, rstd);
  norm_backward_input(dx, dy, x, gain, mean, rstd, residual);
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
