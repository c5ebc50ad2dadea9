// Operations in bf16 against the same in fp32 on the same values: both compute in fp32, so results
// differ only by the rounding of what is stored.
#include <algorithm>

#include "bf16_support.hpp"

namespace trireme::ops {
namespace {

class NarrowTest : public OpsTest {};

double greatest(const Array& x) {
  const std::vector<float> values = x.values();
  return *std::max_element(values.begin(), values.end());
}
TRIREME_FOR_INSTRUCTION_SETS(NarrowTest);

/// Every bf16, and fp32 values on both sides of each midpoint of neighbors.
TEST_P(NarrowTest, CopiesConvertLikeScalars) {
  Narrow all({65536}), back = poisoned({65536});
  for (std::int64_t i = 0; i < 65536; ++i) all[i].bits = static_cast<std::uint16_t>(i);
  Array wide({65536});
  ops->copy(wide, all);
  ops->copy(back, wide);
  for (std::int64_t i = 0; i < 65536; ++i) {
    const float value = bf16_to_float(all[i].bits);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(value)) << i;
    ASSERT_EQ(back[i].bits, float_to_bf16(value)) << i;
  }
  for (const std::uint32_t low : {0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
    for (std::uint32_t i = 0; i < 65536; ++i) wide[i] = std::bit_cast<float>(i << 16 | low);
    ops->copy(back, wide);
    for (std::int64_t i = 0; i < 65536; ++i) {
      ASSERT_EQ(back[i].bits, float_to_bf16(wide[i])) << i << " with " << low;
    }
  }
}

TEST_P(NarrowTest, ElementwiseRoundsOnce) {
  for (const std::int64_t n : {1, 7, 16, 37, 100000}) {
    Both a({n}, 1), b({n}, 2);
    Narrow y = poisoned({n});
    Array wide({n});
    ops->add(y, a.narrow, b.narrow);
    ops->add(wide, a.wide, b.wide);
    expect_rounded(y, wide, "add");
    Narrow aliased = a.narrow;
    ops->add(aliased, aliased, b.narrow);
    expect_same(aliased, y, "add in place");
    ops->scale(a.narrow, 0.37F);
    ops->scale(a.wide, 0.37F);
    expect_rounded(a.narrow, a.wide, "scale");
    ops->fill(y, 1.003F);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i].bits, float_to_bf16(1.003F));
  }
}

TEST_P(NarrowTest, CopiesOfRowsLeaveGaps) {
  Both x({5, 19}, 1, 1, 6);
  Narrow y = poisoned({5, 19}, 3);
  ops->copy(y, x.narrow);
  expect_rounded(y, x.wide, "copy", 0);
  Array wide({5, 19}, 2);
  ops->copy(wide, x.narrow);
  EXPECT_EQ(wide.values(), x.wide.values());
  EXPECT_TRUE(wide.gaps_untouched());
}

TEST_P(NarrowTest, NormsRoundOnce) {
  for (const auto& [rows, columns] :
       std::vector<std::array<std::int64_t, 2>>{{1, 1}, {3, 37}, {70, 96}, {5, 384}}) {
    Both x({rows, columns}, 1, 2, 5), gain({columns}, 2), bias({columns}, 3),
        dy({rows, columns}, 4);
    Narrow y = poisoned({rows, columns}, 3), dx({rows, columns});
    Array wide({rows, columns}), mean({rows}), rstd({rows}), mean2({rows}), rstd2({rows});
    Array wide_dx({rows, columns});
    // Sums of bf16 have their own order: four or more chains of C/4 terms, then their joins, each
    // sum off by that many roundings of terms of at most 2. A result has them times rstd and times
    // a normalized value of at most 4·rstd; a gradient the square of it.
    const double order = 4 * (static_cast<double>(columns) / 4 + 8) * roundoff;
    const auto off = [&, rows = rows, columns = columns](double each) {
      return std::vector<double>(static_cast<std::size_t>(rows * columns), each);
    };
    ops->norm(y, mean, rstd, x.narrow, gain.narrow, bias.narrow, 1e-5F);
    ops->norm(wide, mean2, rstd2, x.wide, gain.wide, bias.wide, 1e-5F);
    for (std::int64_t r = 0; r < rows; ++r) {
      EXPECT_NEAR(mean[r], mean2[r], order);
      EXPECT_NEAR(rstd[r], rstd2[r], order * rstd2[r]);
    }
    expect_rounded(y, wide, "layer_norm", 1, off(5 * order * greatest(rstd2)));
    for (const bool accumulate : {false, true}) {
      dx = accumulate ? narrowed(random_array({rows, columns}, 5)) : poisoned({rows, columns});
      wide_dx = widened(dx);
      ops->norm_backward_input(dx, dy.narrow, x.narrow, gain.narrow, mean, rstd,
                               accumulate ? Tensor(dx) : Tensor());
      ops->norm_backward_input(wide_dx, dy.wide, x.wide, gain.wide, mean, rstd,
                               accumulate ? Tensor(wide_dx) : Tensor());
      const double steepest = greatest(rstd);
      expect_rounded(dx, wide_dx, "layer_norm_backward_input", 1,
                     off(order * steepest * (1 + 16 * steepest * steepest)));
    }
    Array dgain = random_array({columns}, 6), dbias = dgain, dgain2 = dgain, dbias2 = dgain;
    ops->norm_backward_weight(dgain, dbias, dy.narrow, x.narrow, mean, rstd);
    ops->norm_backward_weight(dgain2, dbias2, dy.wide, x.wide, mean, rstd);
    expect_same_bits(dgain, dgain2, "dgain");
    expect_same_bits(dbias, dbias2, "dbias");
    ops->column_sum(dgain, x.narrow);
    ops->column_sum(dgain2, x.wide);
    expect_same_bits(dgain, dgain2, "column_sum");

    ops->norm(y, {}, rstd, x.narrow, gain.narrow, {}, 1e-5F);
    ops->norm(wide, {}, rstd2, x.wide, gain.wide, {}, 1e-5F);
    expect_rounded(y, wide, "rms_norm", 1, off(5 * order * greatest(rstd2)));
    for (std::int64_t r = 0; r < rows; ++r) EXPECT_NEAR(rstd[r], rstd2[r], order * rstd2[r]);
    dx = poisoned({rows, columns});
    ops->norm_backward_input(dx, dy.narrow, x.narrow, gain.narrow, {}, rstd, {});
    ops->norm_backward_input(wide_dx, dy.wide, x.wide, gain.wide, {}, rstd, {});
    const double steepest = greatest(rstd);
    expect_rounded(dx, wide_dx, "rms_norm_backward_input", 1,
                   off(order * steepest * (1 + 16 * steepest * steepest)));
    ops->norm_backward_weight(dgain, {}, dy.narrow, x.narrow, {}, rstd);
    ops->norm_backward_weight(dgain2, {}, dy.wide, x.wide, {}, rstd);
    expect_same_bits(dgain, dgain2, "dgain of rms_norm");
  }
}

TEST_P(NarrowTest, ActivationsRoundOnce) {
  for (const std::int64_t n : {1, 5, 31, 40000}) {
    Both x({n}, 1, 6), dy({n}, 2);
    Narrow y = poisoned({n}), dx = poisoned({n});
    Array wide({n});
    ops->gelu(y, x.narrow);
    ops->gelu(wide, x.wide);
    expect_rounded(y, wide, "gelu");
    ops->gelu_backward(dx, dy.narrow, x.narrow);
    ops->gelu_backward(wide, dy.wide, x.wide);
    expect_rounded(dx, wide, "gelu_backward");
    ops->gelu_backward(dy.narrow, dy.narrow, x.narrow);
    expect_same(dy.narrow, dx, "gelu_backward in place");
  }
  Both x({9, 46}, 3, 4), dy({9, 23}, 4);
  Narrow y = poisoned({9, 23}), dx = poisoned({9, 46});
  Array wide({9, 23}), wide_dx({9, 46});
  ops->swiglu(y, x.narrow);
  ops->swiglu(wide, x.wide);
  expect_rounded(y, wide, "swiglu");
  ops->swiglu_backward(dx, dy.narrow, x.narrow);
  ops->swiglu_backward(wide_dx, dy.wide, x.wide);
  expect_rounded(dx, wide_dx, "swiglu_backward");
}

TEST_P(NarrowTest, NaNStaysNaN) {
  Narrow x({40}), y({40});
  for (std::int64_t i = 0; i < 40; ++i) x[i].bits = i % 3 == 0 ? 0xff81 : 0x3f80;
  ops->gelu(y, x);
  for (std::int64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(std::isnan(ops::widened(y[i])), i % 3 == 0) << i;
  }
}

/// fp32 gains, biases and tables with bf16, as with masters: match a rounded copy.
TEST_P(NarrowTest, WideParametersAreRoundedAsTheyAreRead) {
  for (const std::int64_t columns : {1, 7, 37, 384}) {
    const std::int64_t rows = 70;
    Both x({rows, columns}, 1, 2, 3), dy({rows, columns}, 2);
    Array gain = random_array({columns}, 3), bias = random_array({columns}, 4);
    Array table = random_array({23, columns}, 5);
    for (Array* each : {&gain, &bias, &table}) {
      // Halfway to an even and to an odd neighbor, and values that round to zeros.
      const std::uint32_t odd[] = {0x3f808000U, 0xbf818000U, 1U, 0x80000001U};
      for (std::int64_t i = 0; i < each->elements(); ++i) {
        if (i % 3 == 0) (*each)[i] = std::bit_cast<float>(odd[i / 3 % 4]);
      }
    }
    Narrow near_gain = narrowed(gain), near_bias = narrowed(bias), near_table = narrowed(table);
    Array mean({rows}), rstd({rows});
    Narrow direct = poisoned({rows, columns}, 2), copied = direct;
    const auto same = [&](const std::string& what) {
      expect_same(direct, copied, what);
      direct = copied = poisoned({rows, columns}, 2);
    };
    ops->norm(direct, mean, rstd, x.narrow, gain, bias, 1e-5F);
    ops->norm(copied, mean, rstd, x.narrow, near_gain, near_bias, 1e-5F);
    same("layer_norm");
    ops->norm(direct, mean, rstd, x.narrow, gain, Tensor(), 1e-5F);
    ops->norm(copied, mean, rstd, x.narrow, near_gain, Tensor(), 1e-5F);
    same("layer_norm without bias");
    ops->norm_backward_input(direct, dy.narrow, x.narrow, gain, mean, rstd, {});
    ops->norm_backward_input(copied, dy.narrow, x.narrow, near_gain, mean, rstd, {});
    same("layer_norm_backward_input");
    ops->norm(direct, {}, rstd, x.narrow, gain, {}, 1e-5F);
    ops->norm(copied, {}, rstd, x.narrow, near_gain, {}, 1e-5F);
    same("rms_norm");
    ops->norm_backward_input(direct, dy.narrow, x.narrow, gain, {}, rstd, {});
    ops->norm_backward_input(copied, dy.narrow, x.narrow, near_gain, {}, rstd, {});
    same("rms_norm_backward_input");
    Integers ids = random_integers({rows}, 6, 23);
    for (int i = 0; i < 23; ++i) ids[i] = i;
    ops->embedding(direct, ids, table);
    ops->embedding(copied, ids, near_table);
    expect_same(direct, copied, "embedding");
    ops->embedding(direct, ids, table, {}, Lookup::add);
    ops->embedding(copied, ids, near_table, {}, Lookup::add);
    expect_same(direct, copied, "embedding added");
    const RowTile tile{5, 23};
    ops->embedding(direct, ids, table.view().slice(0, 5, 9), tile, Lookup::fill_in);
    ops->embedding(copied, ids, near_table.view().slice(0, 5, 9), tile, Lookup::fill_in);
    same("embedding filled in");
  }
}

TEST_P(NarrowTest, DropoutEmbeddingAndRotaryRoundOnce) {
  const std::int64_t rows = 11, columns = 37;
  Both x({rows, columns}, 1, 1, 4), table({23, columns}, 2);
  Narrow y = poisoned({rows, columns}, 2);
  Array wide({rows, columns});
  ArrayOf<std::int64_t> logical({rows});
  for (std::int64_t i = 0; i < rows; ++i) logical[i] = 1000 + 3 * i;
  const Dropout dropout{0.3F, {7, Purpose::dropout, 1}};
  ArrayOf<std::int64_t>& places = logical;
  ops->dropout(y, x.narrow, Tensor(&places[0], {rows}), dropout);
  ops->dropout(wide, x.wide, Tensor(&places[0], {rows}), dropout);
  expect_rounded(y, wide, "dropout");

  Integers ids = random_integers({rows}, 3, 23);
  Narrow looked = poisoned({rows, columns});
  ops->embedding(looked, ids, table.narrow);
  ops->embedding(wide, ids, table.wide);
  expect_rounded(looked, wide, "embedding", 0);
  ops->embedding(looked, ids, table.narrow, {}, Lookup::add);
  ops->embedding(wide, ids, table.wide, {}, Lookup::add);
  expect_rounded(looked, wide, "embedding added");
  Array dtable({23, columns}), dtable2({23, columns});
  ops->embedding_backward(dtable, ids, x.narrow);
  ops->embedding_backward(dtable2, ids, x.wide);
  expect_same_bits(dtable, dtable2, "embedding_backward");

  Both turned({6, 3, 22}, 5, 1, 0);
  Integers positions = random_integers({6}, 6, 5000);
  Array frequencies = random_array({11}, 7);
  ops->rotary(turned.narrow, positions, frequencies, false);
  ops->rotary(turned.wide, positions, frequencies, false);
  expect_rounded(turned.narrow, turned.wide, "rotary");
}

TEST_P(NarrowTest, LossesMatchTheWidenedLogits) {
  for (const std::int64_t columns : {1, 13, 300}) {
    const std::int64_t rows = 9;
    Both logits({rows, columns}, 1, 5);
    Array maximum({rows}), maximum2({rows}), sum({rows}), sum2({rows}), target({rows}),
        target2({rows}), factor = random_array({rows}, 2);
    Integers targets = random_integers({rows}, 3, static_cast<std::int32_t>(columns + 2));
    ops->row_maximum(maximum, logits.narrow);
    ops->row_maximum(maximum2, logits.wide);
    expect_same_bits(maximum, maximum2, "maximum");
    ops->exp_sum_and_target(sum, target, logits.narrow, maximum, targets, 1);
    ops->exp_sum_and_target(sum2, target2, logits.wide, maximum, targets, 1);
    // exp has arguments of at most 10 with 3 roundings, and 2 of its own; sums as in norms.
    for (std::int64_t r = 0; r < rows; ++r) {
      EXPECT_NEAR(sum[r], sum2[r],
                  (30 + 4 + 2 * (static_cast<double>(columns) / 4 + 8)) * roundoff * sum2[r]);
    }
    expect_same_bits(target, target2, "target");
    ops->cross_entropy_gradient(logits.narrow, maximum, sum, targets, factor, 1);
    ops->cross_entropy_gradient(logits.wide, maximum, sum, targets, factor, 1);
    expect_rounded(logits.narrow, logits.wide, "gradient");
  }
}

TEST_P(NarrowTest, UpdatesRoundTheirMasters) {
  const std::int64_t n = 1003;
  Array p = random_array({n}, 1), m = random_array({n}, 2), v({n}), g = random_array({n}, 3);
  Narrow to_nearest = poisoned({n}), drawn = poisoned({n});
  AdamWStep step;
  step.learning_rate = 1e-3F;
  ops->adamw(p, m, v, g, step, {.values = to_nearest});
  expect_rounded(to_nearest, p, "adamw");
  const RandomKey key{5, Purpose::initialization, 9};
  ops->sgd(p, m, g, 1e-3F, 0.9F, 0, 1,
           {.values = drawn, .stochastic = true, .key = key, .indices = {.first = 77}});
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = random_bits(key, static_cast<std::uint64_t>(77 + i)) & 0xffffU;
    ASSERT_EQ(drawn[i].bits, float_to_bf16_up_by(p[i], bits)) << i;
  }
}

TEST_P(NarrowTest, TypesAreNotMixed) {
  Array wide({4});
  Narrow narrow({4});
  EXPECT_ANY_THROW(ops->add(narrow, narrow, wide));
  EXPECT_ANY_THROW(ops->gelu(wide, narrow));
  std::vector<std::uint16_t> halves(4);
  const Tensor half(halves.data(), DType::f16, {4});
  EXPECT_ANY_THROW(ops->gelu(half, half));
}

}  // namespace
}  // namespace trireme::ops
