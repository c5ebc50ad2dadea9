// The CUDA kernel's per-thread sums, compiled by the host compiler, against reduce_tree.
#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/core/half.hpp"
#include "trireme/core/random.hpp"
#include "trireme/device/device.hpp"

#include "../../src/device/cuda/tree.cuh"

namespace trireme::device {
namespace {

constexpr int count = 64;

template <class Type>
std::vector<typename Type::Stored> values(std::uint32_t rank) {
  std::vector<typename Type::Stored> result;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    const int exponent = static_cast<int>(random_bits({5, Purpose::dropout, rank}, at) % 13) - 6;
    result.push_back(Type::store(static_cast<typename Type::Value>(
        1000 * std::ldexp(normal({4, Purpose::dropout, rank}, at), exponent))));
  }
  return result;
}

template <class Type, class Join, int fixed, int width>
void expect_the_tree(DType type, Reduction reduction, int ranks) {
  using Stored = typename Type::Stored;
  std::vector<std::vector<Stored>> inputs;
  std::vector<const std::byte*> places;
  kernels::List<64> list{};
  for (int r = 0; r < ranks; ++r) inputs.push_back(values<Type>(static_cast<std::uint32_t>(r)));
  for (const auto& input : inputs) {
    list.at[places.size()] = reinterpret_cast<const char*>(input.data());
    places.push_back(reinterpret_cast<const std::byte*>(input.data()));
  }
  std::vector<Stored> expected(count), found(count);
  reduce_tree(type, reduction, places, reinterpret_cast<std::byte*>(expected.data()), count);
  for (int i = 0; i < count; i += width) {
    kernels::add_stretch<Type, Join, fixed, width>(list, ranks, found.data(), i);
  }
  EXPECT_EQ(found, expected) << name_of(type) << ", " << ranks << " ranks";
}

template <class Type>
void try_type(DType type) {
  constexpr int width = 16 / static_cast<int>(sizeof(typename Type::Stored));
  for (int ranks = 1; ranks <= 40; ++ranks) {
    expect_the_tree<Type, kernels::Sum, 0, width>(type, Reduction::sum, ranks);
    expect_the_tree<Type, kernels::Max, 0, 1>(type, Reduction::max, ranks);
  }
  expect_the_tree<Type, kernels::Sum, 2, width>(type, Reduction::sum, 2);
  expect_the_tree<Type, kernels::Sum, 4, width>(type, Reduction::sum, 4);
  expect_the_tree<Type, kernels::Sum, 8, width>(type, Reduction::sum, 8);
}

TEST(TreeKernel, AddsLikeTheHost) {
  try_type<kernels::Plain<float>>(DType::f32);
  try_type<kernels::Plain<double>>(DType::f64);
  try_type<kernels::Plain<std::int64_t>>(DType::i64);
  try_type<kernels::Bf16>(DType::bf16);
  try_type<kernels::Fp16>(DType::f16);
}

TEST(TreeKernel, ConvertsLikeTheHost) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(kernels::Bf16::load(half)),
              std::bit_cast<std::uint32_t>(bf16_to_float(half)));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(kernels::Fp16::load(half)),
              std::bit_cast<std::uint32_t>(fp16_to_float(half)));
    // Each exponent, and values around the midpoint of two neighbors.
    for (const std::uint32_t low : {0U, 1U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U}) {
      const auto value = std::bit_cast<float>(i << 16 | low);
      ASSERT_EQ(kernels::Bf16::store(value), float_to_bf16(value)) << i << " " << low;
      ASSERT_EQ(kernels::Fp16::store(value), float_to_fp16(value)) << i << " " << low;
    }
  }
}

TEST(TreeKernel, DetectsContributionsAtEvenDistances) {
  std::vector<std::byte> memory(100'000), own(64);
  for (int ranks = 3; ranks <= 80; ++ranks) {
    for (const int odd : {0, 1, 2, ranks / 2, ranks - 1}) {
      for (const std::byte* elsewhere : {own.data(), memory.data() + 99'000}) {
        std::vector<const std::byte*> places;
        for (int r = 0; r < ranks; ++r) {
          places.push_back(r == odd ? elsewhere : memory.data() + (r < odd ? r : r - 1) * 192);
        }
        kernels::Lanes lanes{};
        ASSERT_TRUE(kernels::find_lanes(places.data(), ranks, lanes)) << ranks << " " << odd;
        for (int r = 0; r < ranks; ++r) {
          ASSERT_EQ(lanes(r), reinterpret_cast<const char*>(places[static_cast<std::size_t>(r)]));
        }
      }
    }
  }
  std::vector<const std::byte*> wild = {&memory[0], &memory[64], &memory[192], &memory[200],
                                        &memory[512]};
  kernels::Lanes lanes{};
  EXPECT_FALSE(kernels::find_lanes(wild.data(), 5, lanes));
}

TEST(ConvertKernel, ConvertsStretchesAsTheHost) {
  const auto wide = values<kernels::Plain<float>>(3);
  std::vector<std::uint16_t> expected(count), found(count);
  convert_elements(DType::bf16, reinterpret_cast<std::byte*>(expected.data()),
                   reinterpret_cast<const std::byte*>(wide.data()), count);
  std::vector<float> expected_back(count), found_back(count);
  convert_elements(DType::f32, reinterpret_cast<std::byte*>(expected_back.data()),
                   reinterpret_cast<const std::byte*>(expected.data()), count);
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(expected[static_cast<std::size_t>(i)],
              float_to_bf16(wide[static_cast<std::size_t>(i)]));
  }
  for (int i = 0; i < count; i += 4) {
    kernels::convert_stretch<kernels::Bf16, kernels::Plain<float>, 4>(found.data(), wide.data(), i);
    kernels::convert_stretch<kernels::Plain<float>, kernels::Bf16, 4>(found_back.data(),
                                                                      found.data(), i);
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(found_back, expected_back);
}

}  // namespace
}  // namespace trireme::device
