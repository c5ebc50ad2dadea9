// Kernels of bf16 products for AVX512_BF16.
#include "bf16_avx512.hpp"

#if defined(__x86_64__) && (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 10))

namespace trireme::ops {
namespace {

/// Rows of a matrix, read in pairs of elements as one word.
struct InPlace {
  const Bf16* rows;
  std::int64_t stride;
  TRIREME_BF16_INLINE __m512i pair(int row, std::int64_t i) const {
    std::int32_t word = 0;
    std::memcpy(&word, rows + row * stride + i, sizeof word);
    return _mm512_set1_epi32(word);
  }
  /// The last element of an odd number.
  TRIREME_BF16_INLINE __m512i single(int row, std::int64_t i) const {
    return _mm512_set1_epi32(rows[row * stride + i].bits);
  }
};

/// Columns of a panel.
struct Packed {
  const std::uint32_t* words;
  TRIREME_BF16_INLINE __m512i pair(int row, std::int64_t i) const {
    return _mm512_set1_epi32(static_cast<int>(words[i / 2 * panel_columns + row]));
  }
  TRIREME_BF16_INLINE __m512i single(int row, std::int64_t i) const { return pair(row, i); }
};

/// One pair of the inner dimension.
template <int rows, int vectors>
TRIREME_BF16_INLINE void add_pair(Sums<rows, vectors>& sums, const __m512i* left,
                                  const std::uint32_t* words) {
  __m512i right[vectors];
  for (int v = 0; v < vectors; ++v) right[v] = _mm512_loadu_si512(words + 16 * v);
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      sums.of[r][v] = _mm512_dpbf16_ps(sums.of[r][v], reinterpret_cast<__m512bh>(left[r]),
                                       reinterpret_cast<__m512bh>(right[v]));
    }
  }
}

/// Two series of lines to prefetch: one line of each while sixteen pairs are added.
struct Next {
  PrefetchLines lines[2];
};
constexpr std::int64_t line_pairs = 16;

/// rows × 16·vectors sums over k, of which `columns` columns exist.
template <class Left, int rows, int vectors>
TRIREME_BF16_TARGET void tile(std::int64_t columns, std::int64_t k, Left left,
                              const std::uint32_t* words, const TileResult& result,
                              std::int64_t row, std::int64_t column, const Next& next) {
  Sums<rows, vectors> sums;
  for (auto& of_row : sums.of) {
    for (auto& sum : of_row) sum = _mm512_setzero_ps();
  }
  if (result.wide != nullptr && result.accumulate) {
    const float* to = result.wide + row * result.stride + column;
    for (int r = 0; r < rows; ++r) {
      for (int v = 0; v < vectors; ++v) {
        __builtin_prefetch(to + r * result.stride + 16 * v, 1, 3);
      }
    }
  }
  __m512i pairs[rows];
  const std::int64_t even = k - k % 2;
  std::int64_t i = 0;
  const auto add_to = [&](std::int64_t end) TRIREME_BF16_LAMBDA {
    for (; i < end; i += 2, words += panel_columns) {
      for (int r = 0; r < rows; ++r) pairs[r] = left.pair(r, i);
      add_pair(sums, pairs, words);
    }
  };
  PrefetchLines line0 = next.lines[0], line1 = next.lines[1];
  for (; i + 2 * line_pairs <= even; line0.first += line0.step, line1.first += line1.step) {
    _mm_prefetch(line0.first, _MM_HINT_T0);
    _mm_prefetch(line1.first, _MM_HINT_T0);
    add_to(i + 2 * line_pairs);
  }
  add_to(even);
  if (even < k) {
    for (int r = 0; r < rows; ++r) pairs[r] = left.single(r, even);
    add_pair(sums, pairs, words);
  }
  const bool plain = columns == 16 * vectors && result.factor == 1 && result.before == nullptr;
  if (plain && result.wide != nullptr && result.bias == nullptr) {
    return finish_wide(sums, result, row, column);
  }
  if constexpr (vectors % 2 == 0) {
    if (plain && result.narrow != nullptr && !result.accumulate) {
      return finish_narrow(sums, result, row, column);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      finish(sums.of[r][v], result, row + r, column + 16 * v, first_lanes(columns - 16 * v));
    }
  }
}

template <class Left>
using Tile = void (*)(std::int64_t, std::int64_t, Left, const std::uint32_t*, const TileResult&,
                      std::int64_t, std::int64_t, const Next&);
template <class Left, int rows>
constexpr Tile<Left> of_rows[4] = {tile<Left, rows, 1>, tile<Left, rows, 2>, tile<Left, rows, 3>,
                                   tile<Left, rows, 4>};
template <class Left>
constexpr const Tile<Left>* tiles[tile_rows] = {of_rows<Left, 1>, of_rows<Left, 2>,
                                                of_rows<Left, 3>, of_rows<Left, 4>,
                                                of_rows<Left, 5>, of_rows<Left, 6>};

// A few rows by all panels before the next rows: rows of the left factor stay in the first-level
// cache and the result is written in order. The panels come from the second level either way.
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Bf16* a, std::int64_t stride,
              const std::uint32_t* words, const TileResult& result) {
  const std::int64_t panels = parts(n, panel_columns);
  for (std::int64_t row = 0; row < m; row += tile_rows) {
    const std::int64_t rows = least(m - row, tile_rows);
    const Bf16* here = a + row * stride;
    const std::int64_t following = least(m - row - rows, tile_rows);
    for (std::int64_t p = 0; p < panels; ++p) {
      const std::int64_t column = p * panel_columns;
      const std::int64_t columns = least(n - column, panel_columns), vectors = (columns + 15) / 16;
      // Prefetches the next rows, one per panel.
      Next next{};
      for (int i = 0; i < 2; ++i) {
        const std::int64_t r = p + i * panels;
        next.lines[i] = {
            reinterpret_cast<const char*>(here + (r < following ? rows + r : 0) * stride), 64};
      }
      tiles<InPlace>[rows - 1][vectors - 1](columns, k, {here, stride}, words + p * panel_words(k),
                                            result, row, column, next);
    }
  }
}

void multiply_packed(std::int64_t m, std::int64_t n, std::int64_t k, const std::uint32_t* left,
                     const std::uint32_t* right, const TileResult& result, PrefetchQueue* ahead) {
  const std::int64_t lines = k / (2 * line_pairs);
  for (std::int64_t row = 0; row < m;) {
    const std::int64_t inside = row % panel_columns;
    const std::int64_t rows = least(least(m - row, tile_rows), panel_columns - inside);
    const Packed packed{left + row / panel_columns * panel_words(k) + inside};
    const std::uint32_t* panel = right;
    for (std::int64_t column = 0; column < n; column += panel_columns, panel += panel_words(k)) {
      const std::int64_t columns = least(n - column, panel_columns), vectors = (columns + 15) / 16;
      Next next{};
      for (PrefetchLines& series : next.lines) {
        if (ahead != nullptr && lines > 0) series = ahead->take(lines);
        if (series.step == 0) series.first = reinterpret_cast<const char*>(packed.words);
      }
      tiles<Packed>[rows - 1][vectors - 1](columns, k, packed, panel, result, row, column, next);
    }
    row += rows;
  }
}

/// 32 elements in bf16, 0 in masked lanes.
TRIREME_BF16_INLINE __m512i load_narrow(__mmask32 lanes, const Bf16* from) {
  return _mm512_maskz_loadu_epi16(lanes, from);
}
TRIREME_BF16_INLINE __m512i load_narrow(__mmask32 lanes, const float* from) {
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), from);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes >> 16), from + 16);
  const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
  __m512i bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return bits;
}

/// Prefetches 32 elements from `from` + `elements`, which need not exist.
template <class T>
TRIREME_BF16_INLINE void fetch_for_packing(const T* from, std::int64_t elements) {
  const auto first =
      reinterpret_cast<std::uintptr_t>(from) + static_cast<std::uintptr_t>(elements) * sizeof(T);
  // NOLINTBEGIN(performance-no-int-to-ptr)
  _mm_prefetch(reinterpret_cast<const char*>(first), _MM_HINT_T1);
  if constexpr (sizeof(T) > 2) {
    _mm_prefetch(reinterpret_cast<const char*>(first + 64), _MM_HINT_T1);
  }
  // NOLINTEND(performance-no-int-to-ptr)
}
/// Prefetch distance in pairs of rows.
constexpr std::int64_t pairs_ahead = 24;

/// From b [n, k]: pairs are adjacent in a row.
template <class T>
TRIREME_BF16_TARGET void pack_transposed(std::int64_t k, std::int64_t n, const T* b,
                                         std::int64_t stride, std::uint32_t* words) {
  for (std::int64_t column = 0; column < n; column += 16) {
    std::uint32_t* to = words + column / panel_columns * panel_words(k) + column % panel_columns;
    for (std::int64_t pair = 0; 2 * pair < k; pair += 16) {
      const __mmask32 lanes = first_halves(k - 2 * pair);
      __m512i x[16];
      for (int i = 0; i < 16; ++i) {
        fetch_for_packing(b, (column + 16 + i) * stride + 2 * pair);
        x[i] = column + i < n ? load_narrow(lanes, b + (column + i) * stride + 2 * pair)
                              : _mm512_setzero_si512();
      }
      transpose_block(x);
      for (int i = 0; i < 16 && 2 * (pair + i) < k; ++i) {
        _mm512_storeu_si512(to + (pair + i) * panel_columns, x[i]);
      }
    }
  }
}

/// The elements of two rows, alternating: columns 0 to 15 and 16 to 31.
struct Interleaved {
  __m512i low, high;
};
TRIREME_BF16_INLINE Interleaved interleave(__m512i even, __m512i odd) {
  alignas(64) static constexpr std::uint16_t first[32] = {
      0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(first);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  return {_mm512_permutex2var_epi16(even, low, odd), _mm512_permutex2var_epi16(even, high, odd)};
}

/// From b [k, n], two rows at a time.
template <class T>
TRIREME_BF16_TARGET void pack_straight(std::int64_t k, std::int64_t n, const T* b,
                                       std::int64_t stride, std::uint32_t* words) {
  for (std::int64_t row = 0; row < k; row += 2, b += 2 * stride, words += panel_columns) {
    for (std::int64_t column = 0; column < n; column += 32) {
      std::uint32_t* to = words + column / panel_columns * panel_words(k) + column % panel_columns;
      const __mmask32 lanes = first_halves(n - column);
      fetch_for_packing(b, 2 * pairs_ahead * stride + column);
      fetch_for_packing(b, (2 * pairs_ahead + 1) * stride + column);
      const __m512i even = load_narrow(lanes, b + column);
      const __m512i odd =
          row + 1 < k ? load_narrow(lanes, b + stride + column) : _mm512_setzero_si512();
      const Interleaved both = interleave(even, odd);
      _mm512_storeu_si512(to, both.low);
      _mm512_storeu_si512(to + 16, both.high);
    }
  }
}

template <class T>
void pack(std::int64_t k, std::int64_t n, bool transpose, const T* b, std::int64_t stride,
          std::uint32_t* words) {
  transpose ? pack_transposed(k, n, b, stride, words) : pack_straight(k, n, b, stride, words);
}

}  // namespace

const Bf16Tiles* native_bf16_tiles() {
  static const Bf16Tiles functions{tile_rows,       pack<Bf16>, pack<float>, multiply,
                                   multiply_packed, [] {},      [] {}};
  return __builtin_cpu_supports("avx512bf16") ? &functions : nullptr;
}

}  // namespace trireme::ops

#else

namespace trireme::ops {

const Bf16Tiles* native_bf16_tiles() { return nullptr; }

}  // namespace trireme::ops

#endif
