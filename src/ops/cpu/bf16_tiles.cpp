#include "bf16_tiles.hpp"

#include <algorithm>
#include <cstring>

#include <dnnl.h>

#include "trireme/ops/ops.hpp"

#include "targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/bf16_tiles.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

/// sums [rows, 2 vectors] of `rows` ≤ tile_rows rows of a by two vectors of a panel. Pairs of a
/// row's elements are `pair_stride` apart.
template <int rows>
HWY_ATTR void widened_sums(std::int64_t k, const Bf16* a, std::int64_t stride,
                           std::int64_t pair_stride, const std::uint32_t* words, float* sums) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> dw;
  const std::size_t lanes = hn::Lanes(d);
  const auto high = hn::Set(dw, 0xffff0000U);
  Floats sum0[rows], sum1[rows];
  for (int r = 0; r < rows; ++r) sum0[r] = sum1[r] = hn::Zero(d);
  for (std::int64_t i = 0; i < k; i += 2, words += panel_columns) {
    const auto word0 = hn::LoadU(dw, words), word1 = hn::LoadU(dw, words + lanes);
    const Floats even0 = hn::BitCast(d, hn::ShiftLeft<16>(word0));
    const Floats even1 = hn::BitCast(d, hn::ShiftLeft<16>(word1));
    const Floats odd0 = hn::BitCast(d, hn::And(word0, high));
    const Floats odd1 = hn::BitCast(d, hn::And(word1, high));
    for (int r = 0; r < rows; ++r) {
      const Bf16* p = a + r * stride + i / 2 * pair_stride;
      const Floats even = hn::Set(d, bf16_to_float(p[0].bits));
      sum0[r] = hn::MulAdd(even, even0, sum0[r]);
      sum1[r] = hn::MulAdd(even, even1, sum1[r]);
      if (i + 1 == k) continue;
      const Floats odd = hn::Set(d, bf16_to_float(p[1].bits));
      sum0[r] = hn::MulAdd(odd, odd0, sum0[r]);
      sum1[r] = hn::MulAdd(odd, odd1, sum1[r]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    hn::StoreU(sum0[r], d, sums + r * panel_columns);
    hn::StoreU(sum1[r], d, sums + r * panel_columns + static_cast<std::int64_t>(lanes));
  }
}

/// sums [rows, panel_columns] over k.
void widened_tile(std::int64_t rows, std::int64_t k, const Bf16* a, std::int64_t stride,
                  std::int64_t pair_stride, const std::uint32_t* words, float* sums) {
  constexpr decltype(&widened_sums<1>) of_rows[tile_rows] = {widened_sums<1>, widened_sums<2>,
                                                             widened_sums<3>, widened_sums<4>,
                                                             widened_sums<5>, widened_sums<6>};
  const auto step = static_cast<std::int64_t>(2 * hn::Lanes(FloatTag()));
  for (std::int64_t column = 0; column < panel_columns; column += step) {
    of_rows[rows - 1](k, a, stride, pair_stride, words + column, sums + column);
  }
}

/// None if Highway is restricted to a lower instruction set.
const Bf16Tiles* tiles_of_target() {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3  // later sets of Highway's contain it
  return native_bf16_tiles();
#else
  return nullptr;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

HWY_EXPORT(widened_tile);
HWY_EXPORT(tiles_of_target);

namespace {

template <class T>
void pack(std::int64_t k, std::int64_t n, bool transpose, const T* b, std::int64_t stride,
          std::uint32_t* words) {
  const auto at = [&](std::int64_t row, std::int64_t column) -> std::uint32_t {
    if (row >= k || column >= n) return 0;
    return rounded(b[transpose ? column * stride + row : row * stride + column]).bits;
  };
  for (std::int64_t first = 0; first < n; first += panel_columns) {
    for (std::int64_t row = 0; row < k; row += 2) {
      for (std::int64_t column = first; column < first + panel_columns; ++column) {
        const std::uint32_t pair[] = {at(row, column), at(row + 1, column)};
        *words++ = pair[0] | pair[1] << 16;
      }
    }
  }
}

/// Stores one row's sums of one panel.
void finish(const float* sums, const TileResult& result, std::int64_t row, std::int64_t first,
            std::int64_t columns) {
  for (std::int64_t i = 0; i < columns; ++i) {
    const std::int64_t column = first + i, at = row * result.stride + column;
    float sum = sums[i] * result.factor;
    if (result.before != nullptr) sum += result.before[row * result.before_stride + column];
    if (result.bias != nullptr) sum += widened(result.bias[column]);
    if (result.wide != nullptr) {
      result.wide[at] = result.accumulate ? result.wide[at] + sum : sum;
    } else {
      narrow(result.accumulate ? widened(result.narrow[at]) + sum : sum, result.narrow[at]);
    }
  }
}

/// Rows [row, row + rows) of one panel of the result.
void multiply_tile(std::int64_t rows, std::int64_t n, std::int64_t k, const Bf16* a,
                   std::int64_t stride, std::int64_t pair_stride, const std::uint32_t* words,
                   const TileResult& result, std::int64_t row, std::int64_t column) {
  alignas(64) float sums[tile_rows * panel_columns];
  HWY_DYNAMIC_DISPATCH(widened_tile)(rows, k, a, stride, pair_stride, words, sums);
  for (std::int64_t r = 0; r < rows; ++r) {
    finish(sums + r * panel_columns, result, row + r, column, std::min(panel_columns, n - column));
  }
}

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Bf16* a, std::int64_t stride,
              const std::uint32_t* words, const TileResult& result) {
  for (std::int64_t column = 0; column < n; column += panel_columns, words += panel_words(k)) {
    for (std::int64_t row = 0; row < m; row += tile_rows) {
      multiply_tile(std::min(tile_rows, m - row), n, k, a + row * stride, stride, 2, words, result,
                    row, column);
    }
  }
}

void multiply_packed(std::int64_t m, std::int64_t n, std::int64_t k, const std::uint32_t* left,
                     const std::uint32_t* right, const TileResult& result, PrefetchQueue*) {
  for (std::int64_t column = 0; column < n; column += panel_columns, right += panel_words(k)) {
    std::int64_t rows = 0;
    for (std::int64_t row = 0; row < m; row += rows) {
      const std::int64_t inside = row % panel_columns;
      rows = std::min({tile_rows, m - row, panel_columns - inside});
      const std::uint32_t* a = left + row / panel_columns * panel_words(k) + inside;
      multiply_tile(rows, n, k, reinterpret_cast<const Bf16*>(a), 2, 2 * panel_columns, right,
                    result, row, column);
    }
  }
}

}  // namespace

const Bf16Tiles& portable_bf16_tiles() {
  static const Bf16Tiles functions{tile_rows,       pack<Bf16>, pack<float>, multiply,
                                   multiply_packed, [] {},      [] {}};
  return functions;
}

const Bf16Tiles& bf16_tiles() {
  const auto may_use = [](dnnl_cpu_isa_t isa) {
    const auto wanted = static_cast<unsigned>(isa);
    return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & wanted) == wanted;
  };
  static const bool vectors = may_use(dnnl_cpu_isa_avx512_core_bf16);
  static const bool amx = may_use(dnnl_cpu_isa_avx512_core_amx) && amx_bf16_tiles() != nullptr;
  const Bf16Tiles* native = HWY_DYNAMIC_DISPATCH(tiles_of_target)();
  if (!vectors || native == nullptr) return portable_bf16_tiles();
  return amx ? *amx_bf16_tiles() : *native;
}

bool cpu_multiplies_bf16() { return &bf16_tiles() != &portable_bf16_tiles(); }

std::string cpu_bf16_products() {
  if (!cpu_multiplies_bf16()) return "widened to fp32 (no AVX512_BF16)";
  return &bf16_tiles() == amx_bf16_tiles() ? "AMX" : "AVX512_BF16";
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
