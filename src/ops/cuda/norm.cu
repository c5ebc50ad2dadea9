// LayerNorm and RMSNorm, a row per group of threads. A row is read from device memory once and kept
// in registers, unless it is too long.
#include <type_traits>

#include "elements.cuh"

namespace trireme::ops {
namespace {

struct Parameters {
  float *mean, *rstd;
  std::int64_t rows;
  int columns;
};

/// A row, or gain or bias, as a thread of a group reads it: pack k begins at column
/// (threadIdx.x + k·Threads)·8. With Packs = 0 nothing is kept, and each use reads again.
template <class T, int Threads, int Packs>
class Row {
 public:
  __device__ Row(View<T> from, int columns) : from_(from), columns_(columns) {}

  __device__ void read(std::int64_t r) {
    r_ = r;
    if constexpr (Packs > 0) {
      if (from_.whole) {  // all loads are issued before the first is waited for
#pragma unroll
        for (int k = 0; k < Packs; ++k) {
          const int c = column(k);
          if (c < columns_) packs_[k] = words_at(from_.at(r, c));
        }
      } else {
#pragma unroll
        for (int k = 0; k < Packs; ++k) {
          float x[pack];
          const int c = column(k);
          from_.load(x, r, c, columns_ - c < pack ? columns_ - c : pack);
          repack(packs_[k], x);
        }
      }
    }
  }
  /// What get returns from now on, rounded to T.
  __device__ void set(const float (&x)[pack], int k) {
    static_assert(Packs > 0);
    repack(packs_[k], x);
  }
  /// Elements past the row's end are 0.
  __device__ void get(float (&x)[pack], int k) const {
    if constexpr (Packs > 0) {
      unpack(x, packs_[k]);
    } else {
      const int c = column(k);
      from_.load(x, r_, c, columns_ - c < pack ? columns_ - c : pack);
    }
  }

 private:
  static __device__ int column(int k) {
    return (static_cast<int>(threadIdx.x) + k * Threads) * pack;
  }
  View<T> from_;
  int columns_;
  std::int64_t r_ = 0;
  PackWords<std::remove_const_t<T>> packs_[Packs > 0 ? Packs : 1] = {};
};

/// body(k, column, count) for a thread's packs of a row.
template <int Threads, int Packs, class Body>
__device__ inline void for_packs_of_row(int columns, const Body& body) {
  const auto at = [&](int k, int c) { body(k, c, columns - c < pack ? columns - c : pack); };
  const int first = static_cast<int>(threadIdx.x) * pack;
  if constexpr (Packs > 0) {
#pragma unroll
    for (int k = 0; k < Packs; ++k) {
      if (first + k * Threads * pack < columns) at(k, first + k * Threads * pack);
    }
  } else {
    for (int k = 0; first + k * Threads * pack < columns; ++k) at(k, first + k * Threads * pack);
  }
}

/// With Adds x + other is normalized, and written to `sum`.
template <class T, bool Centered, bool Adds, int Threads, int Packs>
__global__ void norm_forward_kernel(View<T> y, View<T> x, View<T> other, View<T> sum_of,
                                    View<const T> gain, View<const T> bias, Parameters p,
                                    float epsilon) {
  __shared__ float scratch[block_warps];
  const auto count_of_row = static_cast<float>(p.columns);
  const bool biased = Centered && bias.data != nullptr;
  Row<T, Threads, Packs> row(x, p.columns), added(other, p.columns);
  Row<const T, Threads, Packs> gains(gain, p.columns), biases(bias, p.columns);
  gains.read(0);
  if (biased) biases.read(0);
  for (std::int64_t r = first_row(); r < p.rows; r += row_step()) {
    float v[pack], sum = 0;
    row.read(r);
    if constexpr (Adds) added.read(r);
    for_packs_of_row<Threads, Packs>(p.columns, [&](int k, int c, int count) {
      row.get(v, k);
      if constexpr (Adds) {
        float w[pack];
        added.get(w, k);
#pragma unroll
        for (int i = 0; i < pack; ++i) v[i] += w[i];
        row.set(v, k);
        sum_of.store(v, r, c, count);
        row.get(v, k);
      }
      if constexpr (!Centered) {
#pragma unroll
        for (int i = 0; i < pack; ++i) v[i] *= v[i];
      }
      sum += pack_sum(v);
    });
    sum = group_reduce<Threads>(sum, scratch, Plus{});
    float mean = 0, variance = sum / count_of_row;
    if constexpr (Centered) {
      mean = variance;
      float squares = 0;
      for_packs_of_row<Threads, Packs>(p.columns, [&](int k, int /*c*/, int count) {
        row.get(v, k);
#pragma unroll
        for (int i = 0; i < pack; ++i) v[i] = i < count ? (v[i] - mean) * (v[i] - mean) : 0.0F;
        squares += pack_sum(v);
      });
      variance = group_reduce<Threads>(squares, scratch, Plus{}) / count_of_row;
    }
    const float rstd = 1.0F / sqrtf(variance + epsilon);
    if (threadIdx.x == 0) {
      if constexpr (Centered) p.mean[r] = mean;
      p.rstd[r] = rstd;
    }
    for_packs_of_row<Threads, Packs>(p.columns, [&](int k, int c, int count) {
      float g[pack], b[pack];
      row.get(v, k);
      gains.get(g, k);
      if (biased) biases.get(b, k);
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        const float normalized = (v[i] - mean) * rstd;
        v[i] = biased ? fmaf(normalized, g[i], b[i]) : normalized * g[i];
      }
      y.store(v, r, c, count);
    });
  }
}

/// Two sums that a group makes at once.
struct TwoSums {
  float a, b;
};
struct PlusBoth {
  __device__ TwoSums operator()(TwoSums x, TwoSums y) const { return {x.a + y.a, x.b + y.b}; }
};

/// With h = (x − mean)·rstd and g = dy·gain: dx = rstd·(g − mean(g) − h·mean(g·h)); RMSNorm has no
/// mean(g), and mean 0. With Sums also partial [chunks, outputs, columns]: each block's Σ dy·h over
/// its rows and, with `biased`, Σ dy.
// A multiprocessor has three blocks of 128 threads at least, so that enough rows are in flight.
template <class T, bool Centered, bool Sums, int Threads, int Packs>
__global__ void __launch_bounds__(GroupSize<Threads>::all, 384 / GroupSize<Threads>::all)
    norm_backward_kernel(View<T> dx, float* partial, View<T> dy, View<T> x, View<T> residual,
                         View<const T> gain, Parameters p, bool biased) {
  constexpr int held = Sums ? Packs : 1, group_rows = GroupSize<Threads>::rows;
  __shared__ TwoSums scratch[block_warps];
  const auto count_of_row = static_cast<float>(p.columns);
  Row<T, Threads, Packs> x_row(x, p.columns), dy_row(dy, p.columns), other(residual, p.columns);
  Row<const T, Threads, Packs> gains(gain, p.columns);
  float sum_gain[held][pack] = {}, sum_bias[held][pack] = {};
  gains.read(0);
  for (std::int64_t r = first_row(); r < p.rows; r += row_step()) {
    x_row.read(r);
    dy_row.read(r);
    if (residual.data != nullptr) other.read(r);
    const float mean = Centered ? p.mean[r] : 0.0F, rstd = p.rstd[r];
    float g[pack], h[pack], w[pack];
    TwoSums sums = {0, 0};  // of g and g·h
    for_packs_of_row<Threads, Packs>(p.columns, [&](int k, int /*c*/, int /*count*/) {
      x_row.get(h, k);
      dy_row.get(g, k);  // 0 past the row's end
      gains.get(w, k);
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        h[i] = (h[i] - mean) * rstd;
        if constexpr (Sums) {
          sum_gain[k][i] = fmaf(g[i], h[i], sum_gain[k][i]);
          if constexpr (Centered) sum_bias[k][i] += g[i];
        }
        g[i] *= w[i];
        w[i] = g[i] * h[i];
      }
      if constexpr (Centered) sums.a += pack_sum(g);
      sums.b += pack_sum(w);
    });
    sums = group_reduce<Threads>(sums, scratch, PlusBoth{});
    const float mean_g = sums.a / count_of_row, mean_gh = sums.b / count_of_row;
    for_packs_of_row<Threads, Packs>(p.columns, [&](int k, int c, int count) {
      x_row.get(h, k);
      dy_row.get(g, k);
      gains.get(w, k);
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        h[i] = (h[i] - mean) * rstd;
        g[i] = rstd * fmaf(-h[i], mean_gh, g[i] * w[i] - mean_g);
      }
      if (residual.data != nullptr) {
        other.get(w, k);
#pragma unroll
        for (int i = 0; i < pack; ++i) g[i] += w[i];
      }
      dx.store(g, r, c, count);
    });
  }
  if constexpr (Sums) {
    __shared__ float of_rows[group_rows][Threads * pack];
    const int first = static_cast<int>(threadIdx.x) * pack;
    float* to = partial + static_cast<std::int64_t>(blockIdx.x) * (biased ? 2 : 1) * p.columns;
    // The rows of a block one after another. Each thread reads what it and its like have written.
    const auto add_up = [&](const float(&own)[held][pack], float* result) {
#pragma unroll
      for (int k = 0; k < held; ++k) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < pack; ++i) of_rows[threadIdx.y][first + i] = own[k][i];
        __syncthreads();
        if (threadIdx.y != 0) continue;
        for (int i = 0; i < pack; ++i) {
          const int c = first + k * Threads * pack + i;
          if (c >= p.columns) continue;
          float sum = of_rows[0][first + i];
          for (int y = 1; y < group_rows; ++y) sum += of_rows[y][first + i];
          result[c] = sum;
        }
      }
    };
    add_up(sum_gain, to);
    if (biased) add_up(sum_bias, to + p.columns);
  }
}

Parameters parameters_of(const Norm& norm) {
  return {norm.mean, norm.rstd, norm.x.rows, static_cast<int>(norm.x.columns)};
}

/// Gain or bias, or null, as a matrix of one row.
template <class T>
View<const T> vector(const void* data, std::int64_t columns) {
  const bool aligned = is_aligned(data);
  return {static_cast<const T*>(data), columns, aligned, aligned && columns % pack == 0};
}

template <int Packs>
using Held = std::integral_constant<int, Packs>;

/// use(type, centered)
template <class Use>
void with_kind(const Norm& norm, const Use& use) {
  with_type(norm.x.type, [&]<class T>(T type) {
    if (norm.mean != nullptr) {
      use(type, std::bool_constant<true>{});
    } else {
      use(type, std::bool_constant<false>{});
    }
  });
}

/// use(group, packs) for rows that are kept: backward, a thread keeps up to four tensors and sums.
template <class Use>
void with_held_row(std::int64_t columns, const Use& use) {
  if (columns <= 768) return use(GroupSize<32>{}, Held<3>{});
  if (columns <= 1024) return use(GroupSize<32>{}, Held<4>{});
  if (columns <= 2048) return use(GroupSize<128>{}, Held<2>{});
  if (columns <= 4096) return use(GroupSize<128>{}, Held<4>{});
  use(GroupSize<256>{}, Held<4>{});
}

/// The same for forward, where a warp has room for a longer row, and needs no barriers. norm and
/// add_norm share it, so that both have the same bits.
template <class Use>
void with_forward_row(std::int64_t columns, const Use& use) {
  if (columns > 1024 && columns <= 1792) return use(GroupSize<32>{}, Held<7>{});
  with_held_row(columns, use);
}

}  // namespace

void norm_forward(const Matrix& y, const Norm& norm, float epsilon, CUstream_st* stream) {
  const std::int64_t rows = norm.x.rows, columns = norm.x.columns;
  if (rows == 0 || columns == 0) return;
  with_kind(norm, [&]<class T, bool Centered>(T, std::bool_constant<Centered>) {
    const auto run = [&]<class Group, int Packs>(Group, Held<Packs>) {
      launch("norm_forward", norm_forward_kernel<T, Centered, false, Group::threads, Packs>,
             dim3(static_cast<unsigned>(norm_blocks(ceil_div(rows, Group::rows)))), Group::block(),
             0, stream, view<T>(y), view<T>(norm.x), View<T>(), View<T>(),
             vector<T>(norm.gain, columns), vector<T>(norm.bias, columns), parameters_of(norm),
             epsilon);
    };
    if (columns > largest_held_row) return run(GroupSize<256>{}, Held<0>{});
    with_forward_row(columns, run);
  });
}

void add_norm_forward(const Matrix& y, const Norm& norm, const Matrix& a, const Matrix& b,
                      float epsilon, CUstream_st* stream) {
  const std::int64_t rows = norm.x.rows, columns = norm.x.columns;
  if (rows == 0 || columns == 0) return;
  with_kind(norm, [&]<class T, bool Centered>(T, std::bool_constant<Centered>) {
    with_forward_row(columns, [&]<class Group, int Packs>(Group, Held<Packs>) {
      launch("add_norm_forward", norm_forward_kernel<T, Centered, true, Group::threads, Packs>,
             dim3(static_cast<unsigned>(norm_blocks(ceil_div(rows, Group::rows)))), Group::block(),
             0, stream, view<T>(y), view<T>(a), view<T>(b), view<T>(norm.x),
             vector<T>(norm.gain, columns), vector<T>(norm.bias, columns), parameters_of(norm),
             epsilon);
    });
  });
}

void norm_backward(const Matrix& dx, const Matrix& dy, const Norm& norm, const Matrix& residual,
                   CUstream_st* stream) {
  const std::int64_t rows = norm.x.rows, columns = norm.x.columns;
  if (rows == 0 || columns == 0) return;
  with_kind(norm, [&]<class T, bool Centered>(T, std::bool_constant<Centered>) {
    const auto run = [&]<class Group, int Packs>(Group, Held<Packs>) {
      launch("norm_backward", norm_backward_kernel<T, Centered, false, Group::threads, Packs>,
             Group::grid(rows), Group::block(), 0, stream, view<T>(dx),
             static_cast<float*>(nullptr), view<T>(dy), view<T>(norm.x), view<T>(residual),
             vector<T>(norm.gain, columns), parameters_of(norm), false);
    };
    if (columns > largest_held_row) return run(GroupSize<256>{}, Held<0>{});
    with_held_row(columns, run);
  });
}

std::size_t norm_backward_workspace(std::int64_t rows, std::int64_t columns, int outputs) {
  return static_cast<std::size_t>(norm_chunks(rows, columns) * columns * outputs) * sizeof(float);
}

void norm_backward_fused(const Matrix& dx, float* dgain, float* dbias, const Matrix& dy,
                         const Norm& norm, const Matrix& residual, float* workspace,
                         CUstream_st* stream) {
  const std::int64_t rows = norm.x.rows, columns = norm.x.columns;
  if (rows == 0 || columns == 0) return;
  const std::int64_t chunks = norm_chunks(rows, columns);
  with_kind(norm, [&]<class T, bool Centered>(T, std::bool_constant<Centered>) {
    with_held_row(columns, [&]<class Group, int Packs>(Group, Held<Packs>) {
      launch("norm_backward_fused", norm_backward_kernel<T, Centered, true, Group::threads, Packs>,
             dim3(static_cast<unsigned>(chunks)), Group::block(), 0, stream, view<T>(dx), workspace,
             view<T>(dy), view<T>(norm.x), view<T>(residual), vector<T>(norm.gain, columns),
             parameters_of(norm), dbias != nullptr);
    });
  });
  join_column_sums(dgain, dbias, workspace, chunks, columns, stream);
}

}  // namespace trireme::ops
