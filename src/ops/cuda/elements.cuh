// Elements of the compute types in kernels, eight at a time as fp32; and groups of threads that
// process a row: a warp or a block.
#pragma once

#include "kernels.hpp"
#include "language.cuh"

namespace trireme::ops {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(Bf16 x) { return bf16_bits_to_float(x.bits); }
__device__ inline float to_float(Fp16 x) { return fp16_bits_to_float(x.bits); }

__device__ inline void round_to(float& to, float x) { to = x; }
__device__ inline void round_to(Bf16& to, float x) { to.bits = float_to_bf16_bits(x); }
__device__ inline void round_to(Fp16& to, float x) { to.bits = float_to_fp16_bits(x); }
template <class T>
__device__ inline T rounded(float x) {
  T result;
  round_to(result, x);
  return result;
}

/// Elements that a thread processes at a time: 16 bytes of the 16-bit types.
inline constexpr int pack = 8;

/// Two elements as a word, the first in the low half.
__device__ inline std::uint32_t word_of(Bf16 low, Bf16 high) {
  return low.bits | static_cast<std::uint32_t>(high.bits) << 16;
}
__device__ inline std::uint32_t word_of(Fp16 low, Fp16 high) {
  return low.bits | static_cast<std::uint32_t>(high.bits) << 16;
}

/// A pack as it is in memory, aligned to 16 bytes. A kernel whose threads load several of these
/// before they use the first has more bytes on their way than one that converts each at once.
template <class T>
struct PackWords {
  uint4 quads[sizeof(T) / 2];
};

__device__ inline void unpack(float (&x)[pack], const PackWords<float>& from) {
  const uint4 &a = from.quads[0], &b = from.quads[1];
  const std::uint32_t words[pack] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < pack; ++i) x[i] = float_of_bits(words[i]);
}
template <class T>
__device__ inline void unpack(float (&x)[pack], const PackWords<T>& from) {
  const uint4& v = from.quads[0];
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = to_float(T{static_cast<std::uint16_t>(words[i] & 0xffffU)});
    x[2 * i + 1] = to_float(T{static_cast<std::uint16_t>(words[i] >> 16)});
  }
}

__device__ inline void repack(PackWords<float>& to, const float (&x)[pack]) {
  to.quads[0] = uint4{float_bits(x[0]), float_bits(x[1]), float_bits(x[2]), float_bits(x[3])};
  to.quads[1] = uint4{float_bits(x[4]), float_bits(x[5]), float_bits(x[6]), float_bits(x[7])};
}
template <class T>
__device__ inline void repack(PackWords<T>& to, const float (&x)[pack]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = word_of(rounded<T>(x[2 * i]), rounded<T>(x[2 * i + 1]));
  to.quads[0] = uint4{words[0], words[1], words[2], words[3]};
}

template <class T>
__device__ inline const PackWords<T>& words_at(const T* p) {
  return *reinterpret_cast<const PackWords<T>*>(p);
}
template <class T>
__device__ inline PackWords<T>& words_at(T* p) {
  return *reinterpret_cast<PackWords<T>*>(p);
}

/// The `count` elements at p, and zeros after them. `aligned`: p is to 16 bytes, if count is 8.
template <class T>
__device__ inline void load(float (&x)[pack], const T* p, int count, bool aligned) {
  if (aligned && count == pack) {
    unpack(x, words_at(p));
    return;
  }
#pragma unroll
  for (int i = 0; i < pack; ++i) x[i] = i < count ? to_float(p[i]) : 0.0F;
}
template <class T>
__device__ inline void store(T* p, const float (&x)[pack], int count, bool aligned) {
  if (aligned && count == pack) {
    repack(words_at(p), x);
    return;
  }
#pragma unroll
  for (int i = 0; i < pack; ++i) {
    if (i < count) p[i] = rounded<T>(x[i]);
  }
}

/// Rows of a matrix as a kernel sees them.
template <class T>
struct View {
  T* data;
  std::int64_t stride;
  bool aligned;  // every row begins at a multiple of 16 bytes
  bool whole;    // and is a multiple of 8 long
  __device__ T* at(std::int64_t r, std::int64_t c) const { return data + r * stride + c; }
  __device__ void load(float (&x)[pack], std::int64_t r, std::int64_t c, int count) const {
    ops::load(x, at(r, c), count, aligned);
  }
  __device__ void store(const float (&x)[pack], std::int64_t r, std::int64_t c, int count) const {
    ops::store(at(r, c), x, count, aligned);
  }
};

inline bool is_aligned(const void* data, std::int64_t row_bytes = 0) {
  return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(row_bytes)) % 16 ==
         0;
}

template <class T>
View<T> view(const Matrix& x) {
  const auto size = static_cast<std::int64_t>(sizeof(T));
  const bool aligned = is_aligned(x.data, x.rows > 1 ? x.stride * size : 0);
  return {static_cast<T*>(x.data), x.stride, aligned, aligned && x.columns % pack == 0};
}

/// use(T{}) with the type that `type` names.
template <class Use>
void with_type(Element type, const Use& use) {
  switch (type) {
    case Element::f32:
      return use(float{});
    case Element::bf16:
      return use(Bf16{});
    case Element::f16:
      return use(Fp16{});
  }
}

/// body(r, c, count) for packs of columns [c, c + count) of row r.
template <class Body>
__global__ void __launch_bounds__(256, 3)
    for_packs_kernel(std::int64_t rows, std::int64_t columns, Body body) {
  const std::int64_t packs = (columns + pack - 1) / pack;
  const std::int64_t row_step = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
  const std::int64_t pack_step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t r = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; r < rows;
       r += row_step) {
    for (std::int64_t p = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         p < packs; p += pack_step) {
      const std::int64_t rest = columns - p * pack;
      body(r, p * pack, rest < pack ? static_cast<int>(rest) : pack);
    }
  }
}

template <class Body>
void for_packs(const char* name, std::int64_t rows, std::int64_t columns, CUstream_st* stream,
               const Body& body) {
  if (rows <= 0 || columns <= 0) return;
  const std::int64_t packs = (columns + pack - 1) / pack;
  unsigned width = 1;
  while (width < 256 && width < packs) width *= 2;
  const unsigned height = 256 / width;
  const std::int64_t across = (packs + width - 1) / width, down = (rows + height - 1) / height;
  const dim3 grid(static_cast<unsigned>(across < 65536 ? across : 65536),
                  static_cast<unsigned>(down < 65535 ? down : 65535));
  launch(name, for_packs_kernel<Body>, grid, dim3(width, height), 0, stream, rows, columns, body);
}

/// The same, as one row if all matrices are contiguous.
template <class Body, class... Matrices>
void for_elements(const char* name, CUstream_st* stream, const Body& body, const Matrix& first,
                  const Matrices&... others) {
  const bool flat = first.contiguous() && (others.contiguous() && ...);
  for_packs(name, flat ? 1 : first.rows, flat ? first.rows * first.columns : first.columns, stream,
            body);
}

// Groups. Sums have a fixed order.
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

/// Launches with one row for each group.
template <int Threads>
struct GroupSize {
  static constexpr int threads = Threads;
  static constexpr int rows = Threads == 32 ? 4 : 1;  // of a block
  static constexpr int all = Threads * rows;
  static dim3 block() { return dim3(Threads, rows); }
  static dim3 grid(std::int64_t all) {
    const std::int64_t blocks = (all + rows - 1) / rows;
    return dim3(static_cast<unsigned>(blocks < (1 << 20) ? blocks : 1 << 20));
  }
};
/// use() with a warp for rows up to 1,024 columns, and a block for longer ones.
template <class Use>
void with_group(std::int64_t columns, const Use& use) {
  if (columns <= 1024) {
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
