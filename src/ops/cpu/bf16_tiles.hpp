// Products of bf16 with fp32 sums, on one thread. The right factor is packed into panels of 64
// columns, in which elements of two neighboring rows form one 32-bit word, as AVX512_BF16 and AMX
// read them. The left factor is read in place, or from such panels if it is transposed. The order
// of an element's sum depends on the inner extent alone: not on other extents, and not on threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "prefetch.hpp"
#include "storage.hpp"

namespace trireme::ops {

/// Columns of a panel; rows of a vector tile; most rows of a packed left factor.
inline constexpr std::int64_t panel_columns = 64;
inline constexpr std::int64_t tile_rows = 6;
inline constexpr std::int64_t packed_depth = 1024;

constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
/// Parts of at most `each` into which `all` is divided.
constexpr std::int64_t parts(std::int64_t all, std::int64_t each) {
  return (all + each - 1) / each;
}

/// Words of a packed factor of k rows and n columns.
inline std::int64_t panel_words(std::int64_t k) { return (k + 1) / 2 * panel_columns; }
inline std::int64_t packed_words(std::int64_t k, std::int64_t n) {
  return parts(n, panel_columns) * panel_words(k);
}

/// Where a product is stored, and how.
struct TileResult {
  float* wide = nullptr;  // one of the two, row-major
  Bf16* narrow = nullptr;
  std::int64_t stride = 0;
  bool accumulate = false;     // add to the old value, in fp32
  const Bf16* bias = nullptr;  // [n]; absent: none
  float factor = 1;            // of the product, before anything is added
  /// fp32 sums over earlier parts of the inner dimension, added first; null: none.
  const float* before = nullptr;
  std::int64_t before_stride = 0;
};

/// The product kernels of one instruction set. All read the same panels.
struct Bf16Tiles {
  std::int64_t rows;  // of the left factor per tile
  /// words ← op(b) [k, n], of leading dimension `stride`, padded with zeros.
  void (*pack)(std::int64_t k, std::int64_t n, bool transpose, const Bf16* b, std::int64_t stride,
               std::uint32_t* words);
  /// The same from fp32, rounded to nearest. AVX512_BF16 flushes subnormal elements to zero, even
  /// those that would round up to 2⁻¹²⁶.
  void (*pack_wide)(std::int64_t k, std::int64_t n, bool transpose, const float* b,
                    std::int64_t stride, std::uint32_t* words);
  /// result [m, n] = a [m, k] · packed words.
  void (*multiply)(std::int64_t m, std::int64_t n, std::int64_t k, const Bf16* a,
                   std::int64_t stride, const std::uint32_t* words, const TileResult& result);
  /// result [m, n] = leftᵀ · right, both packed, of k rows; `ahead` (or null) is prefetched.
  void (*multiply_packed)(std::int64_t m, std::int64_t n, std::int64_t k, const std::uint32_t* left,
                          const std::uint32_t* right, const TileResult& result,
                          PrefetchQueue* ahead);
  /// Called by each thread round its products, between which it does not use AMX otherwise.
  void (*enter)();
  void (*leave)();
};

/// AMX or else AVX512_BF16 if the processor has them and ONEDNN_MAX_CPU_ISA allows them, else fp32
/// arithmetic on widened elements, about as fast as fp32 products.
const Bf16Tiles& bf16_tiles();
const Bf16Tiles& portable_bf16_tiles();
/// AVX512_BF16 and AMX; null if the processor, the system or the compiler lacks the instructions.
const Bf16Tiles* native_bf16_tiles();
const Bf16Tiles* amx_bf16_tiles();

/// Encloses a thread's products.
class TileScope {
 public:
  explicit TileScope(const Bf16Tiles& tiles) : tiles_(tiles) { tiles_.enter(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  ~TileScope() { tiles_.leave(); }

 private:
  const Bf16Tiles& tiles_;
};

}  // namespace trireme::ops
