// Arrays of bf16 with fp32 arrays of the same values.
#pragma once

#include "support.hpp"

namespace trireme::ops {

using Narrow = ArrayOf<Bf16>;

/// Unit roundoff of bf16.
inline constexpr double narrow_roundoff = 1.0 / (1 << 8);

/// Each element rounded to the nearest bf16.
inline Narrow narrowed(const Array& x, std::int64_t gap = 0) {
  const std::vector<float> values = x.values();
  Narrow y(x.shape(), gap);
  for (std::int64_t i = 0; i < y.elements(); ++i) narrow(values[static_cast<std::size_t>(i)], y[i]);
  return y;
}

inline Array widened(const Narrow& x) {
  Array y(x.shape());
  for (std::int64_t i = 0; i < x.elements(); ++i) y[i] = ops::widened(x[i]);
  return y;
}

/// The same random values in both types.
struct Both {
  Both(const Shape& shape, std::uint32_t stream, float scale = 1, std::int64_t gap = 0)
      : narrow(narrowed(random_array(shape, stream, scale), gap)), wide(widened(narrow)) {}
  Narrow narrow;
  Array wide;
};

/// A bf16 output filled with NaN.
inline Narrow poisoned(const Shape& shape, std::int64_t gap = 0) {
  Narrow x(shape, gap);
  for (std::int64_t i = 0; i < x.elements(); ++i) x[i] = Narrow::sentinel();
  return x;
}

/// Each element is that of `wide` rounded `roundings` times, plus an error of at most `more`.
inline void expect_rounded(const Narrow& actual, const Array& wide, const std::string& what,
                           double roundings = 1, const std::vector<double>& more = {}) {
  ASSERT_EQ(actual.elements(), wide.elements()) << what;
  int failures = 0;
  for (std::int64_t i = 0; i < wide.elements() && failures < 3; ++i) {
    const double value = ops::widened(actual[i]), expected = wide[i];
    // fp32's own order of operations may differ by a few roundings, which a factor of 2⁻¹⁰ covers;
    // 2⁻¹³³ is half of the least subnormal bf16.
    const double bound = roundings * narrow_roundoff * std::abs(expected) * (1 + 1.0 / 1024) +
                         std::ldexp(1.0, -133) +
                         (more.empty() ? 0 : more[static_cast<std::size_t>(i)]);
    if (std::abs(value - expected) <= bound) continue;
    ++failures;
    ADD_FAILURE() << what << "[" << i << "] = " << value << ", expected " << expected << " within "
                  << bound;
  }
  EXPECT_TRUE(actual.gaps_untouched()) << what << ": memory between rows was written";
}

/// Both have the same bits.
inline void expect_same(const Narrow& a, const Narrow& b, const std::string& what) {
  ASSERT_EQ(a.elements(), b.elements()) << what;
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    ASSERT_EQ(a[i].bits, b[i].bits) << what << "[" << i << "]";
  }
}

}  // namespace trireme::ops
