// Sums over rows: bias and norm gradients. Each block adds up 256 columns of a chunk of rows; a
// second kernel adds the chunks. The order depends on the shape alone.
#include "elements.cuh"

namespace trireme::ops {
namespace {

constexpr int across = 32, down = 8;  // threads of a block

enum class Terms : std::uint8_t { plain, norm, norm_and_bias };

/// Adds up each thread's value over threadIdx.y, as a tree; the sum is thread (x, 0)'s.
__device__ inline float sum_down(float value, float (&scratch)[down][across]) {
  __syncthreads();
  scratch[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
#pragma unroll
  for (int step = down / 2; step > 0; step /= 2) {
    if (static_cast<int>(threadIdx.y) < step) {
      scratch[threadIdx.y][threadIdx.x] += scratch[threadIdx.y + step][threadIdx.x];
    }
    __syncthreads();
  }
  return scratch[0][threadIdx.x];
}

/// partial [chunks, outputs, columns]
template <class T, Terms terms>
__global__ void chunk_sums_kernel(float* partial, View<T> dy, View<T> x, const float* mean,
                                  const float* rstd, std::int64_t rows, std::int64_t columns,
                                  std::int64_t chunk_rows) {
  __shared__ float scratch[down][across];
  constexpr int outputs = terms == Terms::norm_and_bias ? 2 : 1;
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x) * across + threadIdx.x) * pack;
  const int count = c >= columns ? 0 : columns - c < pack ? static_cast<int>(columns - c) : pack;
  const std::int64_t begin = blockIdx.y * chunk_rows;
  const std::int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float sum[pack] = {}, plain[pack] = {};
  if (count > 0) {
#pragma unroll 4
    for (std::int64_t r = begin + threadIdx.y; r < end; r += down) {
      float g[pack], v[pack];
      dy.load(g, r, c, count);
      if constexpr (terms == Terms::plain) {
#pragma unroll
        for (int i = 0; i < pack; ++i) sum[i] += g[i];
      } else {
        x.load(v, r, c, count);
        const float m = mean == nullptr ? 0.0F : mean[r], s = rstd[r];
#pragma unroll
        for (int i = 0; i < pack; ++i) {
          sum[i] = fmaf(g[i], (v[i] - m) * s, sum[i]);
          if constexpr (outputs == 2) plain[i] += g[i];
        }
      }
    }
  }
  float* to = partial + static_cast<std::int64_t>(blockIdx.y) * outputs * columns + c;
#pragma unroll
  for (int i = 0; i < pack; ++i) {
    const float total = sum_down(sum[i], scratch);
    if (threadIdx.y == 0 && i < count) to[i] = total;
    if constexpr (outputs == 2) {
      const float other = sum_down(plain[i], scratch);
      if (threadIdx.y == 0 && i < count) to[columns + i] = other;
    }
  }
}

/// first and second [columns] += Σ over chunks of partial [chunks, width].
__global__ void join_chunks_kernel(float* first, float* second, const float* partial,
                                   std::int64_t chunks, std::int64_t columns, std::int64_t width) {
  __shared__ float scratch[down][across];
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * across + threadIdx.x;
  float sum = 0;
  if (c < width) {
#pragma unroll 4
    for (std::int64_t i = threadIdx.y; i < chunks; i += down) sum += partial[i * width + c];
  }
  sum = sum_down(sum, scratch);
  if (threadIdx.y != 0 || c >= width) return;
  if (c < columns) {
    first[c] += sum;
  } else {
    second[c - columns] += sum;
  }
}

template <Terms terms>
void sum_rows(float* first, float* second, const Matrix& dy, const Norm& norm, float* workspace,
              CUstream_st* stream) {
  if (dy.rows == 0 || dy.columns == 0) return;
  const std::int64_t chunk_rows = rows_of_chunk(dy.rows);
  with_type(dy.type, [&]<class T>(T) {
    const dim3 grid(static_cast<unsigned>(ceil_div(dy.columns, across * pack)),
                    static_cast<unsigned>(ceil_div(dy.rows, chunk_rows)));
    launch("column_sums", chunk_sums_kernel<T, terms>, grid, dim3(across, down), 0, stream,
           workspace, view<T>(dy), view<T>(norm.x), norm.mean, norm.rstd, dy.rows, dy.columns,
           chunk_rows);
  });
  join_column_sums(first, second, workspace, ceil_div(dy.rows, chunk_rows), dy.columns, stream);
}

template <class T, int Threads>
__global__ void row_sum_kernel(float* sum, View<T> x, std::int64_t rows, std::int64_t columns) {
  __shared__ float scratch[block_warps];
  for (std::int64_t r = first_row(); r < rows; r += row_step()) {
    float own = 0;
    for (std::int64_t c = threadIdx.x * pack; c < columns; c += Threads * pack) {
      float v[pack];
      x.load(v, r, c, columns - c < pack ? static_cast<int>(columns - c) : pack);
      own += pack_sum(v);
    }
    own = group_reduce<Threads>(own, scratch, Plus{});
    if (threadIdx.x == 0) sum[r] += own;
  }
}

}  // namespace

std::size_t column_sum_workspace(std::int64_t rows, std::int64_t columns, int outputs) {
  return static_cast<std::size_t>(sum_chunks(rows) * columns * outputs) * sizeof(float);
}

void join_column_sums(float* first, float* second, const float* partial, std::int64_t chunks,
                      std::int64_t columns, CUstream_st* stream) {
  const std::int64_t width = (second == nullptr ? 1 : 2) * columns;
  launch("join_column_sums", join_chunks_kernel,
         dim3(static_cast<unsigned>(ceil_div(width, across))), dim3(across, down), 0, stream, first,
         second, partial, chunks, columns, width);
}

void column_sum(float* sum, const Matrix& x, float* workspace, CUstream_st* stream) {
  sum_rows<Terms::plain>(sum, nullptr, x, Norm{x}, workspace, stream);
}

void norm_weight_sums(float* dgain, float* dbias, const Matrix& dy, const Norm& norm,
                      float* workspace, CUstream_st* stream) {
  if (dbias == nullptr) {
    sum_rows<Terms::norm>(dgain, nullptr, dy, norm, workspace, stream);
  } else {
    sum_rows<Terms::norm_and_bias>(dgain, dbias, dy, norm, workspace, stream);
  }
}

void row_sum(float* sum, const Matrix& x, CUstream_st* stream) {
  if (x.rows == 0 || x.columns == 0) return;
  with_type(x.type, [&]<class T>(T) {
    with_group(x.columns, [&]<class Group>(Group) {
      launch("row_sum", row_sum_kernel<T, Group::threads>, Group::grid(x.rows), Group::block(), 0,
             stream, sum, view<T>(x), x.rows, x.columns);
    });
  });
}

}  // namespace trireme::ops
