// Shared by the attention kernels: tiles in shared memory, products of tiles by one warp, masks.
//
// A warp has 16 rows of a product, in the layout of the tensor cores' results: with g = lane / 4
// and t = 2·(lane % 4), sums[j] holds (g, 8j+t), (g, 8j+t+1), (g+8, 8j+t), (g+8, 8j+t+1). bf16 and
// fp16 are multiplied by tensor cores; fp32 by ordinary arithmetic, as tensor cores would round it.
#pragma once

#include <type_traits>

#include "elements.cuh"
#include "philox.cuh"

namespace trireme::ops {

inline constexpr float log2_of_e = 1.44269504088896341F, log_of_2 = 0.69314718055994531F;

__device__ inline int lane_of_thread() { return static_cast<int>(threadIdx.x) % 32; }

template <class T, int D>
constexpr int row_step_of() {
  return row_elements(D, static_cast<int>(sizeof(T)));
}

/// tile [Rows, D] in shared memory: `valid` rows of `size` elements, zeros elsewhere.
template <class T, int D, int Rows>
__device__ inline void load_tile(T* tile, const T* from, std::int64_t stride, std::int64_t valid,
                                 int size, bool aligned) {
  constexpr int chunk = 16 / sizeof(T), chunks = D / chunk;
  for (int i = threadIdx.x; i < Rows * chunks; i += static_cast<int>(blockDim.x)) {
    const int row = i / chunks, column = i % chunks * chunk;
    T* to = tile + row * row_step_of<T, D>() + column;
    const T* source = from + row * stride + column;
    if (aligned && row < valid && column + chunk <= size) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(source);
      continue;
    }
#pragma unroll
    for (int e = 0; e < chunk; ++e) {
      to[e] = row < valid && column + e < size ? source[e] : T{};
    }
  }
}

__device__ inline void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1, Bf16) {
  multiply_bf16(c, a, b0, b1);
}
__device__ inline void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1, Fp16) {
  multiply_fp16(c, a, b0, b1);
}

__device__ inline void four(float (&x)[4], const float* p) {
  const uint4 v = *reinterpret_cast<const uint4*>(p);
  x[0] = float_of_bits(v.x);
  x[1] = float_of_bits(v.y);
  x[2] = float_of_bits(v.z);
  x[3] = float_of_bits(v.w);
}

/// sums [16, 8·Tiles] += a·bᵀ over D columns; a 16 rows, b 8·Tiles rows in shared memory.
template <class T, int D, int Tiles>
__device__ inline void multiply_rows(float (&sums)[Tiles][4], const T* a, const T* b) {
  const int lane = lane_of_thread();
  constexpr int step = row_step_of<T, D>();
  if constexpr (sizeof(T) == 2) {
    const T* a_row = a + lane % 16 * step + lane / 16 * 8;
    const T* b_row = b + (lane % 8 + lane / 16 * 8) * step + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      std::uint32_t left[4], right[4];
      load_matrices(left, a_row + k);
#pragma unroll
      for (int j = 0; j < Tiles; j += 2) {
        load_matrices(right, b_row + j * 8 * step + k);
        multiply(sums[j], left, right[0], right[1], T{});
        multiply(sums[j + 1], left, right[2], right[3], T{});
      }
    }
  } else {
    const float* a_row = a + lane / 4 * step;
    const float* b_row = b + lane % 4 * 2 * step;
#pragma unroll 1
    for (int k = 0; k < D; k += 4) {
      float low[4], high[4], first[4], second[4];
      four(low, a_row + k);
      four(high, a_row + 8 * step + k);
#pragma unroll
      for (int j = 0; j < Tiles; ++j) {
        four(first, b_row + j * 8 * step + k);
        four(second, b_row + (j * 8 + 1) * step + k);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[j][0] = fmaf(low[e], first[e], sums[j][0]);
          sums[j][1] = fmaf(low[e], second[e], sums[j][1]);
          sums[j][2] = fmaf(high[e], first[e], sums[j][2]);
          sums[j][3] = fmaf(high[e], second[e], sums[j][3]);
        }
      }
    }
  }
}

/// Stride of a warp's fp32 weights in shared memory, such that rows begin in different banks.
template <int Tiles>
inline constexpr int stash_step = 8 * Tiles + 4;
/// Bytes of these weights for all warps.
template <class T, int Tiles, int Warps>
constexpr std::size_t stash_bytes() {
  return sizeof(T) == 4 ? std::size_t{Warps} * 16 * stash_step<Tiles> * sizeof(float) : 0;
}

/// sums [16, 8·Columns] += weights [16, 8·Tiles]·b; b 8·Tiles rows in shared memory, from its first
/// column. Weights are rounded to T. `stash`: the warp's scratch.
template <class T, int D, int Tiles, int Columns>
__device__ inline void multiply_columns(float (&sums)[Columns][4], const float (&weights)[Tiles][4],
                                        const T* b, float* stash) {
  const int lane = lane_of_thread();
  constexpr int step = row_step_of<T, D>();
  if constexpr (sizeof(T) == 2) {
    const T* b_row = b + lane % 16 * step + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < Tiles; k += 2) {
      std::uint32_t left[4], right[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = weights[k + i / 2] + i % 2 * 2;
        left[i] = word_of(rounded<T>(pair[0]), rounded<T>(pair[1]));
      }
#pragma unroll
      for (int j = 0; j < Columns; j += 2) {
        load_matrices_transposed(right, b_row + k * 8 * step + j * 8);
        multiply(sums[j], left, right[0], right[1], T{});
        multiply(sums[j + 1], left, right[2], right[3], T{});
      }
    }
  } else {
    float* row = stash + lane / 4 * stash_step<Tiles>;
    __syncwarp();  // before weights are overwritten
#pragma unroll
    for (int j = 0; j < Tiles; ++j) {
      float* to = row + 8 * j + lane % 4 * 2;
      to[0] = weights[j][0];
      to[1] = weights[j][1];
      to[8 * stash_step<Tiles>] = weights[j][2];
      to[8 * stash_step<Tiles> + 1] = weights[j][3];
    }
    __syncwarp();
    const float* b_row = b + lane % 4 * 2;
#pragma unroll 1
    for (int k = 0; k < 8 * Tiles; k += 4) {
      float low[4], high[4];
      four(low, row + k);
      four(high, row + 8 * stash_step<Tiles> + k);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int j = 0; j < Columns; ++j) {
          const uint2 pair = *reinterpret_cast<const uint2*>(b_row + (k + e) * step + j * 8);
          const float first = float_of_bits(pair.x), second = float_of_bits(pair.y);
          sums[j][0] = fmaf(low[e], first, sums[j][0]);
          sums[j][1] = fmaf(low[e], second, sums[j][1]);
          sums[j][2] = fmaf(high[e], first, sums[j][2]);
          sums[j][3] = fmaf(high[e], second, sums[j][3]);
        }
      }
    }
  }
}

/// Writes a warp's 16 rows times `factor`, from row `row` on: rows < `end`, columns < `size`.
template <class T, int Columns>
__device__ inline void store_rows(T* to, std::int64_t stride, const float (&sums)[Columns][4],
                                  const float (&factor)[2], std::int64_t row, std::int64_t end,
                                  int column, int size, bool pairs) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= end) continue;
    T* line = to + (row + 8 * half) * stride;
#pragma unroll
    for (int j = 0; j < Columns; ++j) {
      const int c = column + 8 * j + lane_of_thread() % 4 * 2;
      // A factor of 0 gives 0, even if the sum is not finite.
      const float f = factor[half];
      const T first = rounded<T>(f == 0.0F ? 0.0F : sums[j][2 * half] * f);
      const T second = rounded<T>(f == 0.0F ? 0.0F : sums[j][2 * half + 1] * f);
      if constexpr (sizeof(T) == 2) {
        if (pairs && c + 1 < size) {
          *reinterpret_cast<std::uint32_t*>(line + c) = word_of(first, second);
          continue;
        }
      }
      if (c < size) line[c] = first;
      if (c + 1 < size) line[c + 1] = second;
    }
  }
}

/// A tensor's head in one sequence.
template <class T>
struct Head {
  T* data;
  std::int64_t stride;
  bool aligned, pairs;  // rows begin at multiples of 16 and of 4 bytes
  __device__ Head(const Heads& x, std::int64_t b, std::int64_t h)
      : data(static_cast<T*>(x.data) + b * x.batch_stride + h * x.head_stride), stride(x.stride) {
    const auto low_bits = reinterpret_cast<std::uintptr_t>(data) |
                          static_cast<std::uintptr_t>(stride * static_cast<int>(sizeof(T)));
    aligned = low_bits % 16 == 0;
    pairs = low_bits % 4 == 0;
  }
};

/// The extent of block `block` of `rows` tokens: precomputed, or that of positions 0, 1, 2, …
__device__ inline Extent extent_of(const Extent* extents, std::int64_t b, std::int64_t block,
                                   int rows, std::int64_t tokens) {
  if (extents != nullptr) return extents[b * ceil_div(tokens, rows) + block];
  const std::int64_t end = (block + 1) * rows < tokens ? (block + 1) * rows : tokens;
  return {static_cast<std::int32_t>(block * rows), static_cast<std::int32_t>(end - 1), 0, 0};
}

__device__ inline std::int32_t value_at(const std::int32_t* values, std::int64_t i,
                                        std::int32_t otherwise) {
  return values == nullptr ? otherwise : values[i];
}

/// Positions and documents of some tokens of one side in shared memory.
struct Places {
  std::int32_t *positions, *documents;
  __device__ void load(const std::int32_t* from_positions, const std::int32_t* from_documents,
                       std::int64_t b, std::int64_t begin, int rows, std::int64_t tokens) const {
    for (int i = threadIdx.x; i < rows; i += static_cast<int>(blockDim.x)) {
      const std::int64_t at = begin + i < tokens ? begin + i : tokens - 1;
      positions[i] = value_at(from_positions, b * tokens + at, static_cast<std::int32_t>(at));
      documents[i] = value_at(from_documents, b * tokens + at, 0);
    }
  }
};

/// Dropout's index of element (b, h, i, 0), to which j is added.
__device__ inline std::uint64_t dropout_row(const Attention& p, std::int64_t b, std::int64_t h,
                                            std::int64_t i) {
  return static_cast<std::uint64_t>(
      ((p.samples[b] * p.all_heads + p.first_head + h) * p.queries + i) * p.keys);
}

/// Which of a warp's sums dropout keeps, four bits for each [j]; index(j, e) gives their indices.
/// The loop is not unrolled, to save registers.
template <int Tiles, class Index>
__device__ inline std::uint32_t kept(const Keep& keep, const Index& index) {
  static_assert(Tiles <= 8);
  std::uint32_t bits = 0;
#pragma unroll 1
  for (int i = 0; i < 4 * Tiles; ++i) {
    const std::uint64_t number = index(i / 4, i % 4);
    const Words words = random_words(keep.seed, keep.purpose, keep.stream, number / 4);
    const bool stays = words.pick(static_cast<unsigned>(number & 3U)) >= keep.threshold;
    bits |= static_cast<std::uint32_t>(stays) << i;
  }
  return bits;
}

/// Extents of both sides, or null if no tensors define them.
struct Extents {
  Extent *queries, *keys;
};
std::size_t extents_bytes(const Attention& call, int query_rows, int key_rows);
Extents find_extents(const Attention& call, int query_rows, int key_rows, void* memory,
                     CUstream_st* stream);

/// use(type, size) with T{} and the padded head size as a constant.
template <class Use>
void with_head(const Attention& call, const Use& use) {
  with_type(call.type, [&]<class T>(T type) {
    switch (padded_head(call.size)) {
      case 64:
        return use(type, std::integral_constant<int, 64>{});
      case 128:
        return use(type, std::integral_constant<int, 128>{});
      default:
        return use(type, std::integral_constant<int, 256>{});
    }
  });
}

}  // namespace trireme::ops
