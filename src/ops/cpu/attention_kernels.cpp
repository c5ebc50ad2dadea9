#include <limits>

#include "attention_problem.hpp"
#include "targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../src/ops/cpu/attention_kernels.cpp"  // from the include folder
#include <hwy/foreach_target.h>

#include "random-inl.hpp"
#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

/// Sets to −∞ the scores of `n` keys that the query does not see; whether it sees any.
bool mask_run(std::size_t n, float* scores, const std::int32_t* key_positions,
              const std::int32_t* key_documents, std::int32_t position, std::int32_t document) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const Floats hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto vposition = hn::Set(di, position), vdocument = hn::Set(di, document);
  auto seen = hn::Zero(di);
  for_vectors(n, [&](std::size_t i, auto access) HWY_ATTR {
    auto visible = hn::Set(di, -1);
    if (key_positions != nullptr) {
      const auto later = hn::Gt(access.load(di, key_positions + i), vposition);
      visible = hn::IfThenZeroElse(later, visible);
    }
    if (key_documents != nullptr) {
      const auto same = hn::Eq(access.load(di, key_documents + i), vdocument);
      visible = hn::IfThenElseZero(same, visible);
    }
    visible = access.keep(di, visible, hn::Zero(di));
    seen = hn::Or(seen, visible);
    const auto mask = hn::RebindMask(d, hn::Ne(visible, hn::Zero(di)));
    access.store(hn::IfThenElse(mask, access.load(d, scores + i), hidden), d, scores + i);
  });
  return !hn::AllTrue(di, hn::Eq(seen, hn::Zero(di)));
}

/// Masks row r; whether its query sees any key.
bool mask_row(const ScoreBlock& block, std::int64_t r) {
  const VisibleKeys& visible = *block.visible;
  const std::int32_t* positions = block.key_positions;
  const std::int32_t* documents = block.key_documents;
  float* row = block.scores + r * block.stride;
  bool any = visible.masked < visible.columns;
  for (const KeyRun& run : visible.partial) {
    any |= mask_run(static_cast<std::size_t>(run.end - run.begin), row + run.column,
                    positions == nullptr ? nullptr : positions + run.begin,
                    documents == nullptr ? nullptr : documents + run.begin,
                    positions == nullptr ? 0 : block.query_positions[r],
                    documents == nullptr ? 0 : block.query_documents[r]);
  }
  return any;
}

float maximum_of_row(std::size_t n, const float* x) {
  const FloatTag d;
  const Floats maximum = reduce(
      n, hn::Set(d, -std::numeric_limits<float>::infinity()),
      [](Floats a, Floats b) HWY_ATTR { return hn::Max(a, b); },
      [&](std::size_t i, auto access) HWY_ATTR { return access.load(d, x + i); });
  return hn::GetLane(hn::MaxOfLanes(d, maximum));
}

/// y ← exp(x − maximum); returns their sum before rounding. y may begin where x does.
template <class T>
HWY_ATTR float exponentials_of_row(std::size_t n, T* y, const float* x, float maximum) {
  const FloatTag d;
  const Floats m = hn::Set(d, maximum);
  const auto of = [&](Floats v) HWY_ATTR { return exponential(d, hn::Sub(v, m)); };
  std::size_t i = 0;
  Floats first = hn::Zero(d), second = hn::Zero(d);
#if TRIREME_OPS_PAIRS
  if constexpr (std::is_same_v<T, Bf16>) {
    const std::size_t lanes = hn::Lanes(d);
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
      const Floats e0 = of(hn::LoadU(d, x + i)), e1 = of(hn::LoadU(d, x + i + lanes));
      first = hn::Add(first, e0);
      second = hn::Add(second, e1);
      store_two(e0, e1, y + i);
    }
  }
#endif
  const std::size_t rest = i;
  const float last = sum_of(n - rest, [&](std::size_t j, auto access) HWY_ATTR {
    const Floats e = of(access.load(d, x + rest + j));
    access.store(e, d, y + rest + j);
    return e;
  });
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(first, second))) + last;
}

template <class T>
HWY_ATTR void zero_row(std::size_t n, T* x) {
  const FloatTag d;
  for_vectors(n, [&](std::size_t i, auto access) HWY_ATTR { access.store(hn::Zero(d), d, x + i); });
}

/// Turns each row's maximum into log Σ exp, and its sum of exponentials into the inverse. A sum is
/// 0 for a row that sees nothing, else at least 1 or NaN.
HWY_ATTR void finish_sums(std::size_t rows, float* maximum, float* sum) {
  const FloatTag d;
  const Floats one = hn::Set(d, 1.0F);
  const Floats nothing = hn::Set(d, -std::numeric_limits<float>::infinity());
  for_vectors(rows, [&](std::size_t i, auto access) HWY_ATTR {
    const Floats s = access.load(d, sum + i);
    const auto none = hn::Eq(s, hn::Zero(d));
    const Floats known = hn::Max(s, one);
    const Floats log = hn::Add(access.load(d, maximum + i), hn::Log(d, known));
    access.store(hn::IfThenElse(none, nothing, hn::IfThenElse(hn::IsNaN(s), s, log)), d,
                 maximum + i);
    access.store(hn::IfThenZeroElse(none, hn::Div(one, s)), d, sum + i);
  });
}

/// Probabilities are stored as T in place: they never reach scores not yet read.
template <class T>
void softmax_of_block(const ScoreBlock& block, float* lse, float* inverse) {
  const FloatTag d;
  const auto columns = static_cast<std::size_t>(block.visible->columns);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* row = block.scores + r * block.stride;
    T* probabilities = reinterpret_cast<T*>(row);
    if (!mask_row(block, r)) {
      zero_row(columns, probabilities);
      inverse[r] = 0;
      continue;
    }
    lse[r] = maximum_of_row(columns, row);
    inverse[r] = block.dropout == nullptr ? exponentials_of_row(columns, probabilities, row, lse[r])
                                          : exponentials_of_row(columns, row, row, lse[r]);
    if (block.dropout == nullptr) continue;
    const std::uint64_t index = block.index + static_cast<std::uint64_t>(r) * block.index_stride;
    for (const KeyRun& run : block.visible->runs) {
      const float* from = row + run.column;
      T* to = probabilities + run.column;
      for_dropout(*block.dropout, index + static_cast<std::uint64_t>(run.begin),
                  static_cast<std::size_t>(run.end - run.begin),
                  [&](std::size_t i, auto access, Floats factor) HWY_ATTR {
                    access.store(hn::Mul(access.load(d, from + i), factor), d, to + i);
                  });
    }
  }
  finish_sums(static_cast<std::size_t>(block.rows), lse, inverse);
}
TRIREME_INSTANCES(softmax_of_block);

template <class T>
void scaled_rows(T* out, std::int64_t out_stride, const float* x, std::int64_t x_stride,
                 std::int64_t rows, std::int64_t columns, const float* factor) {
  const FloatTag d;
  for (std::int64_t r = 0; r < rows; ++r) {
    const bool zero = factor != nullptr && factor[r] == 0;
    const Floats f = hn::Set(d, factor == nullptr ? 1.0F : factor[r]);
    map(
        static_cast<std::size_t>(columns), out + r * out_stride,
        [&](Floats v) HWY_ATTR { return zero ? hn::Zero(d) : hn::Mul(v, f); }, x + r * x_stride);
  }
}
TRIREME_INSTANCES(scaled_rows);

template <class T>
void dots(const T* a, std::int64_t a_stride, const T* b, std::int64_t b_stride, std::int64_t rows,
          std::int64_t columns, float* delta) {
  const FloatTag d;
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* pa = a + r * a_stride;
    const T* pb = b + r * b_stride;
    delta[r] = sum_of(static_cast<std::size_t>(columns), [&](std::size_t i, auto access) HWY_ATTR {
      return hn::Mul(access.load(d, pa + i), access.load(d, pb + i));
    });
  }
}
TRIREME_INSTANCES(dots);

/// Both results are stored as T in place.
template <class T>
void softmax_gradient_block_as(const ScoreBlock& block, float* dprobabilities, const float* lse,
                               const float* delta, float scale) {
  const FloatTag d;
  const Floats vscale = hn::Set(d, scale);
  const auto columns = static_cast<std::size_t>(block.visible->columns);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* row = block.scores + r * block.stride;
    float* gradient = dprobabilities + r * block.stride;
    T* probabilities = reinterpret_cast<T*>(row);
    T* to = reinterpret_cast<T*>(gradient);
    if (!mask_row(block, r)) {
      zero_row(columns, probabilities);
      zero_row(columns, to);
      continue;
    }
    const Floats vlse = hn::Set(d, lse[r]), vdelta = hn::Set(d, delta[r]);
    const auto probability = [&](Floats score)
                                 HWY_ATTR { return exponential(d, hn::Sub(score, vlse)); };
    if (block.dropout == nullptr) {
      std::size_t i = 0;
#if TRIREME_OPS_PAIRS
      if constexpr (std::is_same_v<T, Bf16>) {
        const std::size_t lanes = hn::Lanes(d);
        for (; i + 2 * lanes <= columns; i += 2 * lanes) {
          const Floats p0 = probability(hn::LoadU(d, row + i));
          const Floats p1 = probability(hn::LoadU(d, row + i + lanes));
          const Floats centered0 = hn::Sub(hn::LoadU(d, gradient + i), vdelta);
          const Floats centered1 = hn::Sub(hn::LoadU(d, gradient + i + lanes), vdelta);
          store_two(p0, p1, probabilities + i);
          store_two(hn::Mul(hn::Mul(p0, vscale), centered0),
                    hn::Mul(hn::Mul(p1, vscale), centered1), to + i);
        }
      }
#endif
      const std::size_t rest = i;
      for_vectors(columns - rest, [&](std::size_t j, auto access) HWY_ATTR {
        const Floats p = probability(access.load(d, row + rest + j));
        const Floats centered = hn::Sub(access.load(d, gradient + rest + j), vdelta);
        access.store(p, d, probabilities + rest + j);
        access.store(hn::Mul(hn::Mul(p, vscale), centered), d, to + rest + j);
      });
      continue;
    }
    const std::uint64_t index = block.index + static_cast<std::uint64_t>(r) * block.index_stride;
    for (const KeyRun& run : block.visible->runs) {
      const float* x = row + run.column;
      const float* dx = gradient + run.column;
      T* px = probabilities + run.column;
      T* pdx = to + run.column;
      for_dropout(*block.dropout, index + static_cast<std::uint64_t>(run.begin),
                  static_cast<std::size_t>(run.end - run.begin),
                  [&](std::size_t i, auto access, Floats factor) HWY_ATTR {
                    const Floats p = probability(access.load(d, x + i));
                    const Floats centered = hn::MulSub(access.load(d, dx + i), factor, vdelta);
                    access.store(hn::Mul(p, factor), d, px + i);
                    access.store(hn::Mul(hn::Mul(p, vscale), centered), d, pdx + i);
                  });
    }
  }
}
TRIREME_INSTANCES(softmax_gradient_block_as);

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::ops {

TRIREME_EXPORT(softmax_of_block);
TRIREME_EXPORT(scaled_rows);
TRIREME_EXPORT(dots);
TRIREME_EXPORT(softmax_gradient_block_as);

template <class T>
void softmax_block(const ScoreBlock& block, float* lse, float* inverse) {
  TRIREME_KERNEL(softmax_of_block, T)(block, lse, inverse);
}
template void softmax_block<float>(const ScoreBlock&, float*, float*);
template void softmax_block<Bf16>(const ScoreBlock&, float*, float*);

void scale_rows(float* out, std::int64_t out_stride, const float* x, std::int64_t x_stride,
                std::int64_t rows, std::int64_t columns, const float* factor) {
  TRIREME_KERNEL(scaled_rows, float)(out, out_stride, x, x_stride, rows, columns, factor);
}

void scale_rows(Bf16* out, std::int64_t out_stride, const float* x, std::int64_t x_stride,
                std::int64_t rows, std::int64_t columns, const float* factor) {
  TRIREME_KERNEL(scaled_rows, Bf16)(out, out_stride, x, x_stride, rows, columns, factor);
}

void row_dots(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
              std::int64_t rows, std::int64_t columns, float* delta) {
  TRIREME_KERNEL(dots, float)(a, a_stride, b, b_stride, rows, columns, delta);
}

void row_dots(const Bf16* a, std::int64_t a_stride, const Bf16* b, std::int64_t b_stride,
              std::int64_t rows, std::int64_t columns, float* delta) {
  TRIREME_KERNEL(dots, Bf16)(a, a_stride, b, b_stride, rows, columns, delta);
}

template <class T>
void softmax_gradient_block(const ScoreBlock& block, float* dprobabilities, const float* lse,
                            const float* delta, float scale) {
  TRIREME_KERNEL(softmax_gradient_block_as, T)(block, dprobabilities, lse, delta, scale);
}
template void softmax_gradient_block<float>(const ScoreBlock&, float*, const float*, const float*,
                                            float);
template void softmax_gradient_block<Bf16>(const ScoreBlock&, float*, const float*, const float*,
                                           float);

}  // namespace trireme::ops
#endif  // HWY_ONCE
