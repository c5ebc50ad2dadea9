// Element types, for the host and for kernels alike: this header includes none that nvcc cannot
// read. Sixteen-bit floating point is stored as std::uint16_t; here are conversions to and from
// fp32, rounding to the nearest and to even between two neighbors, as IEEE 754 does by default.
#pragma once

#include <cstdint>

/// Before functions that both the host and kernels call; plain C++ where nvcc does not read them.
#ifdef __CUDACC__
#define TRIREME_ON_DEVICE __host__ __device__ __forceinline__
#else
#define TRIREME_ON_DEVICE inline
#endif

namespace trireme {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64, u16, u8 };

/// std::bit_cast, which is the host's alone.
template <class To, class From>
TRIREME_ON_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

TRIREME_ON_DEVICE float bf16_to_float(std::uint16_t value) {
  return bits_as<float>(std::uint32_t{value} << 16);
}

/// NaN stays NaN (made quiet); what is beyond the largest finite value becomes infinite.
TRIREME_ON_DEVICE std::uint16_t float_to_bf16(float value) {
  const auto bits = bits_as<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// Rounds by adding `addend`, of [0, 65536), to the bits that are cut off: up with the probability
/// of the part cut off where it is drawn evenly. What is not finite is only cut.
TRIREME_ON_DEVICE std::uint16_t float_to_bf16_up_by(float value, std::uint32_t addend) {
  const auto bits = bits_as<std::uint32_t>(value);
  if ((bits & 0x7f800000U) == 0x7f800000U) return float_to_bf16(value);
  return static_cast<std::uint16_t>((bits + addend) >> 16);
}

TRIREME_ON_DEVICE float fp16_to_float(std::uint16_t value) {
  const std::uint32_t sign = std::uint32_t{value & 0x8000U} << 16;
  const std::uint32_t magnitude = value & 0x7fffU;
  if (magnitude < 0x0400U) {  // zero and subnormal: multiples of 2^-24
    return bits_as<float>(sign | bits_as<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F));
  }
  // Infinity and NaN take fp32's largest exponent; others are biased by 127 instead of 15.
  const std::uint32_t bias = magnitude >= 0x7c00U ? 0x70000000U : 0x38000000U;
  return bits_as<float>(sign | ((magnitude << 13) + bias));
}

/// NaN stays NaN (made quiet); 65520 and more become infinite; small values become subnormal.
TRIREME_ON_DEVICE std::uint16_t float_to_fp16(float value) {
  const auto bits = bits_as<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000U) {
    result = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  } else if (magnitude >= 0x477ff000U) {
    result = 0x7c00U;
  } else if (magnitude < 0x38800000U) {
    // Beside 1/2 the fp32 numbers are 2^-24 apart, as fp16's subnormals are: the sum rounds for us.
    result = bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5F) - 0x3f000000U;
  } else {
    result = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | result);
}

}  // namespace trireme
