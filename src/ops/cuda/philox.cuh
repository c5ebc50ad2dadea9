// Philox4x32-10 on the device (Salmon et al., SC11): the words of trireme::random_bits
// (core/random.hpp), to which tests compare it bit by bit.
#pragma once

#include "kernels.hpp"
#include "language.cuh"

namespace trireme::ops {

struct Words {
  std::uint32_t v[4];
  /// Without an array index, which would spill to local memory.
  __device__ std::uint32_t pick(unsigned i) const {
    const std::uint32_t low = i & 1U ? v[1] : v[0], high = i & 1U ? v[3] : v[2];
    return i & 2U ? high : low;
  }
};

/// Words 4·block … 4·block + 3 of a stream.
__device__ inline Words random_words(std::uint64_t seed, std::uint32_t purpose,
                                     std::uint32_t stream, std::uint64_t block) {
  Words c{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), purpose,
           stream}};
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = high_product(0xD2511F53U, c.v[0]), low0 = 0xD2511F53U * c.v[0];
    const std::uint32_t high1 = high_product(0xCD9E8D57U, c.v[2]), low1 = 0xCD9E8D57U * c.v[2];
    c = Words{{high1 ^ c.v[1] ^ key0, low1, high0 ^ c.v[3] ^ key1, low0}};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return c;
}

/// Dropout's factors of elements index … index + 7: 0 or keep.factor.
__device__ inline void keep_factors(float (&factor)[8], const Keep& keep, std::uint64_t index) {
  const auto first = static_cast<unsigned>(index & 3U);
  Words words = random_words(keep.seed, keep.purpose, keep.stream, index / 4);
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned place = (first + i) & 3U;
    if (i > 0 && place == 0) {
      words = random_words(keep.seed, keep.purpose, keep.stream, (index + i) / 4);
    }
    factor[i] = words.pick(place) < keep.threshold ? 0.0F : keep.factor;
  }
}

}  // namespace trireme::ops
