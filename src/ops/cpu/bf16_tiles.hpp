// Products of bf16 with fp32 sums, on one thread: the right factor is packed into panels of 64
// columns, in which the elements of two neighboring rows lie in one 32-bit word, as AVX512_BF16
// and AMX want them; the left one is read in place, or from such panels where it is transposed. An
// element's sum runs over the inner dimension in an order that follows from its extent alone,
// whatever lies beside it: its bits depend on neither the matrices' other extents nor on threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "prefetch.hpp"
#include "storage.hpp"

namespace trireme::ops {

/// Columns of a panel; rows of the left factor that tiles of vectors multiply with one at a time;
/// and rows of a packed left factor at most.
inline constexpr std::int64_t panel_columns = 64;
inline constexpr std::int64_t tile_rows = 6;
inline constexpr std::int64_t packed_depth = 1024;

/// Words of a packed factor of k rows and n columns.
inline std::int64_t panel_words(std::int64_t k) { return (k + 1) / 2 * panel_columns; }
inline std::int64_t packed_words(std::int64_t k, std::int64_t n) {
  return (n + panel_columns - 1) / panel_columns * panel_words(k);
}

/// Where a product goes, and what is done with it on its way.
struct TileResult {
  float* wide = nullptr;  // one of the two, row-major
  Bf16* narrow = nullptr;
  std::int64_t stride = 0;
  bool accumulate = false;     // add to what is there, in fp32
  const Bf16* bias = nullptr;  // [n]; absent: none
  float factor = 1;            // of the product, before anything is added
  /// fp32 sums over what of the inner dimension came before, added first; absent: none.
  const float* before = nullptr;
  std::int64_t before_stride = 0;
};

/// What these tiles are made of on this machine. All read the same panels.
struct Bf16Tiles {
  std::int64_t rows;  // of the left factor that are multiplied at a time
  /// words ← op(b) [k, n], of leading dimension `stride`, with zeros behind its end.
  void (*pack)(std::int64_t k, std::int64_t n, bool transpose, const Bf16* b, std::int64_t stride,
               std::uint32_t* words);
  /// The same of fp32 elements, rounded to nearest. With AVX512_BF16 subnormal ones are zeros, as
  /// its products take subnormal bf16; the greatest of them, which round up to 2⁻¹²⁶, too.
  void (*pack_wide)(std::int64_t k, std::int64_t n, bool transpose, const float* b,
                    std::int64_t stride, std::uint32_t* words);
  /// result [m, n] = a [m, k] · what was packed.
  void (*multiply)(std::int64_t m, std::int64_t n, std::int64_t k, const Bf16* a,
                   std::int64_t stride, const std::uint32_t* words, const TileResult& result);
  /// result [m, n] = leftᵀ · right, both packed, of k rows each. Meanwhile lines of `ahead` are
  /// fetched; null: of nothing.
  void (*multiply_packed)(std::int64_t m, std::int64_t n, std::int64_t k, const std::uint32_t* left,
                          const std::uint32_t* right, const TileResult& result,
                          PrefetchQueue* ahead);
  /// What a thread calls before its first product and after its last; nothing between them may
  /// use AMX otherwise.
  void (*enter)();
  void (*leave)();
};

/// Those of AMX or else AVX512_BF16 where the processor has them (and ONEDNN_MAX_CPU_ISA lets them
/// be used), else fp32 arithmetic on widened elements, at about the speed of fp32 products.
const Bf16Tiles& bf16_tiles();
const Bf16Tiles& portable_bf16_tiles();
/// Of AVX512_BF16, and of AMX; null where the processor, the system or the compiler lacks the
/// instructions.
const Bf16Tiles* native_bf16_tiles();
const Bf16Tiles* amx_bf16_tiles();

/// Around a thread's products.
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
