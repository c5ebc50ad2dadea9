// The parts of vocabulary-parallel cross-entropy, and the loss.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu_ops.hpp"
#include "rows.hpp"
#include "targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/loss.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "narrow-inl.hpp"
#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

/// May lose a NaN, which exp_sum_row then reports.
template <class T>
float maximum_of(std::size_t n, const T* x) {
  const FloatTag d;
  const Floats lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const Prefetched<T> in = prefetched(x);
  const Floats maximum = reduce(
      n, lowest, [](Floats a, Floats b) HWY_ATTR { return hn::Max(a, b); },
      [&](std::size_t i, auto access) HWY_ATTR {
        prefetch_line(in + i);
        return access.load(d, x + i);
      });
  return hn::GetLane(hn::MaxOfLanes(d, maximum));
}
TRIREME_INSTANCES(maximum_of);

/// exp(x − m) of logits in bf16, for a sum in fp32 (`terms` = 5) or a result in bf16 (4).
template <int terms>
HWY_INLINE Floats narrow_exponential(Floats x, Floats m) {
  return power_of_two_or_zero<terms>(hn::Mul(hn::Sub(x, m), hn::Set(FloatTag(), log2_e)));
}

template <class T>
float exp_sum_row(std::size_t n, const T* x, float maximum) {
  const Floats m = hn::Set(FloatTag(), maximum);
  const auto add = [&](Floats* sums, Floats v) HWY_ATTR {
    if constexpr (std::is_same_v<T, Bf16>) {
      sums[0] = hn::Add(sums[0], narrow_exponential<5>(v, m));
    } else {
      sums[0] = hn::Add(sums[0], exponential(FloatTag(), hn::Sub(v, m)));
    }
  };
  return fold<1>(n, add, prefetched(x))[0];
}
TRIREME_INSTANCES(exp_sum_row);

template <class T>
void softmax_gradient_row(std::size_t n, T* x, float maximum, float factor) {
  const FloatTag d;
  const Floats m = hn::Set(d, maximum), f = hn::Set(d, factor);
  if constexpr (std::is_same_v<T, Bf16>) {
    map(
        n, x, [&](Floats v) HWY_ATTR { return hn::Mul(narrow_exponential<4>(v, m), f); },
        prefetched(x));
  } else {
    map(
        n, x, [&](Floats v) HWY_ATTR { return hn::Mul(exponential(d, hn::Sub(v, m)), f); },
        prefetched(x));
  }
}
TRIREME_INSTANCES(softmax_gradient_row);

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

TRIREME_EXPORT(maximum_of);
TRIREME_EXPORT(exp_sum_row);
TRIREME_EXPORT(softmax_gradient_row);

void CpuOps::row_maximum(const Tensor& maximum, const Tensor& logits, bool accumulate) {
  with_storage(logits.type(), [&]<class T>(T) {
    const Rows<T> x = rows_of<T>(logits);
    float* out = flat(maximum, x.rows);
    const auto n = static_cast<std::size_t>(x.columns);
    const auto kernel = TRIREME_KERNEL(maximum_of, T);
    for_rows(threads_, x.rows, x.columns, [&](std::int64_t r) {
      const float own = kernel(n, x.row(r));
      out[r] = accumulate ? std::max(out[r], own) : own;
    });
  });
}

void CpuOps::exp_sum_and_target(const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                                const Tensor& maximum, const Tensor& targets, std::int64_t first) {
  with_storage(logits.type(), [&]<class T>(T) {
    const Rows<T> x = rows_of<T>(logits);
    float* sums = flat(sum, x.rows);
    float* target_logits = flat(target_logit, x.rows);
    const float* maxima = flat(maximum, x.rows);
    const std::int32_t* target = flat<std::int32_t>(targets, x.rows);
    const auto n = static_cast<std::size_t>(x.columns);
    const auto kernel = TRIREME_KERNEL(exp_sum_row, T);
    for_rows(threads_, x.rows, x.columns, [&](std::int64_t r) {
      sums[r] = kernel(n, x.row(r), maxima[r]);
      const std::int64_t column = target[r] - first;
      const bool here = column >= 0 && column < x.columns;
      target_logits[r] = here ? widened(x.row(r)[column]) : 0.0F;
    });
  });
}

void CpuOps::softmax_statistics(const Tensor& maximum, const Tensor& sum,
                                const Tensor& target_logit, const Tensor& logits,
                                const Tensor& targets) {
  with_storage(logits.type(), [&]<class T>(T) {
    const Rows<T> x = rows_of<T>(logits);
    float* maxima = flat(maximum, x.rows);
    float* sums = flat(sum, x.rows);
    float* target_logits = flat(target_logit, x.rows);
    const std::int32_t* target = flat<std::int32_t>(targets, x.rows);
    const auto n = static_cast<std::size_t>(x.columns);
    const auto largest = TRIREME_KERNEL(maximum_of, T);
    const auto exp_sum = TRIREME_KERNEL(exp_sum_row, T);
    // The second pass over a row reads it from the caches.
    for_rows(threads_, x.rows, x.columns, [&](std::int64_t r) {
      maxima[r] = largest(n, x.row(r));
      sums[r] = exp_sum(n, x.row(r), maxima[r]);
      const bool valid = target[r] >= 0 && target[r] < x.columns;
      target_logits[r] = valid ? widened(x.row(r)[target[r]]) : 0.0F;
    });
  });
}

void CpuOps::cross_entropy_gradient(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                                    const Tensor& targets, const Tensor& factor,
                                    std::int64_t first) {
  with_storage(logits.type(), [&]<class T>(T) {
    const Rows<T> x = rows_of<T>(logits);
    const float* maxima = flat(maximum, x.rows);
    const float* sums = flat(sum, x.rows);
    const std::int32_t* target = flat<std::int32_t>(targets, x.rows);
    const float* factors = flat(factor, x.rows);
    const auto n = static_cast<std::size_t>(x.columns);
    const auto kernel = TRIREME_KERNEL(softmax_gradient_row, T);
    const auto wide = TRIREME_KERNEL(softmax_gradient_row, float);
    for_rows(threads_, x.rows, x.columns, [&](std::int64_t r) {
      const std::int64_t column = target[r] - first;
      const bool here = column >= 0 && column < x.columns;
      // The target's element is computed in fp32 and rounded once.
      float own = here ? widened(x.row(r)[column]) : 0.0F;
      if (here) wide(1, &own, maxima[r], factors[r] / sums[r]);
      kernel(n, x.row(r), maxima[r], factors[r] / sums[r]);
      if (here) narrow(own - factors[r], x.row(r)[column]);
    });
  });
}

void CpuOps::weighted_loss(const Tensor& total, const Tensor& sum, const Tensor& maximum,
                           const Tensor& target_logit, const Tensor& weights) {
  const std::int64_t rows = sum.elements();
  const float* sums = flat(sum, rows);
  const float* maxima = flat(maximum, rows);
  const float* target_logits = flat(target_logit, rows);
  const float* weight = flat(weights, rows);
  double loss = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    loss += double{weight[r]} *
            (std::log(double{sums[r]}) + (double{maxima[r]} - double{target_logits[r]}));
  }
  *flat<double>(total, 1) += loss;
}

}  // namespace trireme::ops
#endif  // HWY_ONCE
