// Products of bf16, with this machine's instructions and with widened elements.
#include <limits>

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
                device::aligned(cpu_narrow_attention_workspace({&s, 1}, threads)));
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

}  // namespace
}  // namespace trireme::ops
