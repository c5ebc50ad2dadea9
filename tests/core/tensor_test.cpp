#include "trireme/core/tensor.hpp"

#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(DType, NamesRoundTripAndSizesAreCorrect) {
  const std::pair<DType, std::size_t> sizes[] = {{DType::f32, 4}, {DType::bf16, 2}, {DType::f16, 2},
                                                 {DType::f64, 8}, {DType::i32, 4},  {DType::i64, 8},
                                                 {DType::u16, 2}, {DType::u8, 1}};
  for (const auto& [type, size] : sizes) {
    EXPECT_EQ(size_of(type), size) << name_of(type);
    EXPECT_EQ(dtype_from_name(name_of(type)), type);
  }
  EXPECT_EQ(name_of(DType::f32), "fp32");
  EXPECT_THROW(dtype_from_name("float"), Error);
}

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ((Shape{3, 48}).elements(), 144);
  EXPECT_EQ((Shape{3, 0, 2}).elements(), 0);
  EXPECT_EQ((Shape{3, 48}).to_string(), "[3, 48]");
  EXPECT_EQ((Shape{7}).to_string(), "[7]");
  EXPECT_EQ((Shape{3, 4}), (Shape{3, 4}));
  EXPECT_FALSE((Shape{3, 4}) == (Shape{3, 4, 1}));
  EXPECT_THROW((Shape{1, 2, 3, 4, 5}), std::logic_error);
  EXPECT_THROW((Shape{1, -2}), std::logic_error);
}

TEST(Tensor, AbsentUntilGivenData) {
  EXPECT_FALSE(Tensor());
  float value = 0;
  EXPECT_TRUE(Tensor(&value, {1}));
}

TEST(Tensor, SlicesShareMemoryAtTheRightOffset) {
  std::vector<float> values(2 * 3 * 4);
  std::iota(values.begin(), values.end(), 0.0F);
  const Tensor tensor(values.data(), {2, 3, 4});
  EXPECT_TRUE(tensor.contiguous());
  EXPECT_EQ(tensor.bytes(), 96U);

  const Tensor middle = tensor.slice(1, 1, 3);  // [2, 2, 4]
  EXPECT_EQ(middle.shape(), (Shape{2, 2, 4}));
  EXPECT_EQ(middle.as<float>()[0], 4.0F);
  EXPECT_EQ(middle.stride(0), 12);
  EXPECT_FALSE(middle.contiguous());
  EXPECT_THROW(middle.reshape({16}), std::logic_error);

  const Tensor row = tensor.slice(0, 1, 2).slice(1, 2, 3);  // [1, 1, 4]
  EXPECT_TRUE(row.contiguous());
  EXPECT_EQ(row.reshape({4}).as<float>()[3], 23.0F);
  EXPECT_EQ(tensor.slice(2, 3, 4).as<float>()[0], 3.0F);
  EXPECT_TRUE(tensor.slice(0, 2, 2).contiguous());
}

TEST(Tensor, TheFirstElementThatIsNotFiniteIsFound) {
  for (const DType type : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> f32(5000, -65504.0F);
      f32[4001] = f32[4500] = bad;
      const std::vector<double> f64(f32.begin(), f32.end());
      std::vector<std::uint16_t> halves;
      for (const float x : f32) {
        halves.push_back(type == DType::bf16 ? float_to_bf16(x) : float_to_fp16(x));
      }
      const void* data = halves.data();
      if (type == DType::f32) data = f32.data();
      if (type == DType::f64) data = f64.data();
      EXPECT_EQ(first_not_finite(data, 5000, type), 4001) << name_of(type);
      EXPECT_EQ(first_not_finite(data, 4001, type), 4001) << name_of(type);
    }
  }
  const std::vector<std::int32_t> ones(3, -1);
  EXPECT_EQ(first_not_finite(ones.data(), 3, DType::i32), 3);
}

TEST(Tensor, RefusesInvalidArguments) {
  std::vector<float> values(6);
  const Tensor tensor(values.data(), {2, 3});
  EXPECT_THROW(tensor.slice(0, 1, 3), std::logic_error);
  EXPECT_THROW(tensor.slice(0, 2, 1), std::logic_error);
  EXPECT_THROW(tensor.slice(2, 0, 0), std::logic_error);
  EXPECT_THROW(tensor.reshape({5}), std::logic_error);
  EXPECT_THROW(tensor.as<double>(), std::logic_error);
  EXPECT_THROW(Tensor(values.data(), DType::f32, {2, 3}, {1, 2, 0, 0}), std::logic_error);
}

}  // namespace
}  // namespace trireme
