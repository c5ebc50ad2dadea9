// LayerNorm and RMSNorm, a row per group of threads. A row is read from device memory once and kept
// as fp32 in shared memory, unless it is too long.
#include "elements.cuh"

namespace trireme::ops {
namespace {

struct Parameters {
  float *mean, *rstd;
  std::int64_t rows;
  int columns;
  bool gain_aligned, bias_aligned;
};

__device__ inline int count_at(int c, int columns) {
  return columns - c < pack ? columns - c : pack;
}

/// A thread's part of a row. Only that thread reads it, so no barrier is needed.
template <bool Held>
struct RowMemory {
  float* row;  // columns rounded up to packs
  __device__ void put(int c, const float (&x)[pack]) const {
    if constexpr (Held) repack(row + c, x);
  }
  template <class T>
  __device__ void get(float (&x)[pack], const View<T>& from, std::int64_t r, int c,
                      int count) const {
    if constexpr (Held) {
      unpack(x, row + c);
    } else {
      from.load(x, r, c, count);
    }
  }
};

template <class T, bool Centered, bool Held, int Threads>
__global__ void norm_forward_kernel(View<T> y, View<T> x, const T* gain, const T* bias,
                                    Parameters p, float epsilon) {
  __shared__ float scratch[block_warps];
  const int padded = (p.columns + pack - 1) / pack * pack, first = threadIdx.x * pack;
  const RowMemory<Held> held{reinterpret_cast<float*>(dynamic_shared()) + threadIdx.y * padded};
  const auto count_of_row = static_cast<float>(p.columns);
  for (std::int64_t r = first_row(); r < p.rows; r += row_step()) {
    float v[pack], sum = 0;
    for (int c = first; c < p.columns; c += Threads * pack) {
      x.load(v, r, c, count_at(c, p.columns));
      held.put(c, v);
      if constexpr (!Centered) {
#pragma unroll
        for (int i = 0; i < pack; ++i) v[i] *= v[i];
      }
      sum += pack_sum(v);
    }
    sum = group_reduce<Threads>(sum, scratch, Plus{});
    float mean = 0, variance = sum / count_of_row;
    if constexpr (Centered) {
      mean = variance;
      float squares = 0;
      for (int c = first; c < p.columns; c += Threads * pack) {
        const int count = count_at(c, p.columns);
        held.get(v, x, r, c, count);
#pragma unroll
        for (int i = 0; i < pack; ++i) v[i] = i < count ? (v[i] - mean) * (v[i] - mean) : 0.0F;
        squares += pack_sum(v);
      }
      variance = group_reduce<Threads>(squares, scratch, Plus{}) / count_of_row;
    }
    const float rstd = 1.0F / sqrtf(variance + epsilon);
    if (threadIdx.x == 0) {
      if constexpr (Centered) p.mean[r] = mean;
      p.rstd[r] = rstd;
    }
    for (int c = first; c < p.columns; c += Threads * pack) {
      const int count = count_at(c, p.columns);
      float g[pack], b[pack] = {};
      held.get(v, x, r, c, count);
      load(g, gain + c, count, p.gain_aligned);
      if (bias != nullptr) load(b, bias + c, count, p.bias_aligned);
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        const float normalized = (v[i] - mean) * rstd;
        v[i] = bias == nullptr ? normalized * g[i] : fmaf(normalized, g[i], b[i]);
      }
      y.store(v, r, c, count);
    }
  }
}

/// With h = (x − mean)·rstd and g = dy·gain: dx = rstd·(g − mean(g) − h·mean(g·h)); RMSNorm has no
/// mean(g), and mean 0.
template <class T, bool Centered, bool Held, int Threads>
__global__ void norm_backward_kernel(View<T> dx, View<T> dy, View<T> x, View<T> residual,
                                     const T* gain, Parameters p) {
  __shared__ float scratch[block_warps];
  const int padded = (p.columns + pack - 1) / pack * pack, first = threadIdx.x * pack;
  float* rows = reinterpret_cast<float*>(dynamic_shared()) + 2 * threadIdx.y * padded;
  const RowMemory<Held> held_g{rows}, held_h{rows + padded};
  const auto count_of_row = static_cast<float>(p.columns);
  for (std::int64_t r = first_row(); r < p.rows; r += row_step()) {
    const float mean = Centered ? p.mean[r] : 0.0F, rstd = p.rstd[r];
    float g[pack], h[pack], w[pack], sum_g = 0, sum_gh = 0;
    const auto read = [&](int c, int count) {
      x.load(h, r, c, count);
      dy.load(g, r, c, count);
      load(w, gain + c, count, p.gain_aligned);
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        h[i] = (h[i] - mean) * rstd;
        g[i] *= w[i];
      }
    };
    for (int c = first; c < p.columns; c += Threads * pack) {
      read(c, count_at(c, p.columns));  // g is 0 past the row's end
      held_g.put(c, g);
      held_h.put(c, h);
      if constexpr (Centered) sum_g += pack_sum(g);
#pragma unroll
      for (int i = 0; i < pack; ++i) w[i] = g[i] * h[i];
      sum_gh += pack_sum(w);
    }
    const float mean_g =
        Centered ? group_reduce<Threads>(sum_g, scratch, Plus{}) / count_of_row : 0.0F;
    const float mean_gh = group_reduce<Threads>(sum_gh, scratch, Plus{}) / count_of_row;
    for (int c = first; c < p.columns; c += Threads * pack) {
      const int count = count_at(c, p.columns);
      if constexpr (Held) {
        held_g.get(g, dy, r, c, count);
        held_h.get(h, x, r, c, count);
      } else {
        read(c, count);
      }
#pragma unroll
      for (int i = 0; i < pack; ++i) g[i] = rstd * fmaf(-h[i], mean_gh, g[i] - mean_g);
      if (residual.data != nullptr) {
        residual.load(w, r, c, count);
#pragma unroll
        for (int i = 0; i < pack; ++i) g[i] += w[i];
      }
      dx.store(g, r, c, count);
    }
  }
}

/// The same dx, and partial [chunks, outputs, columns]: each block's Σ dy·h over its rows and, with
/// `bias`, Σ dy. A row is in registers, up to Packs packs in each thread of its group.
template <class T, bool Centered, int Threads, int Packs>
__global__ void norm_backward_fused_kernel(View<T> dx, float* partial, View<T> dy, View<T> x,
                                           View<T> residual, const T* gain, Parameters p,
                                           bool bias) {
  constexpr int group_rows = GroupSize<Threads>::rows;
  __shared__ float scratch[block_warps];
  __shared__ float sums[group_rows][Threads * pack];
  const int first = threadIdx.x * pack;
  const auto count_of_row = static_cast<float>(p.columns);
  float sum_gain[Packs][pack] = {}, sum_bias[Packs][pack] = {};
  for (std::int64_t r = first_row(); r < p.rows; r += row_step()) {
    const float mean = Centered ? p.mean[r] : 0.0F, rstd = p.rstd[r];
    float g[Packs][pack], h[Packs][pack], w[pack], sum_g = 0, sum_gh = 0;
#pragma unroll
    for (int k = 0; k < Packs; ++k) {
      const int c = first + k * Threads * pack;
      if (c >= p.columns) break;
      const int count = count_at(c, p.columns);
      x.load(h[k], r, c, count);
      dy.load(g[k], r, c, count);  // 0 past the row's end
      load(w, gain + c, count, p.gain_aligned);
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        h[k][i] = (h[k][i] - mean) * rstd;
        sum_gain[k][i] = fmaf(g[k][i], h[k][i], sum_gain[k][i]);
        if constexpr (Centered) sum_bias[k][i] += g[k][i];
        g[k][i] *= w[i];
        w[i] = g[k][i] * h[k][i];
      }
      if constexpr (Centered) sum_g += pack_sum(g[k]);
      sum_gh += pack_sum(w);
    }
    const float mean_g =
        Centered ? group_reduce<Threads>(sum_g, scratch, Plus{}) / count_of_row : 0.0F;
    const float mean_gh = group_reduce<Threads>(sum_gh, scratch, Plus{}) / count_of_row;
#pragma unroll
    for (int k = 0; k < Packs; ++k) {
      const int c = first + k * Threads * pack;
      if (c >= p.columns) break;
      const int count = count_at(c, p.columns);
#pragma unroll
      for (int i = 0; i < pack; ++i) g[k][i] = rstd * fmaf(-h[k][i], mean_gh, g[k][i] - mean_g);
      if (residual.data != nullptr) {
        residual.load(w, r, c, count);
#pragma unroll
        for (int i = 0; i < pack; ++i) g[k][i] += w[i];
      }
      dx.store(g[k], r, c, count);
    }
  }
  const int outputs = bias ? 2 : 1;
  float* to = partial + static_cast<std::int64_t>(blockIdx.x) * outputs * p.columns;
  // The rows of a block one after another. Each thread reads what it and its like have written.
  const auto add_up = [&](const float(&own)[Packs][pack], float* result) {
#pragma unroll
    for (int k = 0; k < Packs; ++k) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < pack; ++i) sums[threadIdx.y][first + i] = own[k][i];
      __syncthreads();
      if (threadIdx.y != 0) continue;
      for (int i = 0; i < pack; ++i) {
        const int c = first + k * Threads * pack + i;
        if (c >= p.columns) continue;
        float sum = sums[0][first + i];
        for (int y = 1; y < group_rows; ++y) sum += sums[y][first + i];
        result[c] = sum;
      }
    }
  };
  add_up(sum_gain, to);
  if (bias) add_up(sum_bias, to + p.columns);
}

Parameters parameters_of(const Norm& norm) {
  return {norm.mean,
          norm.rstd,
          norm.x.rows,
          static_cast<int>(norm.x.columns),
          is_aligned(norm.gain),
          is_aligned(norm.bias)};
}

/// use(type, group, centered, held) as constants; `rows` rows of fp32 are held for each row.
template <std::int64_t WarpColumns, class Use>
void choose(const Norm& norm, int rows, const Use& use) {
  with_type(norm.x.type, [&]<class T>(T type) {
    with_group<WarpColumns>(norm.x.columns, [&]<class Group>(Group group) {
      const std::int64_t padded = (norm.x.columns + pack - 1) / pack * pack;
      const auto shared = static_cast<std::size_t>(padded * 4 * rows * Group::rows);
      const auto with_held = [&](auto centered) {
        if (shared <= usual_shared - 1024) {
          use(type, group, centered, std::bool_constant<true>{}, shared);
        } else {
          use(type, group, centered, std::bool_constant<false>{}, std::size_t{0});
        }
      };
      if (norm.mean != nullptr) {
        with_held(std::bool_constant<true>{});
      } else {
        with_held(std::bool_constant<false>{});
      }
    });
  });
}

}  // namespace

void norm_forward(const Matrix& y, const Norm& norm, float epsilon, CUstream_st* stream) {
  if (norm.x.rows == 0 || norm.x.columns == 0) return;
  choose<2 * warp_columns>(
      norm, 1, [&]<class T, class Group>(T, Group, auto centered, auto held, std::size_t shared) {
        launch("norm_forward",
               norm_forward_kernel<T, decltype(centered)::value, decltype(held)::value,
                                   Group::threads>,
               Group::grid(norm.x.rows), Group::block(), shared, stream, view<T>(y),
               view<T>(norm.x), static_cast<const T*>(norm.gain), static_cast<const T*>(norm.bias),
               parameters_of(norm), epsilon);
      });
}

void norm_backward(const Matrix& dx, const Matrix& dy, const Norm& norm, const Matrix& residual,
                   CUstream_st* stream) {
  if (norm.x.rows == 0 || norm.x.columns == 0) return;
  choose<warp_columns>(
      norm, 2, [&]<class T, class Group>(T, Group, auto centered, auto held, std::size_t shared) {
        launch("norm_backward",
               norm_backward_kernel<T, decltype(centered)::value, decltype(held)::value,
                                    Group::threads>,
               Group::grid(norm.x.rows), Group::block(), shared, stream, view<T>(dx), view<T>(dy),
               view<T>(norm.x), view<T>(residual), static_cast<const T*>(norm.gain),
               parameters_of(norm));
      });
}

std::size_t norm_backward_workspace(std::int64_t rows, std::int64_t columns, int outputs) {
  return static_cast<std::size_t>(norm_chunks(rows, columns) * columns * outputs) * sizeof(float);
}

void norm_backward_fused(const Matrix& dx, float* dgain, float* dbias, const Matrix& dy,
                         const Norm& norm, const Matrix& residual, float* workspace,
                         CUstream_st* stream) {
  if (norm.x.rows == 0 || norm.x.columns == 0) return;
  const std::int64_t chunks = norm_chunks(norm.x.rows, norm.x.columns);
  with_type(norm.x.type, [&]<class T>(T) {
    with_group(norm.x.columns, [&]<class Group>(Group) {
      const auto run = [&](auto centered, auto packs) {
        launch("norm_backward_fused",
               norm_backward_fused_kernel<T, decltype(centered)::value, Group::threads,
                                          decltype(packs)::value>,
               dim3(static_cast<unsigned>(chunks)), Group::block(), 0, stream, view<T>(dx),
               workspace, view<T>(dy), view<T>(norm.x), view<T>(residual),
               static_cast<const T*>(norm.gain), parameters_of(norm), dbias != nullptr);
      };
      const auto with_packs = [&](auto centered) {
        const int packs = norm_packs(norm.x.columns);
        if (packs == 1) return run(centered, std::integral_constant<int, 1>{});
        if (packs == 2) return run(centered, std::integral_constant<int, 2>{});
        if (packs == 3) return run(centered, std::integral_constant<int, 3>{});
        run(centered, std::integral_constant<int, 4>{});
      };
      if (norm.mean != nullptr) {
        with_packs(std::bool_constant<true>{});
      } else {
        with_packs(std::bool_constant<false>{});
      }
    });
  });
  join_column_sums(dgain, dbias, workspace, chunks, norm.x.columns, stream);
}

}  // namespace trireme::ops
