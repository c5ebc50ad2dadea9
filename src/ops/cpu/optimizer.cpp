// Optimizer updates and the gradient norm.
#include <array>
#include <cmath>
#include <limits>

#include "trireme/core/half.hpp"

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"
#include "threads.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/optimizer.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

/// Σ x² over one block in fp64. Element i is added to chain i mod 16 and chains are joined
/// pairwise: the same bits on every instruction set.
double squares_of_block(std::size_t n, const float* x) {
  constexpr std::size_t chains = 16;
  const hn::CappedTag<double, chains> d;
  const hn::Rebind<float, decltype(d)> half;
  constexpr std::size_t lanes = hn::MaxLanes(d);
  hn::Vec<decltype(d)> vectors[chains / lanes];
  for (auto& vector : vectors) vector = hn::Zero(d);
  const auto add_chains = [&](const float* p) HWY_ATTR {
    for (std::size_t j = 0; j < chains / lanes; ++j) {
      const auto v = hn::PromoteTo(d, hn::LoadU(half, p + j * lanes));
      vectors[j] = hn::MulAdd(v, v, vectors[j]);
    }
  };
  std::size_t i = 0;
  for (; i + chains <= n; i += chains) {
    prefetch_line(prefetched(x + i));
    add_chains(x + i);
  }
  if (i < n) {
    float padded[chains] = {};
    std::memcpy(padded, x + i, (n - i) * sizeof(float));
    add_chains(padded);
  }
  double sums[chains];
  for (std::size_t j = 0; j < chains / lanes; ++j) hn::StoreU(vectors[j], d, sums + j * lanes);
  for (std::size_t step = 1; step < chains; step *= 2) {
    for (std::size_t j = 0; j < chains; j += 2 * step) sums[j] += sums[j + step];
  }
  return sums[0];
}

/// `rounded` may be null.
void adamw_range(std::size_t n, float* p, float* m, float* v, const float* g, const AdamWStep& step,
                 Bf16* rounded) {
  const FloatTag d;
  const Floats beta1 = hn::Set(d, step.beta1), rest1 = hn::Set(d, 1.0F - step.beta1);
  const Floats beta2 = hn::Set(d, step.beta2), rest2 = hn::Set(d, 1.0F - step.beta2);
  const Floats decay = hn::Set(d, 1.0F - step.learning_rate * step.weight_decay);
  const Floats rate = hn::Set(d, step.learning_rate / step.correction1);
  const Floats root2 = hn::Set(d, 1.0F / std::sqrt(step.correction2));
  const Floats epsilon = hn::Set(d, step.epsilon), scale = hn::Set(d, step.gradient_scale);
  for_vectors(n, [&](std::size_t i, auto access) HWY_ATTR {
    const Floats gradient = hn::Mul(access.load(d, g + i), scale);
    const Floats first = hn::MulAdd(rest1, gradient, hn::Mul(beta1, access.load(d, m + i)));
    const Floats second =
        hn::MulAdd(rest2, hn::Mul(gradient, gradient), hn::Mul(beta2, access.load(d, v + i)));
    const Floats denominator = hn::MulAdd(hn::Sqrt(second), root2, epsilon);
    const Floats update = hn::Div(hn::Mul(rate, first), denominator);
    const Floats value = hn::Sub(hn::Mul(access.load(d, p + i), decay), update);
    access.store(value, d, p + i);
    if (rounded != nullptr) access.store(value, d, rounded + i);
    access.store(first, d, m + i);
    access.store(second, d, v + i);
  });
}

void sgd_range(std::size_t n, float* p, float* buffer, const float* g, float learning_rate,
               float momentum, float weight_decay, float gradient_scale) {
  const FloatTag d;
  const Floats rate = hn::Set(d, learning_rate), keep = hn::Set(d, momentum);
  const Floats decay = hn::Set(d, weight_decay), scale = hn::Set(d, gradient_scale);
  for_vectors(n, [&](std::size_t i, auto access) HWY_ATTR {
    const Floats value = access.load(d, p + i);
    const Floats gradient = hn::MulAdd(decay, value, hn::Mul(access.load(d, g + i), scale));
    const Floats moved = hn::MulAdd(keep, access.load(d, buffer + i), gradient);
    access.store(moved, d, buffer + i);
    access.store(hn::NegMulAdd(rate, moved, value), d, p + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

HWY_EXPORT(squares_of_block);
HWY_EXPORT(adamw_range);
HWY_EXPORT(sgd_range);

void CpuOps::add_squares(const Tensor& sums, const Tensor& x) {
  // Sharded state is divided at multiples of the block.
  constexpr std::int64_t block = 4096, held = 512;
  const std::int64_t elements = x.elements(), blocks = (elements + block - 1) / block;
  const float* data = flat(x, elements);
  auto* out = flat<double>(sums, sums.elements());
  const bool apart = sums.elements() == blocks;
  TRIREME_ASSERT(apart || sums.elements() == 1, "squares of {} into {}", x.shape().to_string(),
                 sums.shape().to_string());
  double total = 0;
  for (std::int64_t first = 0; first < blocks; first += held) {
    double own[held] = {};
    const std::int64_t count = std::min(held, blocks - first);
    parallel_ranges(threads_, count, 8, 8, [&](std::int64_t begin, std::int64_t end) {
      const auto kernel = HWY_DYNAMIC_DISPATCH(squares_of_block);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t at = (first + i) * block;
        own[i] = kernel(static_cast<std::size_t>(std::min(block, elements - at)), data + at);
      }
    });
    for (std::int64_t i = 0; i < count; ++i) {
      if (apart) {
        out[first + i] += own[i];
      } else {
        total += own[i];
      }
    }
  }
  if (!apart) *out += total;
}

void CpuOps::round(const RoundedCopy& copy, const Tensor& x) {
  if (!copy.values) return;
  if (!copy.stochastic) return this->copy(copy.values, x);
  TRIREME_ASSERT(copy.values.type() == DType::bf16, "stochastic rounding to {}",
                 name_of(copy.values.type()));
  const std::int64_t elements = x.elements();
  const auto* from = flat(x, elements);
  TRIREME_ASSERT(copy.values.contiguous() && copy.values.elements() == elements, "a copy of {}",
                 copy.values.shape().to_string());
  auto* to = static_cast<std::uint16_t*>(copy.values.data());
  parallel_elements(threads_, elements, [&](std::int64_t begin, std::int64_t end) {
    std::array<std::uint32_t, 4> words{};
    std::uint64_t drawn = std::numeric_limits<std::uint64_t>::max();  // the block of `words`
    for (std::int64_t i = begin; i < end; ++i) {
      const auto index = static_cast<std::uint64_t>(copy.indices(i));
      if (index / 4 != drawn) {
        drawn = index / 4;
        words = random_block(copy.key, drawn);
      }
      to[i] = float_to_bf16_up_by(from[i], words[index % 4] & 0xffffU);
    }
  });
}

void CpuOps::adamw(const Tensor& parameters, const Tensor& moment1, const Tensor& moment2,
                   const Tensor& gradients, const AdamWStep& step, const RoundedCopy& copy) {
  const std::int64_t elements = parameters.elements();
  float* p = flat(parameters, elements);
  float* m = flat(moment1, elements);
  float* v = flat(moment2, elements);
  const float* g = flat(gradients, elements);
  // A copy rounded to nearest is written in the same pass.
  const bool fused = copy.values && copy.values.type() == DType::bf16 && !copy.stochastic;
  Bf16* rounded = fused ? flat<Bf16>(copy.values, elements) : nullptr;
  parallel_elements(threads_, elements, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(adamw_range)
    (static_cast<std::size_t>(end - begin), p + begin, m + begin, v + begin, g + begin, step,
     fused ? rounded + begin : nullptr);
  });
  if (!fused) round(copy, parameters);
}

void CpuOps::sgd(const Tensor& parameters, const Tensor& momentum_buffer, const Tensor& gradients,
                 float learning_rate, float momentum, float weight_decay, float gradient_scale,
                 const RoundedCopy& copy) {
  const std::int64_t elements = parameters.elements();
  float* p = flat(parameters, elements);
  float* buffer = flat(momentum_buffer, elements);
  const float* g = flat(gradients, elements);
  parallel_elements(threads_, elements, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(sgd_range)
    (static_cast<std::size_t>(end - begin), p + begin, buffer + begin, g + begin, learning_rate,
     momentum, weight_decay, gradient_scale);
  });
  round(copy, parameters);
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
