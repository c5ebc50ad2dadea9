// Fill, copy, conversion, add, scale.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "trireme/core/half.hpp"

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"
#include "threads.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/elementwise.cpp"  // from the include folder
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>

#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

template <class T>
void fill_range(std::size_t n, T* y, float value) {
  T stored;
  narrow(value, stored);
  const Floats v = hn::Set(FloatTag(), widened(stored));
  map(n, y, [&]() HWY_ATTR { return v; });
}
TRIREME_INSTANCES(fill_range);

template <class T>
void add_range(std::size_t n, T* y, const T* a, const T* b, bool streamed) {
  map_out(
      streamed, n, y, [](Floats va, Floats vb) HWY_ATTR { return hn::Add(va, vb); }, prefetched(a),
      prefetched(b));
}
TRIREME_INSTANCES(add_range);

/// y += x on rows that are in a core's cache: other threads may write what follows in memory.
void add_rows(std::int64_t rows, std::size_t columns, float* y, std::int64_t y_stride,
              const float* x, std::int64_t x_stride) {
  for (std::int64_t r = 0; r < rows; ++r, y += y_stride, x += x_stride) {
    map(
        columns, y, [](Floats vy, Floats vx) HWY_ATTR { return hn::Add(vy, vx); },
        static_cast<const float*>(y), x);
  }
}

template <class T>
void scale_range(std::size_t n, T* y, float factor) {
  const Floats f = hn::Set(FloatTag(), factor);
  map(
      n, y, [&](Floats v) HWY_ATTR { return hn::Mul(v, f); }, prefetched(y));
}
TRIREME_INSTANCES(scale_range);

/// Bypasses the caches; y is aligned to a cache line.
void copy_range(std::size_t bytes, std::uint8_t* y, const std::uint8_t* x) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= bytes; i += lanes) hn::Stream(hn::LoadU(d, x + i), d, y + i);
  std::memcpy(y + i, x + i, bytes - i);
}

void widen_range(std::size_t n, float* y, const Bf16* x) {
  map(
      n, y, [](Floats v) HWY_ATTR { return v; }, x);
}

void round_range(std::size_t n, Bf16* y, const float* x) {
  map(
      n, y, [](Floats v) HWY_ATTR { return v; }, x);
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

TRIREME_EXPORT(fill_range);
TRIREME_EXPORT(add_range);
TRIREME_EXPORT(scale_range);
HWY_EXPORT(add_rows);
HWY_EXPORT(copy_range);
HWY_EXPORT(widen_range);
HWY_EXPORT(round_range);

namespace {

/// One row of a copy that converts.
using ConvertRow = void (*)(std::int64_t n, std::byte* to, const std::byte* from);

template <class To, class From, To (*convert)(From)>
void convert_row(std::int64_t n, std::byte* to, const std::byte* from) {
  auto* out = reinterpret_cast<To*>(to);
  const auto* in = reinterpret_cast<const From*>(from);
  for (std::int64_t i = 0; i < n; ++i) out[i] = convert(in[i]);
}

void widen_row(std::int64_t n, std::byte* to, const std::byte* from) {
  HWY_DYNAMIC_DISPATCH(widen_range)
  (static_cast<std::size_t>(n), reinterpret_cast<float*>(to), reinterpret_cast<const Bf16*>(from));
}

void round_row(std::int64_t n, std::byte* to, const std::byte* from) {
  HWY_DYNAMIC_DISPATCH(round_range)
  (static_cast<std::size_t>(n), reinterpret_cast<Bf16*>(to), reinterpret_cast<const float*>(from));
}

ConvertRow converter(DType to, DType from) {
  if (to == DType::f32 && from == DType::bf16) return widen_row;
  if (to == DType::bf16 && from == DType::f32) return round_row;
  if (to == DType::f32 && from == DType::f16) {
    return convert_row<float, std::uint16_t, fp16_to_float>;
  }
  TRIREME_ASSERT(to == DType::f16 && from == DType::f32, "copy of {} into {}", name_of(from),
                 name_of(to));
  return convert_row<std::uint16_t, float, float_to_fp16>;
}

}  // namespace

void end_stream(bool streamed) {
  if (streamed) hwy::FlushStream();
}

void CpuOps::fill(const Tensor& y, float value) {
  if (y.type() == DType::f64) {
    std::fill_n(flat<double>(y, y.elements()), y.elements(), double{value});
    return;
  }
  with_storage(y.type(), [&]<class T>(T) {
    T* data = flat<T>(y, y.elements());
    parallel_elements(threads_, y.elements(), [&](std::int64_t begin, std::int64_t end) {
      TRIREME_KERNEL(fill_range, T)(static_cast<std::size_t>(end - begin), data + begin, value);
    });
  });
}

void CpuOps::copy(const Tensor& y, const Tensor& x) {
  TRIREME_ASSERT(y.shape() == x.shape(), "copy of {} into {}", x.shape().to_string(),
                 y.shape().to_string());
  const bool converts = y.type() != x.type(), flat = y.contiguous() && x.contiguous();
  const auto size = static_cast<std::int64_t>(size_of(y.type()));
  const auto from_size = static_cast<std::int64_t>(size_of(x.type()));
  auto* to = static_cast<std::byte*>(y.data());
  const auto* from = static_cast<const std::byte*>(x.data());
  if (flat && !converts) {
    const bool streamed =
        beyond_caches(y.elements() * size) && reinterpret_cast<std::uintptr_t>(to) % 64 == 0;
    // Ranges begin at cache lines for every type: streaming stores fault elsewhere.
    const std::int64_t line = std::max<std::int64_t>(16, 64 / size);
    parallel_ranges(threads_, y.elements(), 16384, line, [&](std::int64_t begin, std::int64_t end) {
      const auto bytes = static_cast<std::size_t>((end - begin) * size);
      if (streamed) {
        HWY_DYNAMIC_DISPATCH(copy_range)
        (bytes, reinterpret_cast<std::uint8_t*>(to + begin * size),
         reinterpret_cast<const std::uint8_t*>(from + begin * size));
        end_stream(true);
      } else {
        std::memcpy(to + begin * size, from + begin * size, bytes);
      }
    });
    return;
  }
  const ConvertRow convert = converts ? converter(y.type(), x.type()) : nullptr;
  if (flat) {
    parallel_elements(threads_, y.elements(), [&](std::int64_t begin, std::int64_t end) {
      convert(end - begin, to + begin * size, from + begin * from_size);
    });
    return;
  }
  TRIREME_ASSERT(y.shape().dimensions() == 2, "strided copy of shape {}", y.shape().to_string());
  for_rows(threads_, y.extent(0), y.extent(1), [&](std::int64_t r) {
    std::byte* row = to + r * y.stride(0) * size;
    const std::byte* source = from + r * x.stride(0) * from_size;
    if (converts) {
      convert(y.extent(1), row, source);
    } else {
      std::memcpy(row, source, static_cast<std::size_t>(y.extent(1) * size));
    }
  });
}

void CpuOps::add(const Tensor& y, const Tensor& a, const Tensor& b) {
  const std::int64_t n = y.elements();
  with_storage(y.type(), [&]<class T>(T) {
    for_elements(threads_, n, TRIREME_KERNEL(add_range, T), flat<T>(y, n), flat<T>(a, n),
                 flat<T>(b, n));
  });
}

void CpuOps::add_up(std::span<const Tensor> terms) {
  const auto count = static_cast<std::uint64_t>(terms.size());
  if (count <= 2 || !std::has_single_bit(count)) return Ops::add_up(terms);
  constexpr std::int64_t block = 1024;
  const std::int64_t n = terms.front().elements();
  std::vector<float*> data;
  for (const Tensor& term : terms) data.push_back(flat<float>(term, n));
  parallel_elements(threads_, n, [&](std::int64_t begin, std::int64_t end) {
    // Sums of some terms, but for the first: they stay in a core's cache.
    std::vector<float> sums(static_cast<std::size_t>(block * std::countr_zero(count)));
    for (std::int64_t first = begin; first < end; first += block) {
      const auto size = static_cast<std::size_t>(std::min(block, end - first));
      const auto at = [&](std::int64_t slot) {
        return slot == 0 ? data.front() + first : sums.data() + (slot - 1) * block;
      };
      const auto add = TRIREME_KERNEL(add_range, float);
      sum_pairwise(
          std::ssize(terms) / 2,
          [&](std::int64_t pair, std::int64_t slot) {
            const auto i = static_cast<std::size_t>(2 * pair);
            add(size, at(slot), data[i] + first, data[i + 1] + first, false);
          },
          [&](std::int64_t to, std::int64_t from) { add(size, at(to), at(to), at(from), false); });
    }
  });
}

void add_block(const Rows<float>& y, const Rows<float>& x, Range rows, Range columns) {
  HWY_DYNAMIC_DISPATCH(add_rows)
  (rows.size(), static_cast<std::size_t>(columns.size()), y.row(rows.begin) + columns.begin,
   y.stride, x.row(rows.begin) + columns.begin, x.stride);
}

void CpuOps::scale(const Tensor& y, float factor) {
  with_storage(y.type(), [&]<class T>(T) {
    T* data = flat<T>(y, y.elements());
    parallel_elements(threads_, y.elements(), [&](std::int64_t begin, std::int64_t end) {
      TRIREME_KERNEL(scale_range, T)(static_cast<std::size_t>(end - begin), data + begin, factor);
    });
  });
}

void CpuOps::scale_by(const Tensor& y, const Tensor& factor) { scale(y, *flat<float>(factor, 1)); }

}  // namespace trireme::ops
#endif  // HWY_ONCE
