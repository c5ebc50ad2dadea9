// The part of the CUDA language that kernels use beyond its keywords, as functions. The tests have
// a header of the same name that runs the kernels on the host (tests/cuda/emulator).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "trireme/device/cuda_error.hpp"

namespace trireme::ops {

inline constexpr unsigned whole_warp = 0xffffffffU;
/// Dynamic shared memory that a block gets without an attribute.
inline constexpr std::size_t usual_shared = 48U << 10;

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared, CUstream_st* stream, Arguments... arguments) {
  if (shared > usual_shared) {
    const cudaError_t given =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (given != cudaSuccess) {
      const std::string what =
          std::string(name) + ": " + std::to_string(shared) + " bytes of shared memory for a block";
      device::check_cuda(static_cast<int>(given), what.c_str());
    }
  }
  kernel<<<grid, block, shared, stream>>>(arguments...);
  device::check_cuda(static_cast<int>(cudaGetLastError()), name);
}

#ifdef __CUDACC__
/// The block's dynamic shared memory, aligned to 16 bytes.
__device__ inline char* dynamic_shared() {
  extern __shared__ uint4 memory[];
  return reinterpret_cast<char*>(memory);
}

/// Ends the kernel and every later call with an error; prints `what` and the numbers.
__device__ __noinline__ inline void fail(const char* what, long long a, long long b) {
  printf("trireme: %s: %lld, %lld\n", what, a, b);
  __trap();
}

__device__ inline float bf16_bits_to_float(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
__device__ inline std::uint16_t float_to_bf16_bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
__device__ inline float fp16_bits_to_float(std::uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
__device__ inline std::uint16_t float_to_fp16_bits(float value) {
  return __half_as_ushort(__float2half_rn(value));
}
__device__ inline std::uint32_t float_bits(float value) { return __float_as_uint(value); }
__device__ inline float float_of_bits(std::uint32_t bits) { return __uint_as_float(bits); }

/// A product that is never contracted into a fused multiply-add.
__device__ inline float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline std::uint32_t high_product(std::uint32_t a, std::uint32_t b) {
  return __umulhi(a, b);
}

// Collective over the lanes of a warp.
template <class T>
__device__ inline T from_lane_xor(T value, int mask) {
  static_assert(sizeof(T) % 4 == 0);
  std::uint32_t words[sizeof(T) / 4];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (std::size_t i = 0; i < sizeof(T) / 4; ++i) {
    words[i] = __shfl_xor_sync(whole_warp, words[i], mask);
  }
  memcpy(&value, words, sizeof(T));
  return value;
}

/// Loads four 8×8 matrices of 16-bit elements from shared memory. Lane l gives the 16-byte aligned
/// address of row l % 8 of matrix l / 8. word[m] becomes elements 2·(lane % 4) and the next of row
/// lane / 4 of matrix m, or of its transpose.
__device__ inline void load_matrices(std::uint32_t (&word)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&word)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(address)
               : "memory");
}

/// c [16, 8] += a [16, 16]·b [16, 8] of a warp. With g = lane / 4 and t = 2·(lane % 4): c holds
/// (g, t), (g, t+1), (g+8, t), (g+8, t+1); a the pairs from (g, t), (g+8, t), (g, t+8), (g+8, t+8);
/// b the pairs down column g from rows t and t+8. PTX ISA, "Matrix fragments for mma.m16n8k16".
__device__ inline void multiply_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                     std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply_fp16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                     std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

}  // namespace trireme::ops
