// Shared by the bf16 kernels for AVX512_BF16 and for AMX: storing sums and transposing blocks.
// Highway 1.0.3 lacks these targets, so the functions name their own.
#pragma once

#include "bf16_tiles.hpp"

#if defined(__x86_64__) && (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 10))

#include <cstring>

#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns about undefined vectors inside its own intrinsics (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define TRIREME_BF16_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))
#define TRIREME_BF16_LAMBDA \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma"), always_inline))
#define TRIREME_BF16_INLINE TRIREME_BF16_TARGET inline __attribute__((always_inline))

namespace trireme::ops {

TRIREME_BF16_INLINE __mmask16 first_lanes(std::int64_t count) {
  return count >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1U << count) - 1);
}

TRIREME_BF16_INLINE __m512 widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/// Stores the existing lanes of a row's sums.
TRIREME_BF16_INLINE void finish(__m512 sum, const TileResult& result, std::int64_t row,
                                std::int64_t column, __mmask16 lanes) {
  const std::int64_t at = row * result.stride + column;
  if (result.factor != 1) sum = _mm512_mul_ps(sum, _mm512_set1_ps(result.factor));
  if (result.before != nullptr) {
    const float* before = result.before + row * result.before_stride + column;
    sum = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, before), sum);
  }
  if (result.bias != nullptr) {
    sum = _mm512_add_ps(sum, widen(_mm256_maskz_loadu_epi16(lanes, result.bias + column)));
  }
  if (result.wide != nullptr) {
    if (result.accumulate) {
      sum = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, result.wide + at), sum);
    }
    _mm512_mask_storeu_ps(result.wide + at, lanes, sum);
    return;
  }
  if (result.accumulate) {
    sum = _mm512_add_ps(widen(_mm256_maskz_loadu_epi16(lanes, result.narrow + at)), sum);
  }
  const __m256bh rounded = _mm512_cvtneps_pbh(sum);
  __m256i bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  _mm256_mask_storeu_epi16(result.narrow + at, lanes, bits);
}

template <int rows, int vectors>
struct Sums {
  __m512 of[rows][vectors];
};

// Fast paths: whole vectors, and at most a bias or the old value is added.
template <int rows, int vectors>
TRIREME_BF16_INLINE void finish_wide(const Sums<rows, vectors>& sums, const TileResult& result,
                                     std::int64_t row, std::int64_t column) {
  for (int r = 0; r < rows; ++r) {
    float* to = result.wide + (row + r) * result.stride + column;
    for (int v = 0; v < vectors; ++v) {
      const __m512 sum = sums.of[r][v];
      _mm512_storeu_ps(to + 16 * v,
                       result.accumulate ? _mm512_add_ps(_mm512_loadu_ps(to + 16 * v), sum) : sum);
    }
  }
}
template <int rows, int vectors>
TRIREME_BF16_INLINE void finish_narrow(const Sums<rows, vectors>& sums, const TileResult& result,
                                       std::int64_t row, std::int64_t column) {
  for (int v = 0; v < vectors; v += 2) {
    const std::int64_t first = column + 16 * v;
    const bool biased = result.bias != nullptr;
    __m512 low = _mm512_setzero_ps(), high = low;
    if (biased) {
      low = widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(result.bias + first)));
      high = widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(result.bias + first + 16)));
    }
    for (int r = 0; r < rows; ++r) {
      const __m512 left = sums.of[r][v], right = sums.of[r][v + 1];
      const __m512bh rounded = _mm512_cvtne2ps_pbh(biased ? _mm512_add_ps(right, high) : right,
                                                   biased ? _mm512_add_ps(left, low) : left);
      std::memcpy(result.narrow + (row + r) * result.stride + first, &rounded, sizeof rounded);
    }
  }
}

/// Transposes sixteen rows of sixteen words.
TRIREME_BF16_INLINE void transpose_block(__m512i (&x)[16]) {
  __m512i y[16];
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
  }
}

TRIREME_BF16_INLINE __mmask32 first_halves(std::int64_t count) {
  return count >= 32 ? ~__mmask32(0) : (__mmask32(1) << count) - 1;
}

}  // namespace trireme::ops

#endif
