// Several calls at once, which threads share, have the bits of the single calls that Ops makes of
// them where a backend does not override it.
#include <set>

#include <fmt/format.h>

#include "trireme/device/memory.hpp"
#include "trireme/ops/workspace.hpp"

#include "bf16_support.hpp"

namespace trireme::ops {
namespace {

class IndependentTest : public OpsTest {};
TRIREME_FOR_INSTRUCTION_SETS(IndependentTest);

/// A sum of products, and the same by matmul and add.
struct SumOfProducts {
  std::int64_t m, n;
  std::vector<std::int64_t> inner;  // of each product; 0: an empty one
  bool transpose_b;
  std::int64_t bias;  // the product that has one
};

template <class T>
ArrayOf<T> array_of(const Shape& shape, std::uint32_t stream, std::int64_t gap) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return narrowed(random_array(shape, stream), gap);
  } else {
    return random_array(shape, stream, 1, gap);
  }
}

/// Compares the sum with that of single calls, and its workspace with the prediction.
template <class T>
void check_sum(const SumOfProducts& s, bool reproducible) {
  std::vector<ArrayOf<T>> left, right;
  ArrayOf<T> bias = array_of<T>({s.n}, 3, 0);
  std::vector<Matmul> products;
  for (std::size_t i = 0; i < s.inner.size(); ++i) {
    const std::int64_t k = s.inner[i];
    const auto stream = static_cast<std::uint32_t>(10 + i);
    left.push_back(array_of<T>({s.m, k}, stream, 2));
    right.push_back(array_of<T>(s.transpose_b ? Shape{s.n, k} : Shape{k, s.n}, 100 + stream, 0));
  }
  for (std::size_t i = 0; i < s.inner.size(); ++i) {
    MatmulOptions options{.transpose_b = s.transpose_b};
    if (static_cast<std::int64_t>(i) == s.bias) options.bias = bias;
    products.push_back({{}, left[i], right[i], options});
  }
  for (const int threads : {1, 2, 3, 8}) {
    device::MemoryLedger ledger;
    const auto ops = make_cpu_ops(threads, &ledger, reproducible);
    const auto single = make_cpu_ops(threads, nullptr, reproducible);
    const auto sum = [&](bool at_once) {
      Array result({s.m, s.n});
      std::vector<Array> memory;
      for (std::size_t count = s.inner.size(); count > 1; count /= 2) {
        memory.emplace_back(Shape{s.m + 1, s.n});  // a row more than the sum has
      }
      std::vector<Tensor> levels(memory.begin(), memory.end());
      for (Array& level : memory) {
        for (std::int64_t i = 0; i < level.elements(); ++i) level[i] = Array::sentinel();
      }
      if (at_once) {
        ops->sum_of_matmuls(result, levels, products);
      } else {
        single->Ops::sum_of_matmuls(result, levels, products);
      }
      for (Array& level : memory) {
        EXPECT_EQ(level[s.m * s.n], Array::sentinel()) << "a row beyond the sum was written";
      }
      return result;
    };
    const Array actual = sum(true), expected = sum(false);
    expect_same_bits(
        actual, expected,
        fmt::format("{} products [{}, {}] on {} threads", s.inner.size(), s.m, s.n, threads));
    if (s.inner.size() > 1 && (std::is_same_v<T, Bf16> || reproducible)) {
      const std::size_t bytes =
          std::is_same_v<T, Bf16>
              ? cpu_sum_workspace(s.m, s.n, s.inner, threads)
              : cpu_float_sum_workspace(s.m, s.n, 0, std::ssize(s.inner), threads);
      EXPECT_EQ(static_cast<std::size_t>(ledger.peak(device::Use::workspace)),
                device::aligned(bytes));
    }
  }
}

const std::vector<SumOfProducts> sums{
    {.m = 256, .n = 384, .inner = {0, 48, 48, 0, 48, 48, 48, 48}, .transpose_b = true, .bias = 0},
    {.m = 131, .n = 203, .inner = {31, 70, 1, 97}, .transpose_b = false, .bias = -1},
    {.m = 1, .n = 5, .inner = {3, 2}, .transpose_b = true, .bias = 1},
    {.m = 40, .n = 70, .inner = {4099, 8193}, .transpose_b = false, .bias = 0},
    {.m = 300, .n = 130, .inner = {400, 300, 500, 0}, .transpose_b = true, .bias = 3},
    {.m = 9, .n = 64, .inner = {0, 0, 0, 0}, .transpose_b = true, .bias = -1},
    {.m = 50, .n = 33, .inner = {64}, .transpose_b = true, .bias = 0}};

TEST_P(IndependentTest, SumOfProducts) {
  for (const SumOfProducts& s : sums) {
    check_sum<float>(s, true);
    check_sum<float>(s, false);
    check_sum<Bf16>(s, true);
  }
}

// Passes over blocks of columns, where packed right factors would take too much memory.
TEST(Independent, SumOfManyColumns) {
  check_sum<Bf16>(
      {.m = 70, .n = 1500, .inner = {1024, 1000, 512, 2048}, .transpose_b = false, .bias = 0},
      true);
}

/// Products and a sum of products of all rows at once, and of one group of rows after the other.
template <class T>
void check_groups(std::int64_t rows, std::int64_t groups, std::int64_t n, std::int64_t k) {
  ArrayOf<T> a = array_of<T>({groups * rows, k}, 1, 2), b = array_of<T>({n, k}, 2, 0);
  const auto part = [&](const Tensor& x, std::int64_t group) {
    return x.slice(0, group * rows, (group + 1) * rows);
  };
  for (const int threads : {1, 2, 8}) {
    const auto ops = make_cpu_ops(threads, nullptr, true);
    Array product({groups * rows, n}), sum = product, level = product;
    Array single = product, single_sum = product, single_level = product;
    const auto multiply = [&](const Tensor& c, const Tensor& total, const Tensor& other,
                              const Tensor& left) {
      const MatmulOptions options{.transpose_b = true, .group_rows = rows};
      ops->matmul(c, left, b, options);
      const Matmul products[] = {{{}, left, b, options}, {{}, left, b, options}};
      const Tensor levels[] = {other};
      ops->sum_of_matmuls(total, levels, products);
    };
    multiply(product, sum, level, a);
    for (std::int64_t i = 0; i < groups; ++i) {
      multiply(part(single, i), part(single_sum, i), part(single_level, i), part(a, i));
    }
    const std::string what =
        fmt::format("{} groups of [{}, {}] from {} on {} threads", groups, rows, n, k, threads);
    expect_same_bits(product, single, what);
    expect_same_bits(sum, single_sum, what + ", summed");
  }
}

// The sequences of a micro-batch in reproducible mode, whose number must not change the bits.
TEST_P(IndependentTest, GroupsOfRowsHaveTheBitsOfProductsOfTheirOwn) {
  for (const auto& [rows, n, k] : {std::array<std::int64_t, 3>{1, 300, 70},
                                   {2, 9, 4096},
                                   {7, 384, 192},
                                   {130, 203, 97},
                                   {256, 192, 48}}) {
    check_groups<float>(rows, 3, n, k);
    check_groups<Bf16>(rows, 3, n, k);
  }
  const auto ops = make_cpu_ops(1, nullptr, true);
  Array a({4, 3}), b({3, 5}), c({4, 5});
  EXPECT_ANY_THROW(ops->matmul(c, a, b, {.group_rows = 3}));
}

/// Sums of other sizes, of right factors of one size, or of the same right factors.
enum class Rights : std::uint8_t { differ, alike, shared };

/// Sums of `terms` terms of `each` products, which add to what is there if there is one term, and
/// sums over rows beside them: at once, and call by call.
template <class T>
void check_sums(bool reproducible, std::int64_t terms, std::int64_t each,
                Rights rights = Rights::differ) {
  struct Size {
    std::int64_t m, n, k;
  };
  const std::vector<Size> sizes =
      rights == Rights::differ ? std::vector<Size>{{70, 203, 31},
                                                   {1, 5, 3},
                                                   {192, 400, 256},
                                                   {300, 9, 1},
                                                   {40, 70, 1500}}
      : rights == Rights::alike
          ? std::vector<Size>{{70, 203, 131}, {192, 203, 131}, {1, 203, 131}}
          : std::vector<Size>{{9, 700, 1500}, {70, 700, 1500}, {1, 700, 1500}};  // several passes
  const std::int64_t count = terms * each;
  for (const int threads : {1, 2, 8}) {
    device::MemoryLedger ledger;
    const auto ops = make_cpu_ops(threads, &ledger, reproducible);
    std::set<std::size_t> others;  // slots, which hold sums of some terms or what they held
    const auto all = [&](bool at_once) {
      std::vector<Array> results;
      std::vector<ArrayOf<T>> factors;
      std::vector<MatmulSum> sums(sizes.size());
      results.reserve(100), factors.reserve(1000);
      std::uint32_t stream = 0;
      for (std::size_t s = 0; s < sizes.size(); ++s) {
        const auto& [m, n, k] = sizes[s];
        for (std::int64_t slots = terms; slots > 0; slots /= 2) {
          if (slots < terms) others.insert(results.size());
          sums[s].slots.emplace_back(results.emplace_back(random_array({m, n}, ++stream)));
        }
        for (std::int64_t i = 0; i < count; ++i) {
          MatmulOptions options{.transpose_a = true, .accumulate = i % each > 0 || terms == 1};
          if (s % 2 == 0 && i % each == 0) results.push_back(random_array({m}, ++stream));
          if (s % 2 == 0) options.row_sum = results.back();
          Tensor left = factors.emplace_back(array_of<T>({k, m}, ++stream, 2));
          const bool again = rights == Rights::shared && s > 0;
          Tensor right = again ? sums.front().products[static_cast<std::size_t>(i)].b
                               : factors.emplace_back(array_of<T>({k, n}, ++stream, 0));
          sums[s].products.push_back({{}, left, right, options});
        }
      }
      if (at_once) {
        ops->independent_sums(sums);
        return results;
      }
      for (const MatmulSum& sum : sums) {
        sum_pairwise(
            terms,
            [&](std::int64_t term, std::int64_t slot) {
              for (std::int64_t i = 0; i < each; ++i) {
                const Matmul p = sum.product(term, i, slot);
                ops->matmul(p.c, p.a, p.b, p.options);
              }
            },
            [&](std::int64_t to, std::int64_t from) {
              const Tensor& total = sum.slots[static_cast<std::size_t>(to)];
              ops->add(total, total, sum.slots[static_cast<std::size_t>(from)]);
            });
      }
      return results;
    };
    const std::vector<Array> actual = all(true);
    if (terms > 1 && reproducible) {
      std::vector<ProductSumShape> shapes;
      std::size_t bytes = 0;
      for (const auto& [m, n, k] : sizes) {
        shapes.push_back({m, n, k, count});
        bytes = std::max(bytes, cpu_float_sum_workspace(m, n, 0, terms, threads));
      }
      if (std::is_same_v<T, Bf16>) {
        bytes = cpu_left_sum_workspace(shapes, terms, rights == Rights::shared, threads);
      }
      EXPECT_EQ(static_cast<std::size_t>(ledger.peak(device::Use::workspace)),
                device::aligned(bytes))
          << terms << " terms of " << each << ", " << threads;
    }
    const std::vector<Array> expected = all(false);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (others.contains(i)) continue;
      expect_same_bits(
          actual[i], expected[i],
          fmt::format("result {} of {} terms of {} on {} threads", i, terms, each, threads));
    }
  }
}

TEST_P(IndependentTest, SumsOfProductsHaveTheBitsOfSingleCalls) {
  for (const auto& [terms, each] : {std::array<std::int64_t, 2>{1, 1}, {1, 3}, {4, 1}, {8, 2}}) {
    check_sums<float>(true, terms, each);
    check_sums<float>(false, terms, each);
    check_sums<Bf16>(true, terms, each);
  }
  for (const Rights rights : {Rights::alike, Rights::shared}) {
    check_sums<float>(true, 4, 1, rights);
    check_sums<Bf16>(true, 4, 1, rights);
  }
  make_cpu_ops(2)->independent_sums({});  // none: nothing happens
}

TEST(Independent, SumsOfOtherFormsAreRefused) {
  const auto ops = make_cpu_ops(2, nullptr, true);
  Array a({4, 3}), b({3, 5}), sum({4, 5}), level({4, 5}), wrong({2, 5});
  const Tensor levels[] = {level};
  const auto sum_of = [&](const Matmul& second) {
    const Matmul products[] = {{{}, a, b, {}}, second};
    ops->sum_of_matmuls(sum, levels, products);
  };
  EXPECT_NO_THROW(sum_of({{}, a, b, {}}));
  EXPECT_ANY_THROW(sum_of({{}, a, wrong, {}}));
  EXPECT_ANY_THROW(sum_of({{}, a, b, {.accumulate = true}}));
  EXPECT_ANY_THROW(sum_of({{}, a, b, {.transpose_a = true}}));
}

/// Heads of several tiles of a model of 7 query heads that share 7 or 1 key/value heads.
template <class T>
void check_attention(std::int64_t batch, std::int64_t tokens, bool shared, bool dropped) {
  const std::vector<std::int64_t> tiles{1, 3, 2, 1};
  constexpr std::int64_t all = 7, size = 16;
  struct Heads {
    ArrayOf<T> q, k, v, dout;
  };
  std::vector<Heads> inputs;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const std::int64_t heads = tiles[i], groups = shared ? 1 : heads;
    const auto stream = static_cast<std::uint32_t>(4 * i);
    inputs.push_back({array_of<T>({batch, tokens, heads, size}, stream, 0),
                      array_of<T>({batch, tokens, groups, size}, stream + 1, 0),
                      array_of<T>({batch, tokens, groups, size}, stream + 2, 0),
                      array_of<T>({batch, tokens, heads, size}, stream + 3, 0)});
  }
  ArrayOf<std::int64_t> samples({batch});
  for (std::int64_t b = 0; b < batch; ++b) samples[b] = 50 + b;
  const Dropout dropout{dropped ? 0.25F : 0.0F, {99, Purpose::dropout, 3}};
  Integers positions({batch, tokens});
  for (std::int64_t i = 0; i < batch * tokens; ++i) {
    positions[i] = static_cast<std::int32_t>(i % tokens);
  }
  const AttentionMask mask{
      .causal = true, .query_positions = positions, .key_positions = positions, .plain = true};
  for (const int threads : {1, 2, 3, 8}) {
    device::MemoryLedger ledger;
    const auto ops = make_cpu_ops(threads, &ledger), single = make_cpu_ops(threads);
    struct Results {
      std::vector<ArrayOf<T>> narrow;  // out, dq, dk, dv of each tile
      std::vector<Array> lse;
    };
    std::vector<AttentionShape> shapes;
    const auto run = [&](bool at_once) {
      Results r;
      for (std::size_t i = 0; i < tiles.size(); ++i) {
        const Shape of_queries{batch, tokens, tiles[i], size};
        const Shape of_keys{batch, tokens, inputs[i].k.extent(2), size};
        for (const Shape& shape : {of_queries, of_queries, of_keys, of_keys}) {
          r.narrow.emplace_back(shape);
        }
        r.lse.emplace_back(Shape{batch, tiles[i], tokens});
      }
      std::vector<AttentionHeads> calls;
      shapes.clear();
      std::int64_t first = 0;
      for (std::size_t i = 0; i < tiles.size(); ++i) {
        Heads& x = inputs[i];
        calls.push_back({r.narrow[4 * i],
                         r.lse[i],
                         x.q,
                         x.k,
                         x.v,
                         {first, all, shared ? all : 1},
                         r.narrow[4 * i + 1],
                         r.narrow[4 * i + 2],
                         r.narrow[4 * i + 3],
                         x.dout});
        shapes.push_back({batch, tokens, tokens, tiles[i], x.k.extent(2), size});
        first += tiles[i];
      }
      if (at_once) {
        ops->independent_attention(calls, mask, 0.25F, dropout, samples);
        ops->independent_attention_backward(calls, mask, 0.25F, dropout, samples);
      } else {
        single->Ops::independent_attention(calls, mask, 0.25F, dropout, samples);
        single->Ops::independent_attention_backward(calls, mask, 0.25F, dropout, samples);
      }
      return r;
    };
    const Results actual = run(true), expected = run(false);
    const auto what = [&](std::size_t i) {
      return fmt::format("{} tokens, result {} on {} threads", tokens, i, threads);
    };
    for (std::size_t i = 0; i < actual.narrow.size(); ++i) {
      if constexpr (std::is_same_v<T, Bf16>) {
        expect_same(actual.narrow[i], expected.narrow[i], what(i));
      } else {
        expect_same_bits(actual.narrow[i], expected.narrow[i], what(i));
      }
    }
    for (std::size_t i = 0; i < actual.lse.size(); ++i) {
      expect_same_bits(actual.lse[i], expected.lse[i], "lse: " + what(i));
    }
    const std::size_t bytes = std::is_same_v<T, Bf16>
                                  ? cpu_narrow_attention_workspace(shapes, threads)
                                  : cpu_attention_workspace(shapes, threads);
    EXPECT_EQ(static_cast<std::size_t>(ledger.peak(device::Use::workspace)),
              device::aligned(bytes));
  }
}

TEST_P(IndependentTest, Attention) {
  for (const bool shared : {false, true}) {
    for (const bool dropped : {false, true}) {
      check_attention<float>(1, 200, shared, dropped);
      check_attention<float>(9, 70, shared, dropped);  // whole heads
      check_attention<Bf16>(1, 200, shared, dropped);
      check_attention<Bf16>(9, 70, shared, dropped);
    }
  }
  check_attention<float>(1, 600, false, false);  // two chunks of keys
}

/// Attention of several sequences at once in reproducible mode, and of one after the other.
template <class T>
void check_sequences(std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                     std::int64_t groups) {
  constexpr std::int64_t size = 16;
  const Shape of_queries{batch, tokens, heads, size}, of_keys{batch, tokens, groups, size};
  ArrayOf<T> q = array_of<T>(of_queries, 1, 0), k = array_of<T>(of_keys, 2, 0),
             v = array_of<T>(of_keys, 3, 0), dout = array_of<T>(of_queries, 4, 0);
  Integers positions({batch, tokens});
  for (std::int64_t i = 0; i < batch * tokens; ++i) {
    positions[i] = static_cast<std::int32_t>(i % tokens);
  }
  for (const int threads : {1, 3}) {
    device::MemoryLedger ledger;
    const auto ops = make_cpu_ops(threads, &ledger, true);
    const auto single = make_cpu_ops(threads, nullptr, true);
    ArrayOf<T> out(of_queries), dq(of_queries), dk(of_keys), dv(of_keys);
    ArrayOf<T> out_1 = out, dq_1 = dq, dk_1 = dk, dv_1 = dv;
    Array lse({batch, heads, tokens}), lse_1 = lse;
    const auto attend = [&](Ops& backend, std::int64_t begin, std::int64_t end,
                            const std::array<Tensor, 5>& results) {
      const auto part = [&](const Tensor& x) { return x.slice(0, begin, end); };
      const AttentionMask mask{.causal = true,
                               .query_positions = part(positions),
                               .key_positions = part(positions),
                               .plain = true};
      const AttentionHeads call{
          part(results[0]), part(results[1]), part(q),          part(k),   part(v), {},
          part(results[2]), part(results[3]), part(results[4]), part(dout)};
      backend.independent_attention({&call, 1}, mask, 0.25F, {}, {});
      backend.independent_attention_backward({&call, 1}, mask, 0.25F, {}, {});
    };
    attend(*ops, 0, batch, {out, lse, dq, dk, dv});
    for (std::int64_t b = 0; b < batch; ++b) {
      attend(*single, b, b + 1, {out_1, lse_1, dq_1, dk_1, dv_1});
    }
    const std::string what =
        fmt::format("{} sequences of {} tokens, {} heads on {}, {} threads: ", batch, tokens, heads,
                    groups, threads);
    const auto expect = [&](const ArrayOf<T>& actual, const ArrayOf<T>& expected,
                            const char* name) {
      if constexpr (std::is_same_v<T, Bf16>) {
        expect_same(actual, expected, what + name);
      } else {
        expect_same_bits(actual, expected, what + name);
      }
    };
    expect(out, out_1, "out");
    expect(dq, dq_1, "dq");
    expect(dk, dk_1, "dk");
    expect(dv, dv_1, "dv");
    expect_same_bits(lse, lse_1, what + "lse");
    const AttentionShape shape{batch, tokens, tokens, heads, groups, size};
    const std::size_t bytes = std::is_same_v<T, Bf16>
                                  ? cpu_narrow_attention_workspace({&shape, 1}, threads, true)
                                  : cpu_attention_workspace({&shape, 1}, threads, true);
    EXPECT_EQ(static_cast<std::size_t>(ledger.peak(device::Use::workspace)),
              device::aligned(bytes));
  }
}

// One part of a head, parts that fewer sequences would not have, more than one chunk of keys.
TEST_P(IndependentTest, SequencesHaveTheBitsOfCallsOfTheirOwn) {
  for (const auto& [batch, tokens, heads, groups] : {std::array<std::int64_t, 4>{3, 70, 2, 1},
                                                     {5, 300, 4, 4},
                                                     {3, 600, 2, 2},
                                                     {9, 300, 6, 2},
                                                     {4, 530, 4, 1}}) {
    check_sequences<float>(batch, tokens, heads, groups);
    check_sequences<Bf16>(batch, tokens, heads, groups);
  }
}

TEST(Independent, AttentionOfOtherShapesIsRefused) {
  const auto ops = make_cpu_ops(1);
  Array x({1, 4, 1, 8}), longer({1, 5, 1, 8}), lse({1, 1, 4}), longer_lse({1, 1, 5});
  const AttentionHeads calls[] = {{x, lse, x, x, x, {}, {}, {}, {}, {}},
                                  {longer, longer_lse, longer, longer, longer, {}, {}, {}, {}, {}}};
  EXPECT_ANY_THROW(ops->independent_attention(calls, {.plain = true}, 1, {}, {}));
  ops->independent_attention({}, {}, 1, {}, {});  // none: nothing happens
}

TEST_P(IndependentTest, TermsOfSums) {
  for (const std::size_t count : {1, 2, 3, 4, 8, 64}) {
    for (const std::int64_t elements : {1, 1023, 70001}) {
      std::vector<Array> before;
      for (std::size_t i = 0; i < count; ++i) {
        before.push_back(random_array({elements}, static_cast<std::uint32_t>(i)));
      }
      std::vector<Array> expected = before;
      const std::vector<Tensor> terms(expected.begin(), expected.end());
      ops->Ops::add_up(terms);
      for (const int threads : {1, 2, 3}) {
        std::vector<Array> actual = before;
        make_cpu_ops(threads)->add_up(std::vector<Tensor>(actual.begin(), actual.end()));
        expect_same_bits(actual.front(), expected.front(),
                         fmt::format("{} terms of {} on {} threads", count, elements, threads));
      }
    }
  }
}

TEST_P(IndependentTest, RowSums) {
  for (const std::int64_t rows : {5, 64, 300}) {
    constexpr std::int64_t calls = 5, columns = 130;
    Array dy = random_array({calls * rows, columns}, 1),
          x = random_array({calls * rows, columns}, 2);
    Array mean = random_array({calls * rows}, 3), rstd = random_array({calls * rows}, 4);
    for (const int threads : {1, 2, 3, 8}) {
      device::MemoryLedger ledger;
      const auto backend = make_cpu_ops(threads, &ledger);
      const auto sums = [&](bool at_once) {
        std::vector<Array> results;
        for (std::int64_t i = 0; i < 2 * calls; ++i) {
          results.push_back(random_array({columns}, static_cast<std::uint32_t>(20 + i)));
        }
        std::vector<RowSums> all;
        for (std::int64_t i = 0; i < calls; ++i) {
          const auto part = [&](Array& of) { return of.view().slice(0, i * rows, (i + 1) * rows); };
          Array &gain = results[static_cast<std::size_t>(2 * i)],
                &bias = results[static_cast<std::size_t>(2 * i + 1)];
          if (i == 2) {
            all.push_back({.dgain = gain, .dy = part(dy)});
          } else {
            all.push_back({gain, bias, part(dy), part(x), part(mean), part(rstd)});
          }
        }
        at_once ? backend->independent_row_sums(all) : ops->Ops::independent_row_sums(all);
        return results;
      };
      const std::vector<Array> actual = sums(true), expected = sums(false);
      for (std::size_t i = 0; i < actual.size(); ++i) {
        expect_same_bits(actual[i], expected[i],
                         fmt::format("sum {} of {} rows on {} threads", i, rows, threads));
      }
      EXPECT_EQ(static_cast<std::size_t>(ledger.peak(device::Use::workspace)),
                device::aligned(cpu_row_sum_workspace(rows, columns, 2, calls, threads)));
    }
  }
}

}  // namespace
}  // namespace trireme::ops
