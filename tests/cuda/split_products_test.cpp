// Products of large uneven extents in two parts (split_uneven), computed on the host.
#include <cstdint>
#include <vector>

#include "../../src/ops/cuda/libraries.hpp"
#include "harness.hpp"

namespace trireme::ops {
namespace {

/// Σ of the two parts on the host is the whole product, with the memory between rows unchanged.
TEST(SplitProducts, PartsAddUpToTheWhole) {
  const auto number = [](std::size_t i) { return static_cast<float>((i * 37 + 11) % 7) - 3; };
  constexpr std::int64_t large = 1027, small = 3;
  for (int form = 0; form < 24; ++form) {
    const bool ta = form & 1, tb = form & 2, accumulate = form & 4;
    std::int64_t extents[3] = {small, small, small};  // m, n, k
    extents[form / 8] = large;
    const auto [m, n, k] = extents;
    const auto stride = [](std::int64_t columns) { return (columns + 15) / 8 * 8; };
    std::vector<std::uint16_t> a(static_cast<std::size_t>((ta ? k : m) * stride(ta ? m : k))),
        b(static_cast<std::size_t>((tb ? n : k) * stride(tb ? k : n)));
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::uint16_t>(number(i) + 3);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<std::uint16_t>(number(i + 5) + 3);
    std::vector<float> c(static_cast<std::size_t>(m * stride(n)), 100), expected = c;
    // A product of whole numbers: only places and extents are tested.
    const auto multiply = [](const Product& p) {
      const auto at = [](const Matrix& x, std::int64_t r, std::int64_t column) {
        return static_cast<float>(static_cast<const std::uint16_t*>(x.data)[r * x.stride + column]);
      };
      for (std::int64_t r = 0; r < p.c.rows; ++r) {
        for (std::int64_t column = 0; column < p.c.columns; ++column) {
          float& to = static_cast<float*>(p.c.data)[r * p.c.stride + column];
          float sum = p.accumulate ? to : 0;
          for (std::int64_t i = 0; i < p.depth(); ++i) {
            sum += (p.transpose_a ? at(p.a, i, r) : at(p.a, r, i)) *
                   (p.transpose_b ? at(p.b, column, i) : at(p.b, i, column));
          }
          to = sum;
        }
      }
    };
    Product whole;
    whole.transpose_a = ta;
    whole.transpose_b = tb;
    whole.accumulate = accumulate;
    whole.a = {a.data(), Element::bf16, ta ? k : m, ta ? m : k, stride(ta ? m : k)};
    whole.b = {b.data(), Element::bf16, tb ? n : k, tb ? k : n, stride(tb ? k : n)};
    whole.c = {expected.data(), Element::f32, m, n, stride(n)};
    multiply(whole);
    whole.c.data = c.data();
    const auto parts = split_uneven(whole);
    // The uneven extent is one along rows in memory: of c, or of a or b.
    const bool along_rows = form / 8 == 0 ? ta : form / 8 == 1 || !ta || tb;
    ASSERT_EQ(parts.has_value(), along_rows) << "form " << form;
    if (!parts) continue;
    for (const Product& part : *parts) multiply(part);
    EXPECT_EQ(c, expected) << "form " << form;
    const Product& steps = (*parts)[1];
    for (const std::int64_t extent : {steps.c.rows, steps.c.columns, steps.depth()}) {
      EXPECT_TRUE(extent == small || extent == 1024) << extent;
    }
  }
}

TEST(SplitProducts, AreLargeUnevenAndPlain) {
  alignas(16) float memory[8] = {};
  const auto splits = [&](std::int64_t n, Element type, bool bias, std::int64_t stride = 50304) {
    Product p;
    p.a = {memory, type, 8, 8, 8};
    p.b = {memory, type, 8, n, stride};
    p.c = {memory, type, 8, n, stride};
    if (bias) p.bias = memory;
    return split_uneven(p).has_value();
  };
  EXPECT_TRUE(splits(50257, Element::bf16, false));
  EXPECT_FALSE(splits(50304, Element::bf16, false));
  EXPECT_FALSE(splits(1023, Element::bf16, false));
  EXPECT_FALSE(splits(50257, Element::f32, false));
  EXPECT_FALSE(splits(50257, Element::bf16, true));
  EXPECT_FALSE(splits(50257, Element::bf16, false, 50257));
}

}  // namespace
}  // namespace trireme::ops
