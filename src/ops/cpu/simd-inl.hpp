// Vector helpers, compiled once per instruction set: Highway's guard, hence no #pragma once.
#if defined(TRIREME_OPS_CPU_SIMD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_OPS_CPU_SIMD_INL_HPP
#undef TRIREME_OPS_CPU_SIMD_INL_HPP
#else
#define TRIREME_OPS_CPU_SIMD_INL_HPP
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "prefetch.hpp"
#include "storage.hpp"

// Whether masked loads and stores of 32-bit lanes leave masked-off memory untouched.
#undef TRIREME_OPS_MASKED_MEMORY
#if HWY_TARGET == HWY_AVX2 || !HWY_MEM_OPS_MIGHT_FAULT
#define TRIREME_OPS_MASKED_MEMORY 1
#else
#define TRIREME_OPS_MASKED_MEMORY 0
#endif

// Whether this is AVX-512. Targets of other processors have greater numbers.
#undef TRIREME_OPS_AVX512
#if HWY_TARGET <= HWY_AVX3
#define TRIREME_OPS_AVX512 1
#else
#define TRIREME_OPS_AVX512 0
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;
using HalvesTag = hn::Rebind<std::uint16_t, FloatTag>;
using Halves = hn::Vec<HalvesTag>;

/// fp32 from the bits of bf16.
HWY_INLINE Floats widen_bf16(Halves bits) {
  const hn::RebindToUnsigned<FloatTag> words;
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(words, bits)));
}

using WordsTag = hn::RebindToUnsigned<FloatTag>;
using Words = hn::Vec<WordsTag>;

/// Bits whose upper half is v rounded to bf16, ties to even; NaN stays NaN.
HWY_INLINE Words round_words(Floats v) {
  const WordsTag words;
  const auto bits = hn::BitCast(words, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1U));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(words, std::uint32_t{0x7fffU})));
  const auto quiet = hn::Or(bits, hn::Set(words, std::uint32_t{0x400000U}));
  return hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(v)), quiet, rounded);
}

/// v rounded to bf16, ties to even, as fp32.
HWY_INLINE Floats nearest_bf16(Floats v) {
  const WordsTag words;
  return hn::BitCast(FloatTag(), hn::And(round_words(v), hn::Set(words, 0xffff0000U)));
}

/// float_to_bf16 on vectors.
HWY_INLINE Halves round_bf16(Floats v) {
  return hn::TruncateTo(HalvesTag(), hn::ShiftRight<16>(round_words(v)));
}

#undef TRIREME_OPS_PAIRS
#if HWY_TARGET != HWY_SCALAR
#define TRIREME_OPS_PAIRS 1
using PairTag = hn::Repartition<std::uint16_t, FloatTag>;

/// Two vectors of bf16, separated into elements of even and of odd index: cheaper than consecutive
/// vectors, for elementwise operations.
struct FloatPair {
  Floats even, odd;
};
HWY_INLINE FloatPair load_pair(const Bf16* p) {
  const WordsTag words;
  const auto bits =
      hn::BitCast(words, hn::LoadU(PairTag(), reinterpret_cast<const std::uint16_t*>(p)));
  return {hn::BitCast(FloatTag(), hn::ShiftLeft<16>(bits)),
          hn::BitCast(FloatTag(), hn::And(bits, hn::Set(words, 0xffff0000U)))};
}
/// round_words for values computed from bf16, whose NaN has a lower half of 0 and stays a NaN.
HWY_INLINE Words round_computed(Floats v) {
  const WordsTag words;
  const auto bits = hn::BitCast(words, v);
#if TRIREME_OPS_AVX512
  const auto odd = hn::TestBit(bits, hn::Set(words, std::uint32_t{0x10000U}));
  return hn::Add(bits, hn::IfThenElse(odd, hn::Set(words, std::uint32_t{0x8000U}),
                                      hn::Set(words, std::uint32_t{0x7fffU})));
#else
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1U));
  return hn::Add(bits, hn::Add(odd, hn::Set(words, std::uint32_t{0x7fffU})));
#endif
}
/// Stores values computed from bf16. `streamed`: bypasses the caches; p is aligned to a vector.
template <bool streamed>
HWY_INLINE void store_pair(const FloatPair& v, Bf16* p) {
  const PairTag d;
  const auto even = hn::BitCast(d, hn::ShiftRight<16>(round_computed(v.even)));
  const auto both = hn::OddEven(hn::BitCast(d, round_computed(v.odd)), even);
  auto* to = reinterpret_cast<std::uint16_t*>(p);
  if constexpr (streamed) {
    hn::Stream(both, d, to);
  } else {
    hn::StoreU(both, d, to);
  }
}
/// Stores two consecutive vectors.
HWY_INLINE void store_two(Floats first, Floats second, Bf16* p) {
  const PairTag d;
  const auto both =
      hn::ConcatOdd(d, hn::BitCast(d, round_words(second)), hn::BitCast(d, round_words(first)));
  hn::StoreU(both, d, reinterpret_cast<std::uint16_t*>(p));
}
#else
#define TRIREME_OPS_PAIRS 0
#endif

/// Access to a whole vector of memory.
struct Whole {
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p) const {
    return hn::LoadU(d, p);
  }
  template <class D>
  HWY_INLINE void store(hn::Vec<D> v, D d, hn::TFromD<D>* p) const {
    hn::StoreU(v, d, p);
  }
  HWY_INLINE Floats load(FloatTag, const Bf16* p) const {
    return widen_bf16(hn::LoadU(HalvesTag(), reinterpret_cast<const std::uint16_t*>(p)));
  }
  HWY_INLINE void store(Floats v, FloatTag, Bf16* p) const {
    hn::StoreU(round_bf16(v), HalvesTag(), reinterpret_cast<std::uint16_t*>(p));
  }
  /// `v` in existing lanes, else `other`.
  template <class D>
  HWY_INLINE hn::Vec<D> keep(D, hn::Vec<D> v, hn::Vec<D>) const {
    return v;
  }
};

/// Access to the first `count` lanes only; the others read as zero and are not written.
struct Part {
  std::size_t count;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p) const {
#if TRIREME_OPS_MASKED_MEMORY
    return hn::MaskedLoad(hn::FirstN(d, count), d, p);
#else
    HWY_ALIGN hn::TFromD<D> padded[hn::MaxLanes(D())] = {};
    std::memcpy(padded, p, count * sizeof(padded[0]));
    return hn::Load(d, padded);
#endif
  }
  template <class D>
  HWY_INLINE void store(hn::Vec<D> v, D d, hn::TFromD<D>* p) const {
#if TRIREME_OPS_MASKED_MEMORY
    hn::BlendedStore(v, hn::FirstN(d, count), d, p);
#else
    HWY_ALIGN hn::TFromD<D> padded[hn::MaxLanes(D())];
    hn::Store(v, d, padded);
    std::memcpy(p, padded, count * sizeof(padded[0]));
#endif
  }
  HWY_INLINE Floats load(FloatTag, const Bf16* p) const {
    HWY_ALIGN std::uint16_t padded[hn::MaxLanes(HalvesTag())] = {};
    std::memcpy(padded, p, count * sizeof(padded[0]));
    return widen_bf16(hn::Load(HalvesTag(), padded));
  }
  HWY_INLINE void store(Floats v, FloatTag, Bf16* p) const {
    HWY_ALIGN std::uint16_t padded[hn::MaxLanes(HalvesTag())];
    hn::Store(round_bf16(v), HalvesTag(), padded);
    std::memcpy(p, padded, count * sizeof(padded[0]));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> keep(D d, hn::Vec<D> v, hn::Vec<D> other) const {
    return hn::IfThenElse(hn::FirstN(d, count), v, other);
  }
};

/// body(i, access) for the vectors of [0, n). The remainder runs the same body on part of a vector,
/// so that an element's bits do not depend on its position.
template <class Body>
HWY_INLINE void for_vectors(std::size_t n, const Body& body) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, Whole{});
  if (i < n) body(i, Part{n - i});
}

/// Input whose elements `distance` further on are prefetched as it is read.
template <class T>
struct Prefetched {
  const T* first;
  std::ptrdiff_t distance;
  HWY_INLINE operator const T*() const { return first; }
  HWY_INLINE Prefetched operator+(std::size_t i) const { return {first + i, distance}; }
};
template <class T>
HWY_INLINE Prefetched<T> prefetched(const T* first) {
  return {first, fetch_distance / static_cast<std::int64_t>(sizeof(T))};
}

/// Prefetches one cache line, which need not exist.
template <class T>
HWY_INLINE void prefetch_line(const Prefetched<T>& x) {
  const auto ahead = static_cast<std::uintptr_t>(x.distance) * sizeof(T);
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(x.first) + ahead;
  __builtin_prefetch(reinterpret_cast<const void*>(address));  // NOLINT(performance-no-int-to-ptr)
}
template <class T>
HWY_INLINE void prefetch_line(const T*) {}

/// Whether Inputs, pointers or Prefetched, are all of bf16.
template <class... Inputs>
constexpr bool narrow_inputs = (true && ... && std::is_convertible_v<Inputs, const Bf16*>);

template <bool streamed, class T, class Body, class... Inputs>
HWY_INLINE void map_as(std::size_t n, T* y, const Body& body, Inputs... inputs) {
  const FloatTag d;
  std::size_t i = 0;
#if TRIREME_OPS_PAIRS
  if constexpr (std::is_same_v<T, Bf16> && narrow_inputs<Inputs...>) {
    const std::size_t two = 2 * hn::Lanes(d);
    for (; i + two <= n; i += two) {
      (prefetch_line(inputs + i), ...);
      const auto apply = [&](auto... pairs) HWY_ATTR {
        return FloatPair{body(pairs.even...), body(pairs.odd...)};
      };
      store_pair<streamed>(apply(load_pair(inputs + i)...), y + i);
    }
  }
#endif
  if constexpr (streamed && std::is_same_v<T, float>) {
    const std::size_t lanes = hn::Lanes(d);
    for (; i + lanes <= n; i += lanes) {
      (prefetch_line(inputs + i), ...);
      hn::Stream(body(Whole{}.load(d, inputs + i)...), d, y + i);
    }
  }
  const std::size_t rest = i;
  for_vectors(n - rest, [&](std::size_t j, auto access) HWY_ATTR {
    (prefetch_line(inputs + rest + j), ...);
    access.store(body(access.load(d, inputs + rest + j)...), d, y + rest + j);
  });
}

/// y[i] = body(inputs[i]...); each input a pointer or Prefetched.
template <class T, class Body, class... Inputs>
HWY_INLINE void map(std::size_t n, T* y, const Body& body, Inputs... inputs) {
  map_as<false>(n, y, body, inputs...);
}

/// The same; with `streamed` y bypasses the caches if it is aligned to a vector. Before another
/// thread reads y, call end_stream.
template <class T, class Body, class... Inputs>
HWY_INLINE void map_out(bool streamed, std::size_t n, T* y, const Body& body, Inputs... inputs) {
  const std::size_t vector = hn::Lanes(FloatTag()) * sizeof(float);
  if (streamed && reinterpret_cast<std::uintptr_t>(y) % vector == 0) {
    map_as<true>(n, y, body, inputs...);
  } else {
    map_as<false>(n, y, body, inputs...);
  }
}

/// Combines body(i, access) over [0, n) by lanes, in four chains joined as ((0,1),(2,3)).
template <class Body, class Combine>
HWY_INLINE Floats reduce(std::size_t n, Floats identity, const Combine& combine, const Body& body) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  Floats chain0 = identity, chain1 = identity, chain2 = identity, chain3 = identity;
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    chain0 = combine(chain0, body(i, Whole{}));
    chain1 = combine(chain1, body(i + lanes, Whole{}));
    chain2 = combine(chain2, body(i + 2 * lanes, Whole{}));
    chain3 = combine(chain3, body(i + 3 * lanes, Whole{}));
  }
  for (; i + lanes <= n; i += lanes) chain0 = combine(chain0, body(i, Whole{}));
  if (i < n) {
    const Part part{n - i};
    chain1 = combine(chain1, part.keep(d, body(i, part), identity));
  }
  return combine(combine(chain0, chain1), combine(chain2, chain3));
}

/// Σ body(i, access) over [0, n).
template <class Body>
HWY_INLINE float sum_of(std::size_t n, const Body& body) {
  const FloatTag d;
  const auto add = [](Floats a, Floats b) HWY_ATTR { return hn::Add(a, b); };
  return hn::GetLane(hn::SumOfLanes(d, reduce(n, hn::Zero(d), add, body)));
}

/// `count` sums over [0, n); body(sums, inputs[i]...) adds the vectors at i. Four chains are joined
/// as ((0,1),(2,3)): the order depends on n and on the type. In bf16, elements of even and of odd
/// index have separate chains.
template <int count, class Body, class... Inputs>
HWY_INLINE std::array<float, count> fold(std::size_t n, const Body& body, Inputs... inputs) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  Floats chains[4][count];
  for (auto& chain : chains) {
    for (Floats& sum : chain) sum = hn::Zero(d);
  }
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
#if TRIREME_OPS_PAIRS
    if constexpr (narrow_inputs<Inputs...>) {
      for (std::size_t j = 0; j < 2; ++j) {
        const std::size_t at = i + 2 * j * lanes;
        (prefetch_line(inputs + at), ...);
        const auto add = [&](auto... pairs) HWY_ATTR {
          body(chains[2 * j], pairs.even...);
          body(chains[2 * j + 1], pairs.odd...);
        };
        add(load_pair(inputs + at)...);
      }
      continue;
    }
#endif
    for (std::size_t j = 0; j < 4; ++j) {
      (prefetch_line(inputs + i + j * lanes), ...);
      body(chains[j], Whole{}.load(d, inputs + i + j * lanes)...);
    }
  }
  for (; i + lanes <= n; i += lanes) body(chains[0], Whole{}.load(d, inputs + i)...);
  if (i < n) {
    const Part part{n - i};
    Floats with[count];
    for (int k = 0; k < count; ++k) with[k] = chains[1][k];
    body(with, part.load(d, inputs + i)...);
    for (int k = 0; k < count; ++k) chains[1][k] = part.keep(d, with[k], chains[1][k]);
  }
  std::array<float, count> sums;
  for (int k = 0; k < count; ++k) {
    sums[static_cast<std::size_t>(k)] = hn::GetLane(hn::SumOfLanes(
        d, hn::Add(hn::Add(chains[0][k], chains[1][k]), hn::Add(chains[2][k], chains[3][k]))));
  }
  return sums;
}

/// exp(x) for x ≤ 88, within 2 ulp; +∞ at 89; 0 below −87. NaN stays NaN (Highway's exp makes it
/// 0). x = n·ln 2 + r; 1 + r + r²·p(r) has minimax relative error for |r| ≤ ½·ln 2 (Remez: 3.1e-9).
template <class D>
HWY_INLINE hn::Vec<D> exponential(D d, hn::Vec<D> x) {
  const auto rounder = hn::Set(d, 12583039.0F);  // 1.5·2²³ + 127: its sum's low bits are n + 127
  const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504F), rounder);
  const auto n = hn::Sub(shifted, rounder);
  // ln 2 in two parts; n times the first, of 15 bits, is exact.
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693145751953125F), x);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6F), r);
  auto p = hn::MulAdd(hn::Set(d, 0.00138145406F), r, hn::Set(d, 0.00836874545F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0416683890F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665211F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.499999940F));
  const auto mantissa = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0F));
#if TRIREME_OPS_AVX512
  const __mmask16 counts = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-87.0F), _CMP_NLT_UQ);
  return hn::Vec<D>{_mm512_maskz_scalef_ps(counts, mantissa.raw, n.raw)};
#else
  const hn::RebindToUnsigned<D> bits;
  const auto power = hn::ShiftLeft<23>(hn::BitCast(bits, shifted));
  const auto value = hn::Mul(mantissa, hn::BitCast(d, power));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0F)), value);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
