// Per-token operations: embedding look-up and its gradient, rotary positions, dropout.
#include <cstring>

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"
#include "threads.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/tokens.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "random-inl.hpp"
#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

/// y += x
template <class T>
void add_row(std::size_t n, T* y, const T* x) {
  map(
      n, y, [](Floats before, Floats v) HWY_ATTR { return hn::Add(before, v); }, y, x);
}
TRIREME_INSTANCES(add_row);

/// y = x + 0
template <class T>
void copy_row(std::size_t n, T* y, const T* x) {
  const Floats zero = hn::Zero(FloatTag());
  map(
      n, y, [&](Floats v) HWY_ATTR { return hn::Add(v, zero); }, x);
}
TRIREME_INSTANCES(copy_row);

// The same from an fp32 table: the row is rounded first, then added.
void add_rounded_row(std::size_t n, Bf16* y, const float* x) {
  map(
      n, y, [](Floats before, Floats v) HWY_ATTR { return hn::Add(before, nearest_bf16(v)); }, y,
      x);
}
void copy_rounded_row(std::size_t n, Bf16* y, const float* x) {
  const Floats zero = hn::Zero(FloatTag());
  map(
      n, y, [&](Floats v) HWY_ATTR { return hn::Add(nearest_bf16(v), zero); }, x);
}

/// dtable[ids[r] − first] += dy[r] on columns [0, n), in row order, if the table has that row.
template <class T>
void scatter_rows(std::size_t n, float* dtable, std::int64_t table_rows, std::int64_t table_stride,
                  const std::int32_t* ids, std::int64_t first, std::int64_t rows, const T* dy,
                  std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = ids[r] - first;
    if (row < 0 || row >= table_rows) continue;
    float* to = dtable + row * table_stride;
    map(
        n, to, [](Floats sum, Floats v) HWY_ATTR { return hn::Add(sum, v); }, to, dy + r * stride);
  }
}
TRIREME_INSTANCES(scatter_rows);

/// Largest D/2: a stack buffer holds the angles of a head.
constexpr std::size_t most_pairs = 512;

/// position·frequency minus the nearest multiple of 2π, in fp64: fp32 would be off by several
/// thousandths at position 100,000.
HWY_INLINE void reduced_angles(std::size_t pairs, double position, const float* frequencies,
                               float* angles) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  const std::size_t lanes = hn::Lanes(d);
  const auto turn = hn::Set(d, 6.283185307179586476925);
  const auto inverse_turn = hn::Set(d, 0.159154943091895335769);
  const auto body = [&](std::size_t i, auto access) HWY_ATTR {
    const auto frequency = hn::PromoteTo(d, access.load(half, frequencies + i));
    const auto angle = hn::Mul(hn::Set(d, position), frequency);
    const auto turns = hn::Round(hn::Mul(angle, inverse_turn));
    access.store(hn::DemoteTo(half, hn::NegMulAdd(turns, turn, angle)), half, angles + i);
  };
  std::size_t i = 0;
  for (; i + lanes <= pairs; i += lanes) body(i, Whole{});
  if (i < pairs) body(i, Part{pairs - i});
}

/// Rotates `heads` heads of one token; `sign` −1 inverts.
template <class T>
void rotary_row(std::size_t pairs, std::int64_t heads, T* x, std::int64_t head_stride,
                std::int32_t position, const float* frequencies, float sign) {
  const FloatTag d;
  HWY_ALIGN float cosines[most_pairs];
  HWY_ALIGN float sines[most_pairs];
  reduced_angles(pairs, static_cast<double>(position), frequencies, cosines);
  const Floats s = hn::Set(d, sign);
  for_vectors(pairs, [&](std::size_t i, auto access) HWY_ATTR {
    const Floats angle = access.load(d, cosines + i);
    access.store(hn::Mul(hn::Sin(d, angle), s), d, sines + i);
    access.store(hn::Cos(d, angle), d, cosines + i);
  });
  for (std::int64_t h = 0; h < heads; ++h) {
    T* low = x + h * head_stride;
    T* high = low + pairs;
    for_vectors(pairs, [&](std::size_t i, auto access) HWY_ATTR {
      const Floats a = access.load(d, low + i), b = access.load(d, high + i);
      const Floats cosine = access.load(d, cosines + i), sine = access.load(d, sines + i);
      access.store(hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), d, low + i);
      access.store(hn::MulAdd(a, sine, hn::Mul(b, cosine)), d, high + i);
    });
  }
}
TRIREME_INSTANCES(rotary_row);

template <class T>
void dropout_row(std::size_t n, T* y, const T* x, const Dropout& dropout, std::uint64_t index) {
  const FloatTag d;
  for_dropout(dropout, index, n, [&](std::size_t i, auto access, Floats factor) HWY_ATTR {
    access.store(hn::Mul(access.load(d, x + i), factor), d, y + i);
  });
}
TRIREME_INSTANCES(dropout_row);

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

TRIREME_EXPORT(add_row);
TRIREME_EXPORT(copy_row);
HWY_EXPORT(add_rounded_row);
HWY_EXPORT(copy_rounded_row);
TRIREME_EXPORT(scatter_rows);
TRIREME_EXPORT(rotary_row);
TRIREME_EXPORT(dropout_row);

namespace {

void check_ids(const std::int32_t* ids, std::int64_t count, std::int64_t rows,
               const RowTile& tile) {
  const std::int64_t all = tile.all > 0 ? tile.all : rows;
  TRIREME_ASSERT(tile.first >= 0 && tile.first + rows <= all, "rows {} + {} of {}", tile.first,
                 rows, all);
  for (std::int64_t i = 0; i < count; ++i) {
    TRIREME_ASSERT(ids[i] >= 0 && ids[i] < all, "id {} of row {} where the table has {} rows",
                   ids[i], i, all);
  }
}

/// `Row`: element type of the table.
template <class T, class Row, class Add, class Copy>
void look_up(int threads, const Rows<T>& out, const Tensor& ids, const Rows<Row>& from,
             const RowTile& tile, Lookup lookup, const Add& add, const Copy& copy) {
  const std::int32_t* id = flat<std::int32_t>(ids, out.rows);
  TRIREME_ASSERT(from.columns == out.columns, "table of {} columns and output of {}", from.columns,
                 out.columns);
  check_ids(id, out.rows, from.rows, tile);
  const auto n = static_cast<std::size_t>(out.columns);
  for_rows(threads, out.rows, out.columns, [&](std::int64_t r) {
    const std::int64_t row = id[r] - tile.first;
    if (row < 0 || row >= from.rows) {
      if (lookup == Lookup::write) std::memset(out.row(r), 0, n * sizeof(T));
    } else if (lookup == Lookup::add) {
      add(n, out.row(r), from.row(row));
    } else {
      copy(n, out.row(r), from.row(row));
    }
  });
}

}  // namespace

void CpuOps::embedding(const Tensor& y, const Tensor& ids, const Tensor& table, const RowTile& tile,
                       Lookup lookup) {
  if (y.type() == DType::bf16 && table.type() == DType::f32) {
    return look_up(threads_, rows_of<Bf16>(y), ids, rows_of(table), tile, lookup,
                   HWY_DYNAMIC_DISPATCH(add_rounded_row), HWY_DYNAMIC_DISPATCH(copy_rounded_row));
  }
  with_storage(y.type(), [&]<class T>(T) {
    look_up(threads_, rows_of<T>(y), ids, rows_of<T>(table), tile, lookup,
            TRIREME_KERNEL(add_row, T), TRIREME_KERNEL(copy_row, T));
  });
}

void CpuOps::embedding_backward(const Tensor& dtable, const Tensor& ids, const Tensor& dy,
                                const RowTile& tile) {
  const Rows<float> to = rows_of(dtable);
  with_storage(dy.type(), [&]<class T>(T) {
    const Rows<T> from = rows_of<T>(dy);
    TRIREME_ASSERT(to.columns == from.columns, "table {} and gradient {}",
                   dtable.shape().to_string(), dy.shape().to_string());
    const std::int32_t* id = flat<std::int32_t>(ids, from.rows);
    check_ids(id, from.rows, to.rows, tile);
    // Threads divide columns, so that each element's sum runs in row order.
    const std::int64_t grain =
        std::max<std::int64_t>(16, 16384 / std::max<std::int64_t>(1, from.rows));
    parallel_ranges(threads_, from.columns, grain, 16, [&](std::int64_t begin, std::int64_t end) {
      TRIREME_KERNEL(scatter_rows, T)
      (static_cast<std::size_t>(end - begin), to.data + begin, to.rows, to.stride, id, tile.first,
       from.rows, from.data + begin, from.stride);
    });
  });
}

void CpuOps::rotary(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
                    bool inverse) {
  TRIREME_ASSERT(x.shape().dimensions() == 3 && x.extent(2) % 2 == 0, "rotary of shape {}",
                 x.shape().to_string());
  const std::int64_t rows = x.extent(0), heads = x.extent(1);
  const auto pairs = static_cast<std::size_t>(x.extent(2) / 2);
  TRIREME_ASSERT(pairs <= HWY_NAMESPACE::most_pairs, "head size {}", 2 * pairs);
  const std::int32_t* position = flat<std::int32_t>(positions, rows);
  const float* frequency = flat(frequencies, x.extent(2) / 2);
  with_storage(x.type(), [&]<class T>(T) {
    T* data = x.as<T>();
    const auto kernel = TRIREME_KERNEL(rotary_row, T);
    for_rows(threads_, rows, heads * x.extent(2), [&](std::int64_t r) {
      kernel(pairs, heads, data + r * x.stride(0), x.stride(1), position[r], frequency,
             inverse ? -1.0F : 1.0F);
    });
  });
}

void CpuOps::dropout(const Tensor& y, const Tensor& x, const Tensor& rows, const Dropout& dropout) {
  TRIREME_ASSERT(dropout.rate >= 0 && dropout.rate < 1, "rate {}", dropout.rate);
  with_storage(x.type(), [&]<class T>(T) {
    const Rows<T> out = rows_of<T>(y), in = rows_of<T>(x);
    TRIREME_ASSERT(out.rows == in.rows && out.columns == in.columns, "dropout of {} into {}",
                   x.shape().to_string(), y.shape().to_string());
    if (dropout.rate == 0) {
      if (y.data() != x.data()) copy(y, x);
      return;
    }
    const std::int64_t* logical = flat<std::int64_t>(rows, in.rows);
    const auto n = static_cast<std::size_t>(in.columns);
    const auto kernel = TRIREME_KERNEL(dropout_row, T);
    for_rows(threads_, in.rows, in.columns, [&](std::int64_t r) {
      kernel(n, out.row(r), in.row(r), dropout, static_cast<std::uint64_t>(logical[r]) * n);
    });
  });
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
