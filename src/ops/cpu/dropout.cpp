// Dropout.
#include <cstring>

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"
#include "threads.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/dropout.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "random-inl.hpp"
#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

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

TRIREME_EXPORT(dropout_row);

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
    parallel_rows(threads_, in.rows, in.columns, [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = TRIREME_KERNEL(dropout_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        const auto index = static_cast<std::uint64_t>(logical[r]) * n;
        kernel(n, out.row(r), in.row(r), dropout, index);
      }
    });
  });
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
