// Matrix products without a library: for products that cuBLASLt refuses and for tests without a
// GPU. Tiles of 64 × 64, sixteen sums per thread, each in the order of k.
#include "finish.cuh"

namespace trireme::ops {
namespace {

constexpr int side = 64, depth = 16, threads = 256;

template <class T>
struct Operand {
  const T* data;
  std::int64_t row_step,
      depth_step;  // from one row of op(a), or column of op(b), to the next; of k
  std::int64_t rows;
};

template <class T>
Operand<T> operand(const Matrix& x, bool rows_are_columns) {
  return {static_cast<const T*>(x.data), rows_are_columns ? 1 : x.stride,
          rows_are_columns ? x.stride : 1, rows_are_columns ? x.columns : x.rows};
}

/// tile[k][row] of rows [first, first + 64) and k [begin, begin + 16); zeros outside.
template <class T>
__device__ inline void fill_tile(float (&tile)[depth][side + 1], const Operand<T>& x,
                                 std::int64_t first, std::int64_t begin, std::int64_t k) {
#pragma unroll
  for (int i = threadIdx.x; i < side * depth; i += threads) {
    // Neighboring threads read neighboring elements.
    const int row = x.row_step == 1 ? i % side : i / depth;
    const int at = x.row_step == 1 ? i / side : i % depth;
    const bool inside = first + row < x.rows && begin + at < k;
    tile[at][row] =
        inside ? to_float(x.data[(first + row) * x.row_step + (begin + at) * x.depth_step]) : 0.0F;
  }
}

template <class To, class T>
__global__ void __launch_bounds__(threads)
    plain_product_kernel(View<To> c, Operand<T> a, Operand<T> b, std::int64_t k,
                         FinishViews<T> finish) {
  __shared__ float a_tile[depth][side + 1], b_tile[depth][side + 1];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * side;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * side;
  // A thread has 2 rows, 32 apart, by 8 neighboring columns.
  const int row = threadIdx.x / 8, column = threadIdx.x % 8 * pack;
  float sums[2][pack] = {};
  for (std::int64_t begin = 0; begin < k; begin += depth) {
    fill_tile(a_tile, a, first_row, begin, k);
    fill_tile(b_tile, b, first_column, begin, k);
    __syncthreads();
#pragma unroll
    for (int at = 0; at < depth; ++at) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < pack; ++j) {
          sums[i][j] = fmaf(a_tile[at][row + 32 * i], b_tile[at][column + j], sums[i][j]);
        }
      }
    }
    __syncthreads();
  }
  const std::int64_t to = first_column + column, rest = b.rows - to;
  if (rest <= 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t r = first_row + row + 32 * i;
    if (r < a.rows) finish.apply(sums[i], c, r, to, rest < pack ? static_cast<int>(rest) : pack);
  }
}

}  // namespace

void plain_product(const Matrix& c, const Matrix& a, const Matrix& b, bool transpose_a,
                   bool transpose_b, const Finish& finish, CUstream_st* stream) {
  if (c.rows == 0 || c.columns == 0) return;
  const std::int64_t k = transpose_a ? a.rows : a.columns;
  constexpr std::int64_t most = 65535LL * side;  // rows of one grid
  for (std::int64_t begin = 0; begin < c.rows; begin += most) {
    const std::int64_t rows = c.rows - begin < most ? c.rows - begin : most;
    const auto part = [&](Matrix x, bool columns) {
      if (x.data == nullptr) return x;
      x.data = static_cast<char*>(x.data) + begin * (columns ? 1 : x.stride) * bytes_of(x.type);
      (columns ? x.columns : x.rows) = rows;
      return x;
    };
    Finish own = finish;
    own.before_gelu = part(finish.before_gelu, false);
    own.gelu_input = part(finish.gelu_input, false);
    const Matrix to = part(c, false), from = part(a, transpose_a);
    const dim3 grid(static_cast<unsigned>(ceil_div(c.columns, side)),
                    static_cast<unsigned>(ceil_div(rows, side)));
    with_type(c.type, [&]<class To>(To) {
      with_type(a.type, [&]<class T>(T) {
        launch("plain_product", plain_product_kernel<To, T>, grid, dim3(threads), 0, stream,
               view<To>(to), operand<T>(from, transpose_a), operand<T>(b, !transpose_b), k,
               FinishViews<T>(own));
      });
    });
  }
}

}  // namespace trireme::ops
