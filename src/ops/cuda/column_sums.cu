// Sums over rows: bias and norm gradients. Each block adds up 256 columns of a chunk of rows; a
// second kernel adds the chunks. The order depends on the shape alone.
#include "elements.cuh"

namespace trireme::ops {
namespace {

constexpr int across = 32, down = 8;  // threads of a block
constexpr int join_down = 16;         // of one that adds chunks
constexpr int ahead = 4;              // rows loaded before the first is added

enum class Terms : std::uint8_t { plain, norm, norm_and_bias };

/// Σ over rows of column c, as a tree.
template <int Down, int Columns>
__device__ inline float sum_down(const float (&scratch)[Down][Columns], int c) {
  float sums[Down];
#pragma unroll
  for (int y = 0; y < Down; ++y) sums[y] = scratch[y][c];
#pragma unroll
  for (int step = Down / 2; step > 0; step /= 2) {
#pragma unroll
    for (int y = 0; y < step; ++y) sums[y] += sums[y + step];
  }
  return sums[0];
}

/// partial [chunks, outputs, columns]
template <class T, Terms terms>
__global__ void chunk_sums_kernel(float* partial, View<T> dy, View<T> x, const float* mean,
                                  const float* rstd, std::int64_t rows, std::int64_t columns,
                                  std::int64_t chunk_rows) {
  __shared__ float scratch[down][across * pack];
  constexpr int outputs = terms == Terms::norm_and_bias ? 2 : 1;
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x) * across + threadIdx.x) * pack;
  const int count = c >= columns ? 0 : columns - c < pack ? static_cast<int>(columns - c) : pack;
  const std::int64_t begin = blockIdx.y * chunk_rows;
  const std::int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float sum[pack] = {}, plain[pack] = {};
  const auto add = [&](std::int64_t r, const float(&g)[pack], const float(&v)[pack]) {
    const float m = mean == nullptr ? 0.0F : mean[r], s = rstd[r];
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      sum[i] = fmaf(g[i], (v[i] - m) * s, sum[i]);
      if constexpr (outputs == 2) plain[i] += g[i];
    }
  };
  const auto add_plain = [&](const float(&g)[pack]) {
#pragma unroll
    for (int i = 0; i < pack; ++i) sum[i] += g[i];
  };
  std::int64_t r = begin + threadIdx.y;
  if (count == pack && dy.aligned && (terms == Terms::plain || x.aligned)) {
    for (; r + (ahead - 1) * down < end; r += ahead * down) {
      PackWords<T> dy_words[ahead], x_words[ahead];
#pragma unroll
      for (int j = 0; j < ahead; ++j) {
        dy_words[j] = words_at(dy.at(r + j * down, c));
        if constexpr (terms != Terms::plain) x_words[j] = words_at(x.at(r + j * down, c));
      }
#pragma unroll
      for (int j = 0; j < ahead; ++j) {
        float g[pack], v[pack];
        unpack(g, dy_words[j]);
        if constexpr (terms == Terms::plain) {
          add_plain(g);
        } else {
          unpack(v, x_words[j]);
          add(r + j * down, g, v);
        }
      }
    }
  }
  if (count > 0) {
    for (; r < end; r += down) {
      float g[pack], v[pack];
      dy.load(g, r, c, count);
      if constexpr (terms == Terms::plain) {
        add_plain(g);
      } else {
        x.load(v, r, c, count);
        add(r, g, v);
      }
    }
  }
  // Each thread adds up one of the block's columns.
  const int own = static_cast<int>(threadIdx.y) * across + static_cast<int>(threadIdx.x);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * across * pack + own;
  float* to = partial + static_cast<std::int64_t>(blockIdx.y) * outputs * columns + column;
  const auto put = [&](const float(&values)[pack], float* result) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < pack; ++i) scratch[threadIdx.y][threadIdx.x * pack + i] = values[i];
    __syncthreads();
    if (column < columns) *result = sum_down(scratch, own);
  };
  static_assert(down == pack, "a thread for each column");
  put(sum, to);
  if constexpr (outputs == 2) put(plain, to + columns);
}

/// first and second [columns] += Σ over chunks of partial [chunks, width].
__global__ void join_chunks_kernel(float* first, float* second, const float* partial,
                                   std::int64_t chunks, std::int64_t columns, std::int64_t width) {
  __shared__ float scratch[join_down][across];
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * across + threadIdx.x;
  float sum = 0;
  if (c < width) {
#pragma unroll 8
    for (std::int64_t i = threadIdx.y; i < chunks; i += join_down) sum += partial[i * width + c];
  }
  scratch[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= width) return;
  sum = sum_down(scratch, static_cast<int>(threadIdx.x));
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
         dim3(static_cast<unsigned>(ceil_div(width, across))), dim3(across, join_down), 0, stream,
         first, second, partial, chunks, columns, width);
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
