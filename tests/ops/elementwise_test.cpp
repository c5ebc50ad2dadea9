#include "trireme/core/half.hpp"

#include "support.hpp"

namespace trireme::ops {
namespace {

class ElementwiseTest : public OpsTest {};

TEST_P(ElementwiseTest, FillCopyAddScale) {
  for (const std::int64_t n : {1, 7, 37, 1000, 40000}) {
    Array a = random_array({n}, 1), b = random_array({n}, 2), y({n});
    ops->fill(y, 1.5F);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], 1.5F);
    ops->copy(y, a);
    expect_same_bits(y, a, "copy");
    ops->add(y, a, b);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], a[i] + b[i]);
    Array in_place = a;
    ops->add(in_place, in_place, b);
    expect_same_bits(in_place, y, "y = y + b");
    in_place = b;
    ops->add(in_place, a, in_place);
    expect_same_bits(in_place, y, "y = a + y");
    ops->scale(y, -3.0F);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], -3.0F * (a[i] + b[i]));
    Array by({1});
    by[0] = 0.3F;
    Array scaled = y;
    ops->scale(scaled, by[0]);
    ops->scale_by(y, by);
    expect_same_bits(y, scaled, "y * factor[0]");
  }
}

TEST_P(ElementwiseTest, CopyBetweenStrides) {
  for (const auto& [rows, columns] :
       std::vector<std::array<std::int64_t, 2>>{{7, 37}, {300, 150}}) {
    Array x = random_array({rows, columns}, 1, 1, 4), y({rows, columns}, 1);
    ops->copy(y, x);
    expect_same_bits(y, x, "copy");
    EXPECT_TRUE(y.gaps_untouched());
  }
}

TEST_P(ElementwiseTest, StridedViewsAreRefusedWhereOpsNeedContiguousOnes) {
  Array x({3, 4}, 2), y({3, 4}, 2);
  EXPECT_ANY_THROW(ops->add(y, x, x));
  EXPECT_ANY_THROW(ops->gelu(y, x));
}

TEST_P(ElementwiseTest, CopyConverts) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const std::int64_t gap : {0, 3}) {
      const std::int64_t rows = 70, columns = 301;
      Array x = random_array({rows, columns}, 1, 3, gap), back({rows, columns}, gap);
      std::vector<std::uint16_t> narrow(static_cast<std::size_t>(rows * (columns + gap)), 7);
      const Tensor view(narrow.data(), type, {rows, columns}, {columns + gap, 1, 0, 0});
      ops->copy(view, x);
      ops->copy(back, view);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns + gap; ++c) {
          const std::uint16_t bits = narrow[static_cast<std::size_t>(r * (columns + gap) + c)];
          if (c >= columns) {
            ASSERT_EQ(bits, 7) << "between rows";
            continue;
          }
          const float value = x[r * columns + c];
          const bool brain = type == DType::bf16;
          ASSERT_EQ(bits, brain ? float_to_bf16(value) : float_to_fp16(value));
          ASSERT_EQ(back[r * columns + c], brain ? bf16_to_float(bits) : fp16_to_float(bits));
        }
      }
      EXPECT_TRUE(back.gaps_untouched());
    }
  }
  Integers ids({4});
  Array y({4});
  EXPECT_ANY_THROW(ops->copy(y, ids));
}

TRIREME_FOR_INSTRUCTION_SETS(ElementwiseTest);

}  // namespace
}  // namespace trireme::ops
