// Powers of two as accurate as bf16 results need. Compiled once per instruction set (Highway's
// include guard, hence no #pragma once).
#if defined(TRIREME_OPS_CPU_NARROW_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_OPS_CPU_NARROW_INL_HPP
#undef TRIREME_OPS_CPU_NARROW_INL_HPP
#else
#define TRIREME_OPS_CPU_NARROW_INL_HPP
#endif

#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

constexpr float log2_e = 1.44269504F;

/// The maximum and minimum of v and a bound; NaN stays NaN.
HWY_INLINE Floats at_least(float bound, Floats v) {
  const Floats greater = hn::Max(hn::Set(FloatTag(), bound), v);
#if HWY_TARGET <= HWY_AVX2
  return greater;  // x86 returns the second operand if one is a NaN
#else
  return hn::IfThenElse(hn::IsNaN(v), v, greater);
#endif
}
HWY_INLINE Floats at_most(float bound, Floats v) {
  const Floats smaller = hn::Min(hn::Set(FloatTag(), bound), v);
#if HWY_TARGET <= HWY_AVX2
  return smaller;
#else
  return hn::IfThenElse(hn::IsNaN(v), v, smaller);
#endif
}

#if TRIREME_OPS_AVX512

// AVX-512 has instructions for t − ⌊t⌋ and for scaling by powers of two. Its approximate inverses
// are not used: their bits differ between processors.

/// 2^(t − ⌊t⌋) with a relative error of 8.3e-8 (five terms beside the 1) or 2.9e-6 (four; Remez).
template <int terms>
HWY_INLINE __m512 power_of_rest(__m512 t) {
  static_assert(terms == 4 || terms == 5);
  constexpr float four[] = {0.0134266843F, 0.0522424742F, 0.241280205F, 0.693044845F};
  constexpr float five[] = {0.00186713007F, 0.00901703032F, 0.0557999131F, 0.240164450F,
                            0.693151312F};
  const float* c = terms == 4 ? four : five;
  const __m512 f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF);
  __m512 p = _mm512_set1_ps(c[0]);
  for (int i = 1; i < terms; ++i) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c[i]));
  return _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
}

/// 2ᵗ as above; t is at least −126; +∞ from 128 on; NaN stays NaN.
template <int terms>
HWY_INLINE Floats power_of_two(Floats t) {
  // Subnormal results would take fifty times as long.
  const __m512 above = at_least(-126.0F, t).raw;
  return Floats{_mm512_scalef_ps(power_of_rest<terms>(above), above)};
}

/// The same, but 0 for t below −126.
template <int terms>
HWY_INLINE Floats power_of_two_or_zero(Floats t) {
  const __mmask16 counts = _mm512_cmp_ps_mask(t.raw, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  return Floats{_mm512_maskz_scalef_ps(counts, power_of_rest<terms>(t.raw), t.raw)};
}

#else

/// 2ᵗ within 2e-7; t is at least −126; +∞ from 128 on; NaN stays NaN. 2^f for |f| ≤ ½ is
/// 1 + f·p(f) of minimax relative error, always with five terms.
template <int terms>
HWY_INLINE Floats power_of_two(Floats t) {
  const FloatTag d;
  const WordsTag words;
  t = at_least(-126.0F, at_most(128.0F, t));
  const Floats rounder = hn::Set(d, 12583039.0F);  // as in `exponential`
  const Floats shifted = hn::Add(t, rounder);
  const Floats f = hn::Sub(t, hn::Sub(shifted, rounder));
  Floats p = hn::MulAdd(hn::Set(d, 0.00132647273F), f, hn::Set(d, 0.00967151299F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555073358F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240222424F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693147004F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(words, shifted))));
}

template <int terms>
HWY_INLINE Floats power_of_two_or_zero(Floats t) {
  const auto small = hn::Lt(t, hn::Set(FloatTag(), -126.0F));
  return hn::IfThenZeroElse(small, power_of_two<terms>(t));
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
