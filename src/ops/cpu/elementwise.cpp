// Moving, filling, adding.
#include <cstring>

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"
#include "threads.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/elementwise.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

void fill_range(std::size_t n, float* y, float value) {
  const Floats v = hn::Set(FloatTag(), value);
  map(n, y, [&]() HWY_ATTR { return v; });
}

void add_range(std::size_t n, float* y, const float* a, const float* b) {
  map(
      n, y, [](Floats va, Floats vb) HWY_ATTR { return hn::Add(va, vb); }, a, b);
}

void scale_range(std::size_t n, float* y, float factor) {
  const Floats f = hn::Set(FloatTag(), factor);
  map(
      n, y, [&](Floats v) HWY_ATTR { return hn::Mul(v, f); }, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

HWY_EXPORT(fill_range);
HWY_EXPORT(add_range);
HWY_EXPORT(scale_range);

void CpuOps::fill(const Tensor& y, float value) {
  float* data = flat(y, y.elements());
  parallel_elements(threads_, y.elements(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(fill_range)(static_cast<std::size_t>(end - begin), data + begin, value);
  });
}

void CpuOps::copy(const Tensor& y, const Tensor& x) {
  TRIREME_ASSERT(y.shape() == x.shape() && y.type() == x.type(), "copy of {} {} into {} {}",
                 name_of(x.type()), x.shape().to_string(), name_of(y.type()),
                 y.shape().to_string());
  const auto size = static_cast<std::int64_t>(size_of(x.type()));
  auto* to = static_cast<std::byte*>(y.data());
  const auto* from = static_cast<const std::byte*>(x.data());
  if (y.contiguous() && x.contiguous()) {
    parallel_elements(threads_, y.elements(), [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to + begin * size, from + begin * size,
                  static_cast<std::size_t>((end - begin) * size));
    });
    return;
  }
  TRIREME_ASSERT(y.shape().dimensions() == 2, "strided copy of shape {}", y.shape().to_string());
  const auto bytes = static_cast<std::size_t>(y.extent(1) * size);
  parallel_rows(threads_, y.extent(0), y.extent(1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::memcpy(to + r * y.stride(0) * size, from + r * x.stride(0) * size, bytes);
    }
  });
}

void CpuOps::add(const Tensor& y, const Tensor& a, const Tensor& b) {
  const std::int64_t elements = y.elements();
  float* py = flat(y, elements);
  const float* pa = flat(a, elements);
  const float* pb = flat(b, elements);
  parallel_elements(threads_, elements, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_range)
    (static_cast<std::size_t>(end - begin), py + begin, pa + begin, pb + begin);
  });
}

void CpuOps::scale(const Tensor& y, float factor) {
  float* data = flat(y, y.elements());
  parallel_elements(threads_, y.elements(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_range)(static_cast<std::size_t>(end - begin), data + begin, factor);
  });
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
