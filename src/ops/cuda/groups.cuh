// Groups of threads that process a row: a warp or a block. Sums have a fixed order.
#pragma once

#include "language.cuh"

namespace trireme::ops {

/// Rows up to this many columns are for one warp, longer ones for a block.
inline constexpr std::int64_t warp_columns = 1024;
inline constexpr int block_threads = 256;
inline constexpr int block_warps = block_threads / 32;

/// The result in all threads. `scratch`: block_warps of T, for blocks only.
template <int Threads, class T, class Combine>
__device__ inline T group_reduce(T value, T* scratch, const Combine& combine) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value = combine(value, from_lane_xor(value, mask));
  if constexpr (Threads > 32) {
    __syncthreads();  // before the last result is overwritten
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = scratch[0];
    for (int i = 1; i < Threads / 32; ++i) value = combine(value, scratch[i]);
  }
  return value;
}

struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Maximum {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Σ of a pack, as a tree.
__device__ inline float pack_sum(const float (&x)[8]) {
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/// Launches kernel(width) with one row per group: use(std::integral_constant) of threads.
template <int Threads>
struct GroupSize {
  static constexpr int threads = Threads;
  static constexpr int rows = Threads == 32 ? 4 : 1;  // of a block
  static dim3 block() { return dim3(Threads, rows); }
  static dim3 grid(std::int64_t all) {
    const std::int64_t blocks = (all + rows - 1) / rows;
    return dim3(static_cast<unsigned>(blocks < (1 << 20) ? blocks : 1 << 20));
  }
};
template <class Use>
void with_group(std::int64_t columns, const Use& use) {
  if (columns <= warp_columns) {
    use(GroupSize<32>{});
  } else {
    use(GroupSize<block_threads>{});
  }
}

/// The first row of a thread's group, and how far apart its rows are.
__device__ inline std::int64_t first_row() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}
__device__ inline std::int64_t row_step() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.y;
}

}  // namespace trireme::ops
