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

void add_rows(std::size_t n, float* y, const float* a, const float* b) {
  map(
      n, y, [](Floats va, Floats vb) HWY_ATTR { return hn::Add(va, vb); }, a, b);
}

/// dtable[ids[r]] += dy[r] on columns [0, n), in row order.
void scatter_rows(std::size_t n, float* dtable, std::int64_t table_stride, const std::int32_t* ids,
                  std::int64_t rows, const float* dy, std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* to = dtable + ids[r] * table_stride;
    add_rows(n, to, to, dy + r * stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

HWY_EXPORT(add_rows);
HWY_EXPORT(scatter_rows);

namespace {

void check_ids(const std::int32_t* ids, std::int64_t count, std::int64_t rows, const char* what) {
  for (std::int64_t i = 0; i < count; ++i) {
    TRIREME_ASSERT(ids[i] >= 0 && ids[i] < rows, "{} {} of row {} where the table has {} rows",
                   what, ids[i], i, rows);
  }
}

}  // namespace

void CpuOps::embedding(const Tensor& y, const Tensor& ids, const Tensor& table,
                       const Tensor& positions, const Tensor& position_table) {
  const Rows<float> out = rows_of(y), tokens = rows_of(table);
  const std::int32_t* id = flat<std::int32_t>(ids, out.rows);
  TRIREME_ASSERT(tokens.columns == out.columns, "table {} and output {}", table.shape().to_string(),
                 y.shape().to_string());
  check_ids(id, out.rows, tokens.rows, "token");
  Rows<float> places;
  const std::int32_t* place = nullptr;
  if (position_table) {
    places = rows_of(position_table);
    place = flat<std::int32_t>(positions, out.rows);
    TRIREME_ASSERT(places.columns == out.columns, "position table {} and output {}",
                   position_table.shape().to_string(), y.shape().to_string());
    check_ids(place, out.rows, places.rows, "position");
  }
  const auto n = static_cast<std::size_t>(out.columns);
  parallel_rows(threads_, out.rows, out.columns, [&](std::int64_t begin, std::int64_t end) {
    const auto kernel = HWY_DYNAMIC_DISPATCH(add_rows);
    for (std::int64_t r = begin; r < end; ++r) {
      if (place != nullptr) {
        kernel(n, out.row(r), tokens.row(id[r]), places.row(place[r]));
      } else {
        std::memcpy(out.row(r), tokens.row(id[r]), n * sizeof(float));
      }
    }
  });
}

void CpuOps::embedding_backward(const Tensor& dtable, const Tensor& ids, const Tensor& dy) {
  const Rows<float> to = rows_of(dtable), from = rows_of(dy);
  TRIREME_ASSERT(to.columns == from.columns, "table {} and gradient {}", dtable.shape().to_string(),
                 dy.shape().to_string());
  const std::int32_t* id = flat<std::int32_t>(ids, from.rows);
  check_ids(id, from.rows, to.rows, "token");
  // Threads share out columns, so that each element's sum runs in row order.
  const std::int64_t grain =
      std::max<std::int64_t>(16, 16384 / std::max<std::int64_t>(1, from.rows));
  parallel_ranges(threads_, from.columns, grain, 16, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scatter_rows)
    (static_cast<std::size_t>(end - begin), to.data + begin, to.stride, id, from.rows,
     from.data + begin, from.stride);
  });
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
