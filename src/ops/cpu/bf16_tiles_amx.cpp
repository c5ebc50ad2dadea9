// Kernels of bf16 products for AMX: 32 × 32 sums in four tile registers, from two tiles of rows of
// the left factor, read in place, and two tiles of columns of the right one, read from its panels.
// Pairs of the inner dimension are added sixteen at a time.
#include "bf16_avx512.hpp"

#if defined(__x86_64__) && defined(__linux__) && \
    (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 11))

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRIREME_AMX_TARGET \
  __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))
#define TRIREME_AMX_INLINE TRIREME_AMX_TARGET inline __attribute__((always_inline))

namespace trireme::ops {
namespace {

constexpr std::int64_t tile_side = 16;         // rows of a tile register, and words of its rows
constexpr std::int64_t block = 2 * tile_side;  // rows and columns of the sums
constexpr std::int64_t depth = 2 * tile_side;  // of the inner dimension that one instruction adds
constexpr std::int64_t row_bytes = 64;         // of a tile register's
constexpr std::int64_t panel_bytes = panel_columns * 4;

/// Compiler barrier: GCC does not know that its AMX intrinsics read memory.
inline __attribute__((always_inline)) void compiler_barrier() { __asm__ volatile("" ::: "memory"); }

/// Operand of LDTILECFG. Registers 0–3 hold sums, 4–5 rows on the left, 6–7 columns on the right.
struct alignas(64) Shapes {
  std::uint8_t palette = 1, start = 0, zeros[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};

  explicit Shapes(std::int64_t left_rows) {
    const std::int64_t upper = least(left_rows, tile_side), lower = left_rows - upper;
    const std::int64_t all[] = {upper, upper, lower, lower, upper, lower, tile_side, tile_side};
    for (int i = 0; i < 8; ++i) {
      rows[i] = static_cast<std::uint8_t>(all[i]);
      bytes[i] = all[i] == 0 ? 0 : row_bytes;
    }
  }
};

TRIREME_AMX_TARGET void shape_tiles(std::int64_t left_rows) {
  const Shapes shapes(left_rows);
  compiler_barrier();
  _tile_loadconfig(&shapes);
}

/// Rows of the left factor as tiles; the next `depth` of the inner extent is `advance` bytes on.
struct LeftRows {
  const char* first;
  std::int64_t stride, advance;  // in bytes
};

/// Series of lines to prefetch, one line of each while `depth` is added.
struct Series {
  PrefetchLines lines[4] = {};
  int count = 0;
};

/// The last, incomplete `depth` of both factors, padded with zeros.
struct Tail {
  alignas(64) Bf16 left[block * depth];
  alignas(64) std::uint32_t right[tile_side * block];
};

template <bool lower, bool second>
TRIREME_AMX_INLINE void add_depth(const char* left, std::int64_t stride, const std::uint32_t* right,
                                  std::int64_t right_bytes) {
  _tile_loadd(6, right, right_bytes);
  _tile_loadd(4, left, stride);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (second) {
    _tile_loadd(7, right + tile_side, right_bytes);
    _tile_dpbf16ps(1, 4, 7);
  }
  if constexpr (lower) {
    _tile_loadd(5, left + tile_side * stride, stride);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (second) _tile_dpbf16ps(3, 5, 7);
  }
}

/// Registers 0 to 3 ← sums over k of up to 32 rows and columns. `tail` is null if depth divides k.
template <bool lower, bool second>
TRIREME_AMX_INLINE void sum_block(std::int64_t k, const LeftRows& left, const std::uint32_t* words,
                                  Tail* tail, const Series& series) {
  _tile_zero(0);
  if constexpr (second) _tile_zero(1);
  if constexpr (lower) _tile_zero(2);
  if constexpr (lower && second) _tile_zero(3);
  const char* rows = left.first;
  PrefetchLines ahead[4] = {series.lines[0], series.lines[1], series.lines[2], series.lines[3]};
  for (std::int64_t i = 0; i + depth <= k; i += depth) {
    add_depth<lower, second>(rows, left.stride, words, panel_bytes);
    for (int s = 0; s < series.count; ++s) {
      _mm_prefetch(ahead[s].first, _MM_HINT_T1);
      ahead[s].first += ahead[s].step;
    }
    rows += left.advance;
    words += tile_side * panel_columns;
  }
  if (tail == nullptr) return;
  const std::int64_t pairs = (k % depth + 1) / 2;
  for (std::int64_t pair = 0; pair < pairs; ++pair, words += panel_columns) {
    std::memcpy(tail->right + pair * block, words, (second ? 2 : 1) * row_bytes);
  }
  compiler_barrier();
  add_depth<lower, second>(reinterpret_cast<const char*>(tail->left), row_bytes, tail->right,
                           2 * row_bytes);
}

template <bool lower, bool second>
TRIREME_AMX_INLINE void store_block(float* to, std::int64_t stride) {
  _tile_stored(0, to, stride * 4);
  if constexpr (second) _tile_stored(1, to + tile_side, stride * 4);
  if constexpr (lower) _tile_stored(2, to + tile_side * stride, stride * 4);
  if constexpr (lower && second) _tile_stored(3, to + tile_side * stride + tile_side, stride * 4);
}

/// Stores sums [rows, 32], of which `columns` columns exist.
TRIREME_AMX_TARGET void finish_block(const float* sums, std::int64_t rows, std::int64_t columns,
                                     const TileResult& result, std::int64_t row,
                                     std::int64_t column) {
  const bool plain = columns == block && result.factor == 1 && result.before == nullptr;
  const bool wide = plain && result.wide != nullptr && result.bias == nullptr;
  const bool narrow = plain && result.narrow != nullptr && !result.accumulate;
  for (std::int64_t r = 0; r < rows; ++r, sums += block) {
    const Sums<1, 2> of_row{{{_mm512_load_ps(sums), _mm512_load_ps(sums + 16)}}};
    if (wide) {
      finish_wide(of_row, result, row + r, column);
    } else if (narrow) {
      finish_narrow(of_row, result, row + r, column);
    } else {
      finish(of_row.of[0][0], result, row + r, column, first_lanes(columns));
      if (columns > 16) {
        finish(of_row.of[0][1], result, row + r, column + 16, first_lanes(columns - 16));
      }
    }
  }
}

/// The product of up to 32 rows and `columns` columns, which begin at a tile boundary of a panel.
template <bool lower, bool second>
TRIREME_AMX_TARGET void multiply_block(std::int64_t rows, std::int64_t columns, std::int64_t k,
                                       const LeftRows& left, const std::uint32_t* words, Tail* tail,
                                       const TileResult& result, std::int64_t row,
                                       std::int64_t column, const Series& series) {
  const bool straight = result.wide != nullptr && !result.accumulate && result.factor == 1 &&
                        result.before == nullptr && result.bias == nullptr &&
                        columns == (second ? block : tile_side);
  // Prefetch the result's lines.
  if (result.wide != nullptr) {
    const float* to = result.wide + row * result.stride + column;
    for (std::int64_t r = 0; r < rows; ++r) {
      __builtin_prefetch(to + r * result.stride, 1, 3);
      if (second) __builtin_prefetch(to + r * result.stride + columns - 1, 1, 3);
    }
  } else {
    const Bf16* to = result.narrow + row * result.stride + column;
    for (std::int64_t r = 0; r < rows; ++r) __builtin_prefetch(to + r * result.stride, 1, 3);
  }
  sum_block<lower, second>(k, left, words, tail, series);
  if (straight) {
    return store_block<lower, second>(result.wide + row * result.stride + column, result.stride);
  }
  alignas(64) float sums[block * block];
  store_block<lower, second>(sums, block);
  finish_block(sums, rows, columns, result, row, column);
}

/// The product of up to 32 rows, for which the tiles are configured, with all panels. series(pass):
/// what to prefetch during each 32 columns.
template <class MakeSeries>
TRIREME_AMX_TARGET void multiply_rows(std::int64_t rows, std::int64_t n, std::int64_t k,
                                      const LeftRows& left, const std::uint32_t* words, Tail* tail,
                                      const TileResult& result, std::int64_t row,
                                      const MakeSeries& series) {
  constexpr decltype(&multiply_block<true, true>) blocks[2][2] = {
      {multiply_block<false, false>, multiply_block<false, true>},
      {multiply_block<true, false>, multiply_block<true, true>}};
  for (std::int64_t column = 0; column < n; column += block) {
    const std::int64_t columns = least(n - column, block);
    blocks[rows > tile_side][columns > tile_side](
        rows, columns, k, left,
        words + column / panel_columns * panel_words(k) + column % panel_columns, tail, result, row,
        column, series(column / block));
  }
}

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Bf16* a, std::int64_t stride,
              const std::uint32_t* words, const TileResult& result) {
  const std::int64_t passes = parts(n, block), rest = k % depth;
  Tail tail;
  if (rest > 0) std::memset(&tail, 0, sizeof tail);
  for (std::int64_t row = 0; row < m; row += block) {
    const std::int64_t rows = least(m - row, block);
    const Bf16* here = a + row * stride;
    if (rows < block) shape_tiles(rows);
    for (std::int64_t r = 0; rest > 0 && r < rows; ++r) {
      std::memcpy(tail.left + r * depth, here + r * stride + k - rest,
                  static_cast<std::size_t>(rest) * sizeof(Bf16));
    }
    // Prefetch the next rows, some in each pass.
    const std::int64_t following = least(m - row - rows, block);
    const std::int64_t each = least(parts(following, passes), 4);
    multiply_rows(
        rows, n, k,
        {reinterpret_cast<const char*>(here), stride * std::int64_t{sizeof(Bf16)}, row_bytes},
        words, rest > 0 ? &tail : nullptr, result, row, [&](std::int64_t pass) {
          Series series;
          for (std::int64_t r = pass * each; r < least(following, (pass + 1) * each); ++r) {
            series.lines[series.count++] = {
                reinterpret_cast<const char*>(here + (rows + r) * stride), row_bytes};
          }
          return series;
        });
    if (rows < block) shape_tiles(block);
  }
}

/// tiles ← columns [0, rows) of a panel as rows: 32 rows of `depth` elements of the inner
/// dimension, then those of the next `depth`, padded with zeros.
TRIREME_AMX_TARGET void transpose_rows(std::int64_t rows, std::int64_t k,
                                       const std::uint32_t* words, Bf16* tiles) {
  const std::int64_t pairs = (k + 1) / 2;
  for (std::int64_t pair = 0; pair < pairs; pair += tile_side, tiles += block * depth) {
    for (std::int64_t first = 0; first < rows; first += tile_side) {
      const __mmask16 lanes = first_lanes(rows - first);
      __m512i x[16];
      for (int i = 0; i < 16; ++i) {
        x[i] = pair + i < pairs
                   ? _mm512_maskz_loadu_epi32(lanes, words + (pair + i) * panel_columns + first)
                   : _mm512_setzero_si512();
      }
      transpose_block(x);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(tiles + (first + i) * depth, x[i]);
    }
  }
}

void multiply_packed(std::int64_t m, std::int64_t n, std::int64_t k, const std::uint32_t* left,
                     const std::uint32_t* right, const TileResult& result, PrefetchQueue* ahead) {
  const std::int64_t lines = k / depth, rest = k % depth;
  const std::int64_t each = least(parts(block * depth, n < 1 ? 1 : n), 4);
  alignas(64) Bf16 tiles[block * packed_depth];
  TRIREME_ASSERT(k <= packed_depth, "{} rows of a packed left factor", k);
  Tail tail;
  if (rest > 0) std::memset(&tail, 0, sizeof tail);
  for (std::int64_t row = 0; row < m;) {
    const std::int64_t inside = row % panel_columns;
    const std::int64_t rows = least(least(m - row, block), panel_columns - inside);
    transpose_rows(rows, k, left + row / panel_columns * panel_words(k) + inside, tiles);
    if (rest > 0) std::memcpy(tail.left, tiles + lines * block * depth, sizeof tail.left);
    compiler_barrier();
    if (rows < block) shape_tiles(rows);
    multiply_rows(rows, n, k, {reinterpret_cast<const char*>(tiles), row_bytes, block * row_bytes},
                  right, rest > 0 ? &tail : nullptr, result, row, [&](std::int64_t) {
                    Series series;
                    for (std::int64_t i = 0; ahead != nullptr && lines > 0 && i < each; ++i) {
                      series.lines[series.count] = ahead->take(lines);
                      if (series.lines[series.count].step == 0) break;
                      ++series.count;
                    }
                    return series;
                  });
    if (rows < block) shape_tiles(block);
    row += rows;
  }
}

TRIREME_AMX_TARGET void enter() { shape_tiles(block); }
TRIREME_AMX_TARGET void leave() { _tile_release(); }

/// Whether the processor has AMX for bf16 with large enough tiles and Linux grants it to this
/// process, which must ask once for all its threads (Documentation/arch/x86/xstate.rst). Some
/// hypervisors hide the leaf that describes palette 1, the only one so far: it is then assumed.
bool allowed() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned amx_bf16 = 1U << 22, amx_tile = 1U << 24, tile_leaf = 0x1d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & amx_bf16) == 0 || (d & amx_tile) == 0) return false;
  if (__get_cpuid_count(tile_leaf, 1, &a, &b, &c, &d) != 0) {
    const unsigned bytes = b & 0xffff, names = b >> 16, rows = c & 0xffff;
    if (bytes < row_bytes || names < 8 || rows < tile_side) return false;
  }
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

const Bf16Tiles* amx_bf16_tiles() {
  static const bool here = native_bf16_tiles() != nullptr && allowed();
  if (!here) return nullptr;
  static const Bf16Tiles functions{
      block,    native_bf16_tiles()->pack, native_bf16_tiles()->pack_wide,
      multiply, multiply_packed,           enter,
      leave};
  return &functions;
}

}  // namespace trireme::ops

#else

namespace trireme::ops {

const Bf16Tiles* amx_bf16_tiles() { return nullptr; }

}  // namespace trireme::ops

#endif
