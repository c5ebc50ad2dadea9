// Products and attention of bf16, with this machine's instructions and with widened elements.
#include <numeric>

#include <fmt/format.h>

#include "trireme/device/memory.hpp"
#include "trireme/ops/workspace.hpp"

#include "../../src/ops/cpu/bf16_tiles.hpp"
#include "bf16_support.hpp"

namespace trireme::ops {
namespace {

class NarrowProductTest : public OpsTest {};
TRIREME_FOR_INSTRUCTION_SETS(NarrowProductTest);

struct Case {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate, bias, wide;
};

/// Products of two bf16 are exact in fp32; their sum in any order, two at a time, is off by at most
/// (k + 2)·2u·Σ|a||b| (u doubled: AVX512_BF16 may round each half of a pair; subnormal sums flush
/// to zero, which 2⁻¹²⁰ covers), with 2 more for c or the bias. Then it is rounded once.
void check_product(Ops& ops, const Case& t, std::int64_t gap) {
  Both a(t.transpose_a ? Shape{t.k, t.m} : Shape{t.m, t.k}, 1, 1, gap);
  Both b(t.transpose_b ? Shape{t.n, t.k} : Shape{t.k, t.n}, 2, 1, gap), bias({t.n}, 4);
  Both before({t.m, t.n}, 3, 1, gap);
  std::vector<double> expected, bound;
  for (std::int64_t i = 0; i < t.m; ++i) {
    for (std::int64_t j = 0; j < t.n; ++j) {
      double sum =
          (t.accumulate ? before.wide[i * t.n + j] : 0.0F) + (t.bias ? bias.wide[j] : 0.0F);
      double size = std::abs(sum);
      for (std::int64_t l = 0; l < t.k; ++l) {
        const double term = double{t.transpose_a ? a.wide[l * t.m + i] : a.wide[i * t.k + l]} *
                            double{t.transpose_b ? b.wide[j * t.k + l] : b.wide[l * t.n + j]};
        sum += term;
        size += std::abs(term);
      }
      expected.push_back(sum);
      bound.push_back(2 * static_cast<double>(t.k + 4) * roundoff * size + std::ldexp(1.0, -120));
    }
  }
  MatmulOptions options;
  options.transpose_a = t.transpose_a;
  options.transpose_b = t.transpose_b;
  options.accumulate = t.accumulate;
  if (t.bias) options.bias = bias.narrow;
  const std::string what = "m " + std::to_string(t.m) + " n " + std::to_string(t.n) + " k " +
                           std::to_string(t.k) + (t.transpose_a ? " T" : " N") +
                           (t.transpose_b ? "T" : "N") + (t.accumulate ? " accumulated" : "") +
                           (t.bias ? " with bias" : "") + (t.wide ? " into fp32" : "");
  if (t.wide) {
    Array c({t.m, t.n}, gap);
    const float poison = std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t i = 0; i < c.elements(); ++i) c[i] = t.accumulate ? before.wide[i] : poison;
    ops.matmul(c, a.narrow, b.narrow, options);
    return expect_close(c, expected, bound, what);
  }
  Narrow c = t.accumulate ? before.narrow : poisoned({t.m, t.n}, gap);
  ops.matmul(c, a.narrow, b.narrow, options);
  Array rounded({t.m, t.n});
  for (std::int64_t i = 0; i < c.elements(); ++i) {
    rounded[i] = static_cast<float>(expected[static_cast<std::size_t>(i)]);
  }
  expect_rounded(c, rounded, what, 1, bound);
}

TEST_P(NarrowProductTest, EveryFormAgreesWithFp64) {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {7, 37, 11}, {37, 101, 48}, {1, 5, 3}, {5, 1, 1}, {1, 1, 64}, {130, 70, 257}}) {
    for (int form = 0; form < 4; ++form) {
      for (const std::int64_t gap : {0, 5}) {
        const bool ta = form & 1, tb = form & 2;
        for (const bool wide : {false, true}) {
          check_product(*ops, {m, n, k, ta, tb, false, false, wide}, gap);
          check_product(*ops, {m, n, k, ta, tb, true, false, wide}, gap);
          check_product(*ops, {m, n, k, ta, tb, false, true, wide}, gap);
        }
      }
    }
  }
}

/// An fp32 right factor with bf16, as with masters: matches the product with its rounded copy.
TEST_P(NarrowProductTest, AWideRightFactorAndBiasAreRoundedAsTheyAreRead) {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {7, 37, 11}, {13, 130, 65}, {3, 5, 9001}, {400, 1500, 33}, {5, 64, 0}}) {
    for (int form = 0; form < 4; ++form) {
      for (const std::int64_t gap : {0, 5}) {
        MatmulOptions options;
        options.transpose_a = form & 1;
        options.transpose_b = form & 2;
        Both a(options.transpose_a ? Shape{k, m} : Shape{m, k}, 1, 1, gap);
        Array b = random_array(options.transpose_b ? Shape{n, k} : Shape{k, n}, 2, 1, gap);
        Array bias = random_array({n}, 3);
        for (std::int64_t i = 0; i < bias.elements(); i += 5) {
          bias[i] =
              std::bit_cast<float>(0x3f808000U + static_cast<std::uint32_t>(i % 2) * 0x10000U);
        }
        if (b.elements() > 2) b[2] = std::bit_cast<float>(0xbf818000U);  // halfway
        Narrow nearest = narrowed(b, gap), nearest_bias = narrowed(bias);
        const bool biased = form < 2;
        for (const bool wide : {false, true}) {
          const std::string what = fmt::format("m {} n {} k {} form {} gap {}", m, n, k, form, gap);
          const auto multiply = [&](auto& c, const Tensor& right, const Tensor& added) {
            MatmulOptions all = options;
            if (biased) all.bias = added;
            ops->matmul(c, a.narrow, right, all);
          };
          if (wide) {
            Array direct({m, n}), copied({m, n});
            multiply(direct, b, bias);
            multiply(copied, nearest, nearest_bias);
            expect_same_bits(direct, copied, what);
          } else {
            Narrow direct = poisoned({m, n}, gap), copied = poisoned({m, n}, gap);
            multiply(direct, b, bias);
            multiply(copied, nearest, nearest_bias);
            expect_same(direct, copied, what);
          }
        }
      }
    }
  }
}

/// Inner dimensions that are summed block by block, and more columns than are packed at once.
TEST_P(NarrowProductTest, LargeExtentsAreSplit) {
  check_product(*ops, {3, 5, 9001, false, false, false, true, false}, 0);
  check_product(*ops, {3, 5, 9001, false, true, true, false, false}, 3);
  check_product(*ops, {3, 5, 9001, true, false, true, false, true}, 0);
  check_product(*ops, {3, 70, 2500, true, false, false, true, false}, 1);
  check_product(*ops, {400, 1500, 33, false, true, false, true, false}, 0);
  check_product(*ops, {500, 90, 40, true, true, true, false, true}, 0);
}

TEST_P(NarrowProductTest, AnEmptyInnerDimensionGivesZerosOrTheBias) {
  for (const bool wide : {false, true}) {
    check_product(*ops, {3, 4, 0, false, false, false, false, wide}, 0);
    check_product(*ops, {3, 4, 0, false, false, true, false, wide}, 0);
    check_product(*ops, {3, 4, 0, false, false, false, true, wide}, 0);
    check_product(*ops, {0, 4, 3, false, false, false, true, wide}, 0);
  }
}

/// Threads split rows and columns differently; the sums are the same.
TEST_P(NarrowProductTest, BitsDoNotDependOnThreads) {
  for (int form = 0; form < 4; ++form) {
    MatmulOptions options;
    options.transpose_a = form & 1;
    options.transpose_b = form & 2;
    const std::int64_t m = 801, n = 203, k = 1150;
    Both a(options.transpose_a ? Shape{k, m} : Shape{m, k}, 1);
    Both b(options.transpose_b ? Shape{n, k} : Shape{k, n}, 2);
    Narrow first = poisoned({m, n});
    make_cpu_ops(1)->matmul(first, a.narrow, b.narrow, options);
    for (const int threads : {2, 3}) {
      Narrow second = poisoned({m, n});
      make_cpu_ops(threads)->matmul(second, a.narrow, b.narrow, options);
      expect_same(first, second, std::to_string(threads) + " threads");
    }
  }
}

TEST_P(NarrowProductTest, FusedEqualsSeparate) {
  for (const std::int64_t gap : {0, 3}) {
    const std::int64_t m = 9, n = 21, k = 13;
    Both a({m, k}, 1, 1, gap), b({n, k}, 2), bias({n}, 3);
    Narrow apart({m, n}), gelu({m, n});
    ops->matmul(apart, a.narrow, b.narrow, {.transpose_b = true, .bias = bias.narrow});
    ops->gelu(gelu, apart);
    Narrow c = poisoned({m, n}, gap), before = poisoned({m, n}, gap);
    ops->matmul(c, a.narrow, b.narrow,
                {.transpose_b = true, .bias = bias.narrow, .before_gelu = before});
    expect_same(c, gelu, "gelu");
    expect_same(before, apart, "before gelu");
    EXPECT_TRUE(c.gaps_untouched() && before.gaps_untouched());

    // Separately, the fp32 product is rounded before the slope: one rounding more.
    Both input({m, n}, 4, 2, gap);
    Array product({m, n}), expected({m, n});
    ops->matmul(product, a.narrow, b.narrow, {.transpose_b = true});
    ops->gelu_backward(expected, product, input.wide);
    ops->matmul(c, a.narrow, b.narrow, {.transpose_b = true, .gelu_input = input.narrow});
    expect_rounded(c, expected, "gelu backward", 2.01);

    Both dy({m, n}, 5, 1, gap);
    Array sum = random_array({n}, 6), expected_sum = sum;
    Array weight = random_array({n, k}, 7), expected_weight = weight;
    ops->matmul(weight, dy.narrow, a.narrow,
                {.transpose_a = true, .accumulate = true, .row_sum = sum});
    ops->matmul(expected_weight, dy.narrow, a.narrow, {.transpose_a = true, .accumulate = true});
    ops->column_sum(expected_sum, dy.narrow);
    expect_same_bits(weight, expected_weight, "weight gradient");
    expect_same_bits(sum, expected_sum, "bias gradient");
  }
}

TEST(NarrowWorkspace, MatchesThePrediction) {
  for (const int threads : {1, 3}) {
    for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
             {3, 5, 7}, {500, 700, 90}, {20, 70, 9001}, {1000, 64, 2500}}) {
      for (const bool transposed : {false, true}) {
        for (const bool wide : {false, true}) {
          device::MemoryLedger ledger;
          const auto backend = make_cpu_ops(threads, &ledger);
          const ProductShape shape{m, n, k};
          Narrow a(transposed ? Shape{k, m} : Shape{m, k}), b({k, n});
          Narrow narrow({m, n});
          Array sums({m, n});
          backend->matmul(wide ? sums.view() : narrow.view(), a, b, {.transpose_a = transposed});
          EXPECT_EQ(static_cast<std::size_t>(ledger.peak(device::Use::workspace)),
                    device::aligned(cpu_product_workspace({&shape, 1}, transposed, wide, threads)))
              << m << " " << n << " " << k;
        }
      }
    }
    for (const AttentionShape& s : std::vector<AttentionShape>{
             {1, 200, 200, 6, 2, 8}, {9, 70, 70, 4, 2, 8}, {1, 3, 1300, 16, 16, 4}}) {
      device::MemoryLedger ledger;
      const auto backend = make_cpu_ops(threads, &ledger);
      const Shape of_queries{s.batch, s.queries, s.heads, s.size};
      const Shape of_keys{s.batch, s.keys, s.groups, s.size};
      Narrow q(of_queries), k(of_keys), v(of_keys), out(of_queries), dq(of_queries), dk(of_keys),
          dv(of_keys);
      Array lse({s.batch, s.heads, s.queries});
      const AttentionMask mask{.causal = false};
      backend->attention(out, lse, q, k, v, mask, 1, {}, {});
      backend->attention_backward(dq, dk, dv, out, out, lse, q, k, v, mask, 1, {}, {});
      EXPECT_EQ(static_cast<std::size_t>(ledger.peak(device::Use::workspace)),
                device::aligned(cpu_narrow_attention_workspace(s, threads)));
    }
  }
}

// Tiles of unequal widths, one of them empty, on more and on fewer threads.
TEST(NarrowWorkspace, IndependentProductsHaveTheBitsAndThePredictedBytes) {
  const std::int64_t rows = 130, in = 70;
  const std::vector<std::int64_t> widths{200, 31, 0, 97, 64};
  Narrow x({rows, in}, 1), bias({200}, 2);
  std::vector<Narrow> weights;
  for (const std::int64_t width : widths) weights.emplace_back(Shape{width, in}, 3 + width);
  for (const int threads : {1, 2, 3, 8}) {
    device::MemoryLedger ledger;
    const auto backend = make_cpu_ops(threads, &ledger), single = make_cpu_ops(threads);
    std::vector<Narrow> expected, actual;
    for (const std::int64_t width : widths) {
      for (std::vector<Narrow>* each : {&expected, &actual}) each->emplace_back(Shape{rows, width});
    }
    std::vector<Matmul> products;
    std::vector<ProductShape> shapes;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const MatmulOptions options{.transpose_b = true, .bias = bias.view().slice(0, 0, widths[i])};
      products.push_back({actual[i], x, weights[i], options});
      shapes.push_back({rows, widths[i], in});
      if (widths[i] > 0) single->matmul(expected[i], x, weights[i], options);
    }
    backend->independent_matmuls(products);
    EXPECT_EQ(static_cast<std::size_t>(ledger.peak(device::Use::workspace)),
              device::aligned(cpu_product_workspace(shapes, false, false, threads)));
    for (std::size_t i = 0; i < widths.size(); ++i) {
      for (std::int64_t j = 0; j < rows * widths[i]; ++j) {
        ASSERT_EQ(expected[i][j].bits, actual[i][j].bits) << widths[i] << " columns, element " << j;
      }
    }
  }
}

TEST_P(NarrowProductTest, WrongShapesAndTypesAreRefused) {
  Narrow a({3, 4}), b({5, 6}), c({3, 6}), good({4, 6});
  EXPECT_ANY_THROW(ops->matmul(c, a, b, {}));
  Array wide({3, 4}), into({3, 6});
  EXPECT_ANY_THROW(ops->matmul(c, wide, good, {}));
  EXPECT_ANY_THROW(ops->matmul(into, wide, good, {}));
  Integers whole({4, 6});
  EXPECT_ANY_THROW(ops->matmul(c, a, whole, {}));
}

/// Tiles of vectors and of AMX, where available.
std::vector<const Bf16Tiles*> special_tiles() {
  std::vector<const Bf16Tiles*> all;
  for (const Bf16Tiles* each : {native_bf16_tiles(), amx_bf16_tiles()}) {
    if (each != nullptr) all.push_back(each);
  }
  return all;
}

/// All kinds of tiles read the same panels: one packs, the other multiplies.
TEST(Bf16Tiles, AgreeOnPanels) {
  if (special_tiles().empty()) GTEST_SKIP() << "this processor has no AVX512_BF16";
  const Bf16Tiles& portable = portable_bf16_tiles();
  for (const Bf16Tiles* tiles : special_tiles()) {
    for (const auto& [k, n] :
         std::vector<std::array<std::int64_t, 2>>{{1, 1}, {7, 65}, {33, 64}, {64, 130}, {40, 31}}) {
      for (const bool transposed : {false, true}) {
        Narrow b = narrowed(random_array(transposed ? Shape{n, k} : Shape{k, n}, 1), 3);
        const auto words = static_cast<std::size_t>(packed_words(k, n));
        std::vector<std::uint32_t> one(words), two(words);
        const std::int64_t stride = b.view().stride(0);
        tiles->pack(k, n, transposed, &b[0], stride, one.data());
        portable.pack(k, n, transposed, &b[0], stride, two.data());
        // Columns beyond the last panel are never read.
        for (std::size_t i = 0; i < words; ++i) {
          const auto panel = static_cast<std::int64_t>(i) / panel_words(k);
          if (panel * panel_columns + static_cast<std::int64_t>(i) % panel_columns >= n) continue;
          ASSERT_EQ(one[i], two[i]) << k << " " << n << " word " << i;
        }
      }
    }
  }
}

/// Values behind the factors' ends or beside columns are read with whole registers but not used:
/// all of them are NaN here. Small integers make every sum exact.
TEST(Bf16Tiles, GiveTheSameSumsOfIntegers) {
  if (special_tiles().empty()) GTEST_SKIP() << "this processor has no AVX512_BF16";
  const auto integers = [](const Shape& shape, std::uint32_t stream) {
    const Integers whole = random_integers(shape, stream, 9);
    Array x(shape);
    for (std::int64_t i = 0; i < x.elements(); ++i) x[i] = static_cast<float>(whole[i] - 4);
    return narrowed(x, 5);  // NaN in the gaps
  };
  constexpr std::uint32_t nan_words = 0xffb3ffb3U;
  for (const Bf16Tiles* tiles : special_tiles()) {
    const TileScope scope(*tiles);
    for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{1, 1, 1},
                                                                          {16, 16, 32},
                                                                          {17, 33, 31},
                                                                          {32, 64, 64},
                                                                          {33, 65, 65},
                                                                          {50, 130, 97},
                                                                          {100, 15, 200},
                                                                          {7, 48, 2},
                                                                          {64, 64, 63}}) {
      Narrow a = integers({m, k}, 1), turned = integers({k, m}, 2), b = integers({k, n}, 3);
      const auto packed = [&, k = k](Narrow& x, std::int64_t columns) {
        std::vector<std::uint32_t> words(static_cast<std::size_t>(packed_words(k, columns)) + 64,
                                         nan_words);
        tiles->pack(k, columns, false, &x[0], x.view().stride(0), words.data());
        return words;
      };
      const std::vector<std::uint32_t> right = packed(b, n), left = packed(turned, m);
      for (const bool add : {false, true}) {
        Array in_place({m, n}, 3), from_packed({m, n}, 3);
        std::vector<double> of_rows, of_columns;
        for (std::int64_t i = 0; i < m * n; ++i) {
          in_place[i] = from_packed[i] = static_cast<float>(i % 7);
          double sum0 = add ? in_place[i] : 0, sum1 = sum0;
          for (std::int64_t l = 0; l < k; ++l) {
            sum0 += widened(a[i / n * k + l]) * widened(b[l * n + i % n]);
            sum1 += widened(turned[l * m + i / n]) * widened(b[l * n + i % n]);
          }
          of_rows.push_back(sum0);
          of_columns.push_back(sum1);
        }
        TileResult result;
        result.accumulate = add;
        result.stride = n + 3;
        result.wide = &in_place[0];
        tiles->multiply(m, n, k, &a[0], k + 5, right.data(), result);
        result.wide = &from_packed[0];
        tiles->multiply_packed(m, n, k, left.data(), right.data(), result, nullptr);
        const std::vector<double> exactly(of_rows.size(), 0);
        const std::string what = std::to_string(m) + " " + std::to_string(n) + " " +
                                 std::to_string(k) + (add ? " added, tiles of " : ", tiles of ") +
                                 std::to_string(tiles->rows) + " rows";
        expect_close(in_place, of_rows, exactly, what);
        expect_close(from_packed, of_columns, exactly, what + ", packed");
      }
    }
  }
}

struct AttentionCase {
  std::int64_t batch, queries, keys, heads, groups, size;
  bool causal;
  float dropout;
  bool documents;
};

class NarrowAttentionTest : public OpsTest {
 protected:
  void check(const AttentionCase& c);
};
TRIREME_FOR_INSTRUCTION_SETS(NarrowAttentionTest);

/// The same call in fp32 differs by the rounding of what bf16 products take and give: probabilities
/// P (u each), gradients of scores dS (u each), and the results. With absolute values |out − wide|
/// ≤ u·(P·|v| + |wide|), |dv − wide| ≤ u·(Pᵀ·|dout| + |wide|), and so on; P and dS are those of
/// fp64 loops, and fp32's own errors are 2⁻¹⁰ of the bound.
void NarrowAttentionTest::check(const AttentionCase& c) {
  const Shape of_queries{c.batch, c.queries, c.heads, c.size};
  const Shape of_keys{c.batch, c.keys, c.groups, c.size};
  const float scale = 1.0F / std::sqrt(static_cast<float>(c.size));
  Both q(of_queries, 1, 2), k(of_keys, 2, 2), v(of_keys, 3), dout(of_queries, 4);
  Integers query_positions({c.batch, c.queries}), key_positions({c.batch, c.keys});
  Integers query_documents({c.batch, c.queries}), key_documents({c.batch, c.keys});
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t i = 0; i < c.queries; ++i) {
      query_positions[b * c.queries + i] = static_cast<std::int32_t>(c.keys - c.queries + i);
      query_documents[b * c.queries + i] = static_cast<std::int32_t>((c.keys - c.queries + i) / 45);
    }
    for (std::int64_t i = 0; i < c.keys; ++i) {
      key_positions[b * c.keys + i] = static_cast<std::int32_t>(i);
      key_documents[b * c.keys + i] = static_cast<std::int32_t>(i / 45);
    }
  }
  AttentionMask mask{
      .causal = c.causal, .query_positions = query_positions, .key_positions = key_positions};
  if (c.documents) {
    mask.query_documents = query_documents;
    mask.key_documents = key_documents;
  }
  std::vector<std::int64_t> samples(static_cast<std::size_t>(c.batch));
  std::iota(samples.begin(), samples.end(), 5);
  const Tensor sample(samples.data(), {c.batch});
  const Dropout dropout{c.dropout, {3, Purpose::dropout, 2}};

  Narrow out = poisoned(of_queries);
  Array wide(of_queries), lse({c.batch, c.heads, c.queries}), wide_lse = lse;
  ops->attention(out, lse, q.narrow, k.narrow, v.narrow, mask, scale, dropout, sample);
  ops->attention(wide, wide_lse, q.wide, k.wide, v.wide, mask, scale, dropout, sample);
  // A score of D terms of at most 4, and a few roundings of the logarithm.
  const double of_lse =
      4 * roundoff *
      (4 * std::sqrt(static_cast<double>(c.size)) * static_cast<double>(c.size) + 32);
  for (std::int64_t i = 0; i < lse.elements(); ++i) {
    if (lse[i] == wide_lse[i]) continue;  // −∞
    ASSERT_NEAR(lse[i], wide_lse[i], of_lse) << i;
  }
  // The same out and lse for both backward calls.
  Array same_out = widened(out);
  Narrow dq = poisoned(of_queries), dk = poisoned(of_keys), dv = poisoned(of_keys);
  Array wide_dq(of_queries), wide_dk(of_keys), wide_dv(of_keys);
  ops->attention_backward(dq, dk, dv, dout.narrow, out, lse, q.narrow, k.narrow, v.narrow, mask,
                          scale, dropout, sample);
  ops->attention_backward(wide_dq, wide_dk, wide_dv, dout.wide, same_out, lse, q.wide, k.wide,
                          v.wide, mask, scale, dropout, sample);

  // Bounds, with the largest dropout factor throughout.
  const double factor = 1 / (1 - double{c.dropout}), u = narrow_roundoff * factor * (1 + 1.0 / 256);
  std::vector<double> of_out(static_cast<std::size_t>(out.elements())), of_dq = of_out;
  std::vector<double> of_dk(static_cast<std::size_t>(dk.elements())), of_dv = of_dk;
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t tokens,
                      std::int64_t heads) { return ((b * tokens + t) * heads + h) * c.size; };
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const std::int64_t group = h / (c.heads / c.groups);
      for (std::int64_t i = 0; i < c.queries; ++i) {
        const std::int64_t qi = at(b, i, h, c.queries, c.heads);
        double delta = 0;
        for (std::int64_t d = 0; d < c.size; ++d)
          delta += double{dout.wide[qi + d]} * same_out[qi + d];
        for (std::int64_t j = 0; j < c.keys; ++j) {
          if (c.causal && key_positions[b * c.keys + j] > query_positions[b * c.queries + i])
            continue;
          if (c.documents && key_documents[b * c.keys + j] != query_documents[b * c.queries + i]) {
            continue;
          }
          const std::int64_t kj = at(b, j, group, c.keys, c.groups);
          double score = 0, dp = 0;
          for (std::int64_t d = 0; d < c.size; ++d) {
            score += double{q.wide[qi + d]} * k.wide[kj + d];
            dp += std::abs(double{dout.wide[qi + d]} * v.wide[kj + d]);
          }
          const double p = std::exp(scale * score - lse[(b * c.heads + h) * c.queries + i]);
          const double ds = p * scale * (dp + std::abs(delta) / factor);
          for (std::int64_t d = 0; d < c.size; ++d) {
            of_out[static_cast<std::size_t>(qi + d)] += u * p * std::abs(v.wide[kj + d]);
            of_dq[static_cast<std::size_t>(qi + d)] += u * ds * std::abs(k.wide[kj + d]);
            of_dk[static_cast<std::size_t>(kj + d)] += u * ds * std::abs(q.wide[qi + d]);
            of_dv[static_cast<std::size_t>(kj + d)] += u * p * std::abs(dout.wide[qi + d]);
          }
        }
      }
    }
  }
  expect_rounded(out, wide, "out", 1, of_out);
  expect_rounded(dq, wide_dq, "dq", 1, of_dq);
  expect_rounded(dk, wide_dk, "dk", 1, of_dk);
  expect_rounded(dv, wide_dv, "dv", 1, of_dv);

  const auto alone = make_cpu_ops(1);
  Narrow out1 = poisoned(of_queries), dq1 = poisoned(of_queries), dk1 = poisoned(of_keys),
         dv1 = poisoned(of_keys);
  Array lse1 = wide_lse;
  alone->attention(out1, lse1, q.narrow, k.narrow, v.narrow, mask, scale, dropout, sample);
  alone->attention_backward(dq1, dk1, dv1, dout.narrow, out1, lse1, q.narrow, k.narrow, v.narrow,
                            mask, scale, dropout, sample);
  expect_same(out, out1, "out on one thread");
  expect_same(dq, dq1, "dq on one thread");
  expect_same(dk, dk1, "dk on one thread");
  expect_same(dv, dv1, "dv on one thread");
}

TEST_P(NarrowAttentionTest, StaysWithinTheRoundingOfItsFactors) {
  check({2, 37, 37, 3, 3, 6, true, 0, false});
  check({1, 130, 130, 2, 1, 64, true, 0, false});
  check({1, 150, 150, 2, 2, 16, true, 0, true});
  check({1, 9, 100, 4, 2, 5, true, 0, false});
  check({3, 20, 41, 2, 2, 70, false, 0, false});
  check({2, 70, 70, 2, 1, 32, true, 0.25F, false});
  check({1, 620, 620, 1, 1, 8, true, 0, true});
  check({20, 3, 3, 1, 1, 4, true, 0, false});
}

}  // namespace
}  // namespace trireme::ops
