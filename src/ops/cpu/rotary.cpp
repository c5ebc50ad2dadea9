// Rotary position embedding.
#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"
#include "threads.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/rotary.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

/// Pairs (i, i + D/2) of a head that one stack buffer of angles holds.
constexpr std::size_t most_pairs = 512;

/// The angle position·frequency less the nearest multiple of 2π, in fp64: in fp32 the angle of
/// position 100,000 would be wrong by several thousandths.
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

/// Rotates `heads` heads of one token; `sign` −1 turns back.
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

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

TRIREME_EXPORT(rotary_row);

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
    parallel_rows(threads_, rows, heads * x.extent(2), [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = TRIREME_KERNEL(rotary_row, T);
      for (std::int64_t r = begin; r < end; ++r) {
        kernel(pairs, heads, data + r * x.stride(0), x.stride(1), position[r], frequency,
               inverse ? -1.0F : 1.0F);
      }
    });
  });
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
