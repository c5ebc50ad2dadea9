// Arrays, comparisons and the fixture of the operation tests. Every test runs once for each
// available instruction set.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/core/random.hpp"
#include "trireme/ops/ops.hpp"

#include "../../src/ops/cpu/storage.hpp"
#include "../../src/ops/cpu/targets.hpp"

namespace trireme::ops {

/// Unit roundoff of fp32: a rounded operation is off by at most this, relatively.
inline constexpr double roundoff = 1.0 / (1 << 24);

inline double logistic(double z) { return 1 / (1 + std::exp(-z)); }

/// An owned tensor with optional gaps between rows; the gaps hold a sentinel.
template <class T>
class ArrayOf {
 public:
  explicit ArrayOf(const Shape& shape, std::int64_t gap = 0) : shape_(shape) {
    const int last = shape.dimensions() - 1;
    strides_[static_cast<std::size_t>(last)] = 1;
    std::int64_t stride = shape[last] + gap;
    for (int i = last - 1; i >= 0; --i) {
      strides_[static_cast<std::size_t>(i)] = stride;
      stride *= shape[i];
    }
    if (last == 0) stride = shape[0];
    memory_.assign(static_cast<std::size_t>(stride), sentinel());
    for (std::int64_t i = 0; i < elements(); ++i) (*this)[i] = T{};
  }
  static T sentinel() {
    if constexpr (std::is_same_v<T, Bf16>) {
      return {0xffb3};  // a NaN
    } else {
      return static_cast<T>(-77);
    }
  }
  const Shape& shape() const { return shape_; }
  std::int64_t elements() const { return shape_.elements(); }
  std::int64_t extent(int dimension) const { return shape_[dimension]; }
  /// The i-th element in row-major order.
  T& operator[](std::int64_t i) { return memory_[place(i)]; }
  const T& operator[](std::int64_t i) const { return memory_[place(i)]; }
  Tensor view() { return Tensor(memory_.data(), DTypeOf<T>::value, shape_, strides_); }
  operator Tensor() { return view(); }  // NOLINT: an array converts to its view
  std::vector<T> values() const {
    std::vector<T> out;
    for (std::int64_t i = 0; i < elements(); ++i) out.push_back((*this)[i]);
    return out;
  }
  /// Whether the gaps between rows are unchanged.
  bool gaps_untouched() const {
    std::vector<bool> used(memory_.size(), false);
    for (std::int64_t i = 0; i < elements(); ++i) used[place(i)] = true;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (!used[i] && memory_[i] != sentinel()) return false;
    }
    return true;
  }

 private:
  std::size_t place(std::int64_t i) const {
    std::int64_t offset = 0;
    for (int dimension = shape_.dimensions() - 1; dimension >= 0; --dimension) {
      offset += i % shape_[dimension] * strides_[static_cast<std::size_t>(dimension)];
      i /= shape_[dimension];
    }
    return static_cast<std::size_t>(offset);
  }
  Shape shape_;
  std::array<std::int64_t, 4> strides_{};
  std::vector<T> memory_;
};

using Array = ArrayOf<float>;
using Integers = ArrayOf<std::int32_t>;

/// Uniform numbers in (−scale, scale), different for each `stream`.
inline Array random_array(const Shape& shape, std::uint32_t stream, float scale = 1.0F,
                          std::int64_t gap = 0) {
  Array x(shape, gap);
  const RandomKey key{42, Purpose::initialization, stream};
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    x[i] = scale * (2.0F * uniform(key, static_cast<std::uint64_t>(i)) - 1.0F);
  }
  return x;
}

inline Integers random_integers(const Shape& shape, std::uint32_t stream, std::int32_t below) {
  Integers x(shape);
  const RandomKey key{43, Purpose::initialization, stream};
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    x[i] = static_cast<std::int32_t>(random_bits(key, static_cast<std::uint64_t>(i)) %
                                     static_cast<std::uint32_t>(below));
  }
  return x;
}

inline std::vector<double> widen(const Array& x) {
  const std::vector<float> values = x.values();
  return {values.begin(), values.end()};
}

/// Each |actual − expected| ≤ bound. NaN never passes.
inline void expect_close(const Array& actual, const std::vector<double>& expected,
                         const std::vector<double>& bound, const std::string& what) {
  ASSERT_EQ(static_cast<std::size_t>(actual.elements()), expected.size()) << what;
  ASSERT_EQ(bound.size(), expected.size()) << what;
  int failures = 0;
  for (std::size_t i = 0; i < expected.size() && failures < 3; ++i) {
    const double value = actual[static_cast<std::int64_t>(i)];
    if (std::abs(value - expected[i]) <= bound[i]) continue;
    ++failures;
    ADD_FAILURE() << what << "[" << i << "] = " << value << ", expected " << expected[i]
                  << " within " << bound[i];
  }
  EXPECT_TRUE(actual.gaps_untouched()) << what << ": memory between rows was written";
}

/// The same bits, NaN and signed zeros included.
inline void expect_same_bits(const Array& a, const Array& b, const std::string& what) {
  ASSERT_EQ(a.elements(), b.elements()) << what;
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i]), std::bit_cast<std::uint32_t>(b[i]))
        << what << "[" << i << "]: " << a[i] << " and " << b[i];
  }
}

/// Central differences of f at x for every `step`-th element; calls check(i, derivative). With f of
/// third derivatives around 1 and values around 1: error h²/6 + 2⁻⁵²/h ≈ 1e-10 at h = 2⁻¹⁶.
inline void finite_differences(const std::function<double(const std::vector<double>&)>& f,
                               std::vector<double> x, std::size_t step,
                               const std::function<void(std::size_t, double)>& check) {
  const double h = 1.0 / (1 << 16);
  for (std::size_t i = 0; i < x.size(); i += step) {
    const double before = x[i];
    x[i] = before + h;
    const double above = f(x);
    x[i] = before - h;
    const double below = f(x);
    x[i] = before;
    check(i, (above - below) / (2 * h));
  }
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class OpsTest : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  std::unique_ptr<Ops> ops = make_cpu_ops(2);
};

inline std::vector<std::int64_t> instruction_sets() {
  std::vector<std::int64_t> sets;
  for (std::int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    sets.push_back(rest & -rest);
  }
  return sets;
}

inline std::string set_name(const testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

#define TRIREME_FOR_INSTRUCTION_SETS(suite) \
  INSTANTIATE_TEST_SUITE_P(On, suite, testing::ValuesIn(instruction_sets()), set_name)

}  // namespace trireme::ops
