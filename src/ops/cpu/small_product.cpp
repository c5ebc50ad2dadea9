#include "small_product.hpp"

#include <algorithm>

#include "targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/small_product.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

// A tile of c stays in registers with one row of b and one element of a: six rows of four vectors
// with 32 registers, of two with 16.
constexpr int tile_rows = 6;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE2
constexpr int tile_vectors = 2;
#else
constexpr int tile_vectors = 4;
#endif

/// Operands of a tile of c, from its first element.
struct Tile {
  std::int64_t k;
  const float* a;
  std::int64_t a_row, a_column;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  float scale;
  bool accumulate;
  PrefetchLines ahead;  // one per step of k; with step 0 any valid address
};

/// `rows` rows of `vectors` vectors, the last of which `last` loads and stores.
template <int rows, int vectors, class Last>
HWY_INLINE void tile_product(const Tile& t, const Last& last) {
  const FloatTag d;
  constexpr int full = vectors - 1;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Floats sum[rows][vectors];
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < vectors; ++j) sum[i][j] = hn::Zero(d);
  }
  const float* a = t.a;
  const float* b = t.b;
  const char* ahead = t.ahead.first;
  for (std::int64_t p = 0; p < t.k; ++p) {
    __builtin_prefetch(ahead, 0, 2);
    Floats row[vectors];
    for (int j = 0; j < full; ++j) row[j] = hn::LoadU(d, b + j * lanes);
    row[full] = last.load(d, b + full * lanes);
    for (int i = 0; i < rows; ++i) {
      const Floats factor = hn::Set(d, a[i * t.a_row]);
      for (int j = 0; j < vectors; ++j) sum[i][j] = hn::MulAdd(factor, row[j], sum[i][j]);
    }
    a += t.a_column;
    b += t.b_row;
    ahead += t.ahead.step;
  }
  const Floats scale = hn::Set(d, t.scale);
  for (int i = 0; i < rows; ++i) {
    float* c = t.c + i * t.c_row;
    for (int j = 0; j < full; ++j) {
      const Floats before = t.accumulate ? hn::LoadU(d, c + j * lanes) : hn::Zero(d);
      hn::StoreU(hn::MulAdd(sum[i][j], scale, before), d, c + j * lanes);
    }
    const Floats before = t.accumulate ? last.load(d, c + full * lanes) : hn::Zero(d);
    last.store(hn::MulAdd(sum[i][full], scale, before), d, c + full * lanes);
  }
}

template <int vectors, class Last>
HWY_INLINE void tile_of_rows(int rows, const Tile& t, const Last& last) {
  switch (rows) {
    case 1:
      return tile_product<1, vectors>(t, last);
    case 2:
      return tile_product<2, vectors>(t, last);
    case 3:
      return tile_product<3, vectors>(t, last);
    case 4:
      return tile_product<4, vectors>(t, last);
    case 5:
      return tile_product<5, vectors>(t, last);
    default:
      return tile_product<tile_rows, vectors>(t, last);
  }
}

/// A tile of `columns` columns, at most tile_vectors vectors.
HWY_NOINLINE void tile_of_columns(int rows, std::int64_t columns, const Tile& t) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(FloatTag()));
  const auto rest = static_cast<std::size_t>(columns % lanes);
  const auto product = [&](std::int64_t vectors, const auto& last) HWY_ATTR {
    switch (vectors) {
      case 1:
        return tile_of_rows<1>(rows, t, last);
      case 2:
        return tile_of_rows<2>(rows, t, last);
      case 3:
        return tile_of_rows < tile_vectors == 2 ? 2 : 3 > (rows, t, last);
      default:
        return tile_of_rows<tile_vectors>(rows, t, last);
    }
  };
  rest == 0 ? product(columns / lanes, Whole{}) : product(columns / lanes + 1, Part{rest});
}

/// Rows [begin, end) of columns [column, column + columns) with rows [first, first + depth) of b.
HWY_INLINE void tile(const SmallProduct& x, std::int64_t begin, std::int64_t end,
                     std::int64_t column, std::int64_t columns, std::int64_t first,
                     std::int64_t depth) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(FloatTag()));
  const auto rows = static_cast<int>(end - begin);
  const std::int64_t most = x.reach + end - 1;  // columns of the longest row of the triangle
  if (x.triangle == Triangle::result) {
    const std::int64_t wanted = (std::max<std::int64_t>(0, most - column) + lanes - 1) / lanes;
    const std::int64_t kept = std::min(columns, wanted * lanes);
    if (first == 0) {
      for (std::int64_t i = begin; i < end; ++i) {
        std::fill_n(x.c + i * x.c_row + column + kept, columns - kept, 0.0F);
      }
    }
    columns = kept;
    if (columns == 0) return;
  }
  if (x.triangle == Triangle::factor) {
    depth = std::clamp<std::int64_t>(most - first, 0, depth);
  }
  if (x.triangle == Triangle::transposed) {
    const std::int64_t skipped = std::clamp<std::int64_t>(begin - x.reach + 1 - first, 0, depth);
    first += skipped;
    depth -= skipped;
    if (depth == 0 && x.accumulate) return;
  }
  PrefetchLines ahead;
  if (x.ahead != nullptr && columns == tile_vectors * lanes) ahead = x.ahead->take(depth);
  if (ahead.step == 0) ahead.first = reinterpret_cast<const char*>(x.a);
  tile_of_columns(rows, columns,
                  {depth, x.a + begin * x.a_row + first * x.a_column, x.a_row, x.a_column,
                   x.b + first * x.b_row + column, x.b_row, x.c + begin * x.c_row + column, x.c_row,
                   x.scale, x.accumulate, ahead});
}

void product(const SmallProduct& x) {
  const std::int64_t width = tile_vectors * static_cast<std::int64_t>(hn::Lanes(FloatTag()));
  const std::int64_t tiles = (x.m + tile_rows - 1) / tile_rows;  // of near-equal heights
  SmallProduct part = x;
  for (std::int64_t first = 0; first < x.k; first += product_depth) {
    const std::int64_t depth = std::min(product_depth, x.k - first);
    part.accumulate = x.accumulate || first > 0;
    for (std::int64_t column = 0; column < x.n; column += width) {
      const std::int64_t columns = std::min(width, x.n - column);
      for (std::int64_t i = 0; i < tiles; ++i) {
        tile(part, x.m * i / tiles, x.m * (i + 1) / tiles, column, columns, first, depth);
      }
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
/// Four adjacent elements of each of the rows r, r + 4, … of x.
template <class D>
HWY_INLINE hn::Vec<D> blocks_of_rows(D d, const float* x, std::int64_t x_row) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, x);
  } else {
    const hn::Half<D> half;
    const auto rows = static_cast<std::int64_t>(hn::Lanes(half));
    return hn::Combine(d, blocks_of_rows(half, x + rows * x_row, x_row),
                       blocks_of_rows(half, x, x_row));
  }
}

/// Transposes a vector of rows by four columns: four by four within 16 bytes.
template <class D>
HWY_INLINE void transpose_four_columns(D d, float* out, std::int64_t out_row, const float* x,
                                       std::int64_t x_row) {
  const hn::Repartition<double, D> pairs;
  const auto row0 = blocks_of_rows(d, x, x_row), row1 = blocks_of_rows(d, x + x_row, x_row);
  const auto row2 = blocks_of_rows(d, x + 2 * x_row, x_row);
  const auto row3 = blocks_of_rows(d, x + 3 * x_row, x_row);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, row0, row1));   // 00 10 01 11
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, row0, row1));  // 02 12 03 13
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, row2, row3));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, row2, row3));
  const auto store = [&](auto column, int c)
                         HWY_ATTR { hn::StoreU(hn::BitCast(d, column), d, out + c * out_row); };
  store(hn::InterleaveLower(pairs, low01, low23), 0);
  store(hn::InterleaveUpper(pairs, low01, low23), 1);
  store(hn::InterleaveLower(pairs, high01, high23), 2);
  store(hn::InterleaveUpper(pairs, high01, high23), 3);
}

/// Transposes whole vectors of rows from `first`; returns the first row left over.
template <class D>
HWY_INLINE std::int64_t transpose_rows(D d, float* out, std::int64_t out_row, const float* x,
                                       std::int64_t x_row, std::int64_t first, std::int64_t rows,
                                       std::int64_t columns) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (; first + lanes <= rows; first += lanes) {
    std::int64_t c = 0;
    for (; c + 4 <= columns; c += 4) {
      transpose_four_columns(d, out + c * out_row + first, out_row, x + first * x_row + c, x_row);
    }
    for (; c < columns; ++c) {
      for (std::int64_t r = first; r < first + lanes; ++r) out[c * out_row + r] = x[r * x_row + c];
    }
  }
  return first;
}
#endif

void transposed(float* out, std::int64_t out_row, const float* x, std::int64_t x_row,
                std::int64_t rows, std::int64_t columns) {
  std::int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  r = transpose_rows(FloatTag(), out, out_row, x, x_row, r, rows, columns);
  r = transpose_rows(hn::FixedTag<float, 4>(), out, out_row, x, x_row, r, rows, columns);
#endif
  for (; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) out[c * out_row + r] = x[r * x_row + c];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

HWY_EXPORT(product);
HWY_EXPORT(transposed);

void small_product(const SmallProduct& x) {
  if (x.m == 0 || x.n == 0) return;
  if (x.k == 0) {
    if (x.accumulate) return;
    for (std::int64_t r = 0; r < x.m; ++r) std::fill_n(x.c + r * x.c_row, x.n, 0.0F);
    return;
  }
  HWY_DYNAMIC_DISPATCH(product)(x);
}

void transpose(float* out, std::int64_t out_row, const float* x, std::int64_t x_row,
               std::int64_t rows, std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(transposed)(out, out_row, x, x_row, rows, columns);
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
