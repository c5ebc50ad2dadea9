// Embedding look-up and its gradient.
#include <cstring>

#include "cpu_ops.hpp"
#include "row_sums.hpp"
#include "rows.hpp"
#include "targets.hpp"
#include "threads.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/embedding.cpp"  // from the include folder
#include <hwy/foreach_target.h>

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

// The same of an fp32 table's row, rounded first: not once together with the sum.
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

/// dtable[ids[r] − first] += dy[r] on columns [0, n), in row order, where the table has that row.
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

/// Rows of the table by whose types the kernels are chosen.
template <class T, class Row, class Add, class Copy>
void look_up(int threads, const Rows<T>& out, const Tensor& ids, const Rows<Row>& from,
             const RowTile& tile, Lookup lookup, const Add& add, const Copy& copy) {
  const std::int32_t* id = flat<std::int32_t>(ids, out.rows);
  TRIREME_ASSERT(from.columns == out.columns, "table of {} columns and output of {}", from.columns,
                 out.columns);
  check_ids(id, out.rows, from.rows, tile);
  const auto n = static_cast<std::size_t>(out.columns);
  parallel_rows(threads, out.rows, out.columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t row = id[r] - tile.first;
      if (row < 0 || row >= from.rows) {
        if (lookup == Lookup::write) std::memset(out.row(r), 0, n * sizeof(T));
      } else if (lookup == Lookup::add) {
        add(n, out.row(r), from.row(row));
      } else {
        copy(n, out.row(r), from.row(row));
      }
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
    // Threads share out columns, so that each element's sum runs in row order.
    const std::int64_t grain =
        std::max<std::int64_t>(16, 16384 / std::max<std::int64_t>(1, from.rows));
    parallel_ranges(threads_, from.columns, grain, 16, [&](std::int64_t begin, std::int64_t end) {
      TRIREME_KERNEL(scatter_rows, T)
      (static_cast<std::size_t>(end - begin), to.data + begin, to.rows, to.stride, id, tile.first,
       from.rows, from.data + begin, from.stride);
    });
  });
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
