// Vector helpers, compiled once per instruction set (Highway's include guard, hence no #pragma
// once).
#if defined(TRIREME_OPS_CPU_SIMD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_OPS_CPU_SIMD_INL_HPP
#undef TRIREME_OPS_CPU_SIMD_INL_HPP
#else
#define TRIREME_OPS_CPU_SIMD_INL_HPP
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

// Whether masked loads and stores of 32-bit lanes leave masked-off memory untouched.
#undef TRIREME_OPS_MASKED_MEMORY
#if HWY_TARGET == HWY_AVX2 || !HWY_MEM_OPS_MIGHT_FAULT
#define TRIREME_OPS_MASKED_MEMORY 1
#else
#define TRIREME_OPS_MASKED_MEMORY 0
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

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
  /// `v` where the lane exists, else `other`.
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
  template <class D>
  HWY_INLINE hn::Vec<D> keep(D d, hn::Vec<D> v, hn::Vec<D> other) const {
    return hn::IfThenElse(hn::FirstN(d, count), v, other);
  }
};

/// body(i, access) for the vectors of [0, n): the remainder runs the same body on part of a vector,
/// so that an element's bits do not depend on where it lies.
template <class Body>
HWY_INLINE void for_vectors(std::size_t n, const Body& body) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, Whole{});
  if (i < n) body(i, Part{n - i});
}

/// y[i] = body(inputs[i]...).
template <class Body, class... Inputs>
HWY_INLINE void map(std::size_t n, float* y, const Body& body, const Inputs*... inputs) {
  const FloatTag d;
  for_vectors(n, [&](std::size_t i, auto access)
                     HWY_ATTR { access.store(body(access.load(d, inputs + i)...), d, y + i); });
}

/// Combines body(i, access) over [0, n) lane by lane, in four chains joined as ((0,1),(2,3)): an
/// order that depends on n alone.
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

/// exp(x) for x ≤ 88: 0 below −104; NaN stays NaN (Highway's turns it into 0, which would hide it).
template <class D>
HWY_INLINE hn::Vec<D> exponential(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
