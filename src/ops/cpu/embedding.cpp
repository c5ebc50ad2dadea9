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

template <class T>
void add_rows(std::size_t n, T* y, const T* a, const T* b) {
  map(
      n, y, [](Floats va, Floats vb) HWY_ATTR { return hn::Add(va, vb); }, a, b);
}
TRIREME_INSTANCES(add_rows);

/// y = x + 0
template <class T>
void copy_row(std::size_t n, T* y, const T* x) {
  const Floats zero = hn::Zero(FloatTag());
  map(
      n, y, [&](Floats v) HWY_ATTR { return hn::Add(v, zero); }, x);
}
TRIREME_INSTANCES(copy_row);

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

TRIREME_EXPORT(add_rows);
TRIREME_EXPORT(copy_row);
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

}  // namespace

void CpuOps::embedding(const Tensor& y, const Tensor& ids, const Tensor& table, const RowTile& tile,
                       Lookup lookup) {
  with_storage(y.type(), [&]<class T>(T) {
    const Rows<T> out = rows_of<T>(y), from = rows_of<T>(table);
    const std::int32_t* id = flat<std::int32_t>(ids, out.rows);
    TRIREME_ASSERT(from.columns == out.columns, "table {} and output {}", table.shape().to_string(),
                   y.shape().to_string());
    check_ids(id, out.rows, from.rows, tile);
    const auto n = static_cast<std::size_t>(out.columns);
    parallel_rows(threads_, out.rows, out.columns, [&](std::int64_t begin, std::int64_t end) {
      const auto add = TRIREME_KERNEL(add_rows, T);
      const auto copy = TRIREME_KERNEL(copy_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t row = id[r] - tile.first;
        if (row < 0 || row >= from.rows) {
          if (lookup == Lookup::write) std::memset(out.row(r), 0, n * sizeof(T));
        } else if (lookup == Lookup::add) {
          add(n, out.row(r), out.row(r), from.row(row));
        } else {
          copy(n, out.row(r), from.row(row));
        }
      }
    });
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
