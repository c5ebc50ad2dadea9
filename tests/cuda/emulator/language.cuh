// The host's version of src/ops/cuda/native/language.cuh. Kernels run as plain C++: each thread of
// a block is a fiber that runs until it waits. Blocks run one at a time, so `static` is shared
// memory. Warps run one after the other, in an order that can be reversed to expose missing
// barriers.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "trireme/core/half.hpp"

struct CUstream_st;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static
#define __restrict__

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace trireme::emulator {

enum class Order : std::uint8_t { forwards, backwards, shuffled };

/// The order of fibers and blocks from now on.
void set_order(Order order);
/// Runs `body` once for each thread of each block. Throws Error if threads deadlock, or if one
/// called fail().
void run(const char* name, dim3 grid, dim3 block, std::size_t shared,
         const std::function<void()>& body);
/// Calls of run so far.
int launches();
void block_barrier();
/// Exchanges each lane's 16 words within the warp: [32][16], valid until the next exchange but one.
const std::uint32_t (*exchange(const std::uint32_t (&words)[16]))[16];
int lane();
char* shared_memory();
void fail(const char* what, long long a, long long b);

}  // namespace trireme::emulator

inline void __syncthreads() { trireme::emulator::block_barrier(); }
inline void __syncwarp() { trireme::emulator::exchange({}); }

namespace trireme::ops {

inline constexpr std::size_t usual_shared = 48U << 10;

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared, CUstream_st*, Arguments... arguments) {
  emulator::run(name, grid, block, shared, [&] { kernel(arguments...); });
}

inline char* dynamic_shared() { return emulator::shared_memory(); }
inline void fail(const char* what, long long a, long long b) { emulator::fail(what, a, b); }

inline float bf16_bits_to_float(std::uint16_t bits) { return bf16_to_float(bits); }
inline std::uint16_t float_to_bf16_bits(float value) { return float_to_bf16(value); }
inline float fp16_bits_to_float(std::uint16_t bits) { return fp16_to_float(bits); }
inline std::uint16_t float_to_fp16_bits(float value) { return float_to_fp16(value); }
inline std::uint32_t float_bits(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float float_of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline void sincospif(float x, float* sine, float* cosine) {
  const double angle = 3.141592653589793 * static_cast<double>(x);
  *sine = static_cast<float>(std::sin(angle));
  *cosine = static_cast<float>(std::cos(angle));
}
inline float rounded_product(float a, float b) { return a * b; }
inline std::uint32_t high_product(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((std::uint64_t{a} * b) >> 32);
}

template <class T>
T from_lane(T value, int lane) {
  static_assert(sizeof(T) <= 64);
  std::uint32_t words[16] = {};
  std::memcpy(words, &value, sizeof(T));
  const auto* all = emulator::exchange(words);
  T result;
  std::memcpy(&result, all[lane & 31], sizeof(T));
  return result;
}
template <class T>
T from_lane_xor(T value, int mask) {
  return from_lane(value, emulator::lane() ^ mask);
}

void load_matrices(std::uint32_t (&word)[4], const void* row);
void load_matrices_transposed(std::uint32_t (&word)[4], const void* row);
void multiply_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
void multiply_fp16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);

}  // namespace trireme::ops
