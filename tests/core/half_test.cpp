#include "trireme/core/half.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace trireme {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

struct Format {
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);
  std::uint16_t infinite;  // positive infinity
};
constexpr Format formats[] = {{bf16_to_float, float_to_bf16, 0x7f80},
                              {fp16_to_float, float_to_fp16, 0x7c00}};

TEST(Half, EveryValueSurvivesARoundTrip) {
  for (const Format& format : formats) {
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
      const auto value = static_cast<std::uint16_t>(bits);
      const float wide = format.widen(value);
      if ((bits & 0x7fff) > format.infinite) {
        ASSERT_TRUE(std::isnan(wide)) << bits;
        ASSERT_TRUE(std::isnan(format.widen(format.narrow(wide)))) << bits;
      } else {
        ASSERT_EQ(format.narrow(wide), value) << bits;
      }
    }
  }
}

// Neighbors a < b, their midpoint (exact in fp32) and the adjacent fp32 numbers decide rounding
// everywhere; the value after the largest finite one is one unit in the last place above it.
TEST(Half, RoundsToNearestAndTiesToEven) {
  for (const Format& format : formats) {
    for (std::uint32_t bits = 0; bits < format.infinite; ++bits) {
      const auto low = static_cast<std::uint16_t>(bits);
      const auto high = static_cast<std::uint16_t>(bits + 1);
      const double a = format.widen(low);
      const double before = high == format.infinite
                                ? format.widen(static_cast<std::uint16_t>(bits - 1))
                                : std::numeric_limits<double>::quiet_NaN();
      const double b = high == format.infinite ? a + (a - before) : double{format.widen(high)};
      const auto middle = static_cast<float>((a + b) / 2);
      if (double{middle} != (a + b) / 2) continue;  // bf16 below fp32's own subnormals
      for (const float sign : {1.0F, -1.0F}) {
        const auto mark = static_cast<std::uint16_t>(sign < 0 ? 0x8000 : 0);
        ASSERT_EQ(format.narrow(sign * middle), mark | (low % 2 == 0 ? low : high)) << bits;
        ASSERT_EQ(format.narrow(sign * std::nextafter(middle, 0.0F)), mark | low) << bits;
        ASSERT_EQ(format.narrow(sign * std::nextafter(middle, infinity)), mark | high) << bits;
      }
    }
  }
}

TEST(Half, KnownValues) {
  EXPECT_EQ(float_to_fp16(1.0F), 0x3c00);
  EXPECT_EQ(float_to_fp16(-2.0F), 0xc000);
  EXPECT_EQ(float_to_fp16(65504.0F), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_fp16(0x1p-24F), 0x0001);
  EXPECT_EQ(float_to_fp16(-infinity), 0xfc00);
  EXPECT_EQ(fp16_to_float(0x3555), 0.333251953125F);
  EXPECT_EQ(float_to_bf16(1.0F), 0x3f80);
  EXPECT_EQ(float_to_bf16(infinity), 0x7f80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  // A NaN whose payload is only in the low half must not become infinity.
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(std::bit_cast<float>(0x7f800001U)))));
}

TEST(Half, RoundingByAnAddendIsUnbiased) {
  const float value = std::bit_cast<float>(0x3f804000U);  // a quarter of the way between neighbors
  int up = 0;
  for (std::uint32_t addend = 0; addend < 65536; ++addend) {
    const std::uint16_t rounded = float_to_bf16_up_by(value, addend);
    ASSERT_TRUE(rounded == 0x3f80 || rounded == 0x3f81);
    up += rounded == 0x3f81;
  }
  EXPECT_EQ(up, 16384);
  EXPECT_EQ(float_to_bf16_up_by(bf16_to_float(0xbf81), 65535), 0xbf81);  // nothing is cut off
  EXPECT_EQ(float_to_bf16_up_by(infinity, 65535), 0x7f80);
  EXPECT_TRUE(std::isnan(
      bf16_to_float(float_to_bf16_up_by(std::numeric_limits<float>::quiet_NaN(), 65535))));
}

}  // namespace
}  // namespace trireme
