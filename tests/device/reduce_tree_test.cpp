#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/core/half.hpp"
#include "trireme/core/random.hpp"
#include "trireme/device/device.hpp"

namespace trireme::device {
namespace {

template <class T>
std::vector<T> reduced(DType type, Reduction reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> contributions;
  for (const auto& input : inputs) {
    contributions.push_back(reinterpret_cast<const std::byte*>(input.data()));
  }
  std::vector<T> out(inputs[0].size());
  reduce_tree(type, reduction, contributions, reinterpret_cast<std::byte*>(out.data()),
              static_cast<std::int64_t>(out.size()));
  return out;
}

/// Numbers between 2^-12 and 2^12, so that almost every other order of addition rounds differently.
std::vector<float> wild(std::uint32_t rank, int n) {
  std::vector<float> values;
  for (int i = 0; i < n; ++i) {
    const auto x = static_cast<float>(normal({9, Purpose::dropout, rank}, i));
    values.push_back(
        std::ldexp(x, static_cast<int>(random_bits({8, Purpose::dropout, rank}, i) % 25) - 12));
  }
  return values;
}

// The specified trees, explicitly.
float expected(const std::vector<float>& x) {
  switch (x.size()) {
    case 1:
      return x[0];
    case 2:
      return x[0] + x[1];
    case 3:
      return (x[0] + x[1]) + x[2];
    case 4:
      return (x[0] + x[1]) + (x[2] + x[3]);
    case 5:
      return ((x[0] + x[1]) + (x[2] + x[3])) + x[4];
    case 6:
      return ((x[0] + x[1]) + (x[2] + x[3])) + (x[4] + x[5]);
    case 7:
      return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + x[6]);
    case 8:
      return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    default:
      return (((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]))) + x[8];
  }
}

TEST(ReduceTree, AddsInTheSpecifiedOrder) {
  constexpr int n = 2500;  // more than one block, with a remainder
  for (std::uint32_t ranks = 1; ranks <= 9; ++ranks) {
    std::vector<std::vector<float>> inputs;
    for (std::uint32_t r = 0; r < ranks; ++r) inputs.push_back(wild(r, n));
    const std::vector<float> out = reduced(DType::f32, Reduction::sum, inputs);
    for (int i = 0; i < n; ++i) {
      std::vector<float> column;
      for (const auto& input : inputs) column.push_back(input[i]);
      ASSERT_EQ(out[i], expected(column)) << ranks << " ranks, element " << i;
    }
  }
}

TEST(ReduceTree, SixteenBitSumsAreRoundedOnce) {
  constexpr int n = 1500;
  const auto check = [](DType type, auto narrow, auto widen) {
    std::vector<std::vector<std::uint16_t>> inputs(5);
    for (std::uint32_t r = 0; r < inputs.size(); ++r) {
      for (const float x : wild(r, n)) inputs[r].push_back(narrow(x));
    }
    const auto out = reduced(type, Reduction::sum, inputs);
    for (int i = 0; i < n; ++i) {
      std::vector<float> column;
      for (const auto& input : inputs) column.push_back(widen(input[i]));
      ASSERT_EQ(out[i], narrow(expected(column))) << name_of(type) << " " << i;
    }
  };
  check(DType::bf16, float_to_bf16, bf16_to_float);
  check(DType::f16, float_to_fp16, fp16_to_float);
}

TEST(ReduceTree, OutputMayBeAnyContribution) {
  constexpr int n = 2500;
  for (int own = 0; own < 5; ++own) {
    std::vector<std::vector<float>> inputs;
    std::vector<const std::byte*> contributions;
    for (std::uint32_t r = 0; r < 5; ++r) inputs.push_back(wild(r, n));
    const std::vector<float> apart = reduced(DType::f32, Reduction::sum, inputs);
    for (const auto& input : inputs) {
      contributions.push_back(reinterpret_cast<const std::byte*>(input.data()));
    }
    reduce_tree(DType::f32, Reduction::sum, contributions,
                reinterpret_cast<std::byte*>(inputs[own].data()), n);
    EXPECT_EQ(inputs[own], apart) << own;
  }
}

TEST(ReduceTree, WideTypesKeepTheirPrecision) {
  const std::int64_t large = (std::int64_t{1} << 53) + 1;  // not a double
  EXPECT_EQ(reduced<std::int64_t>(DType::i64, Reduction::sum, {{large}, {2}, {-5}})[0], large - 3);
  EXPECT_EQ(reduced<std::int64_t>(DType::i64, Reduction::max, {{-7}, {-3}, {-5}})[0], -3);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduced<std::int64_t>(DType::i64, Reduction::sum, {{most}, {1}})[0], -most - 1);
  EXPECT_EQ(reduced<double>(DType::f64, Reduction::sum, {{1}, {0x1p-52}})[0], 1 + 0x1p-52);
}

TEST(ReduceTree, MaximumKeepsNaNAtAnyPosition) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t place = 0; place < 3; ++place) {
    std::vector<std::vector<float>> inputs = {{1}, {-2}, {3}};
    EXPECT_EQ(reduced(DType::f32, Reduction::max, inputs)[0], 3.0F);
    inputs[place][0] = nan;
    EXPECT_TRUE(std::isnan(reduced(DType::f32, Reduction::max, inputs)[0])) << place;
  }
}

TEST(ReduceTree, RefusesOtherTypes) {
  EXPECT_THROW(reduced<std::int32_t>(DType::i32, Reduction::sum, {{1}}), std::logic_error);
}

}  // namespace
}  // namespace trireme::device
