// Attention: masks, groups, slices of heads, dropout, sizes that tiles do not divide.
#include <cmath>

#include "harness.hpp"

namespace trireme::ops {
namespace {

using Tensors = std::vector<Tensor>;

struct Problem {
  std::int64_t batch, queries, keys, heads, groups, size;
  bool causal = true, documents = false, plain = false;
  float rate = 0;
  HeadSlice slice = {};
  std::int64_t gap = 0;
};

std::string name_of(const Problem& p) {
  return fmt::format("attention {}x{}x{} heads {}/{} size {}{}{}{} rate {} slice {}/{}", p.batch,
                     p.queries, p.keys, p.heads, p.groups, p.size, p.causal ? " causal" : "",
                     p.documents ? " documents" : "", p.plain ? " plain" : "", p.rate,
                     p.slice.first, p.slice.all);
}

/// Queries have the last keys' positions, as with a key/value cache.
std::vector<double> positions(const Problem& p, std::int64_t tokens) {
  std::vector<double> all;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      all.push_back(static_cast<double>(p.keys - tokens + i));
    }
  }
  return all;
}

/// Documents of uneven lengths; the last queries' document has no keys.
std::vector<double> documents(const Problem& p, std::int64_t tokens, bool queries) {
  std::vector<double> all;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t place = p.keys - tokens + i;
      const bool alone = queries && i + 3 >= tokens;
      const std::int64_t document = alone ? 1000 : place / (37 + 5 * b);
      all.push_back(static_cast<double>(document));
    }
  }
  return all;
}

void check(const Problem& p) {
  Case both(name_of(p));
  const Shape of_queries{p.batch, p.queries, p.heads, p.size};
  const Shape of_keys{p.batch, p.keys, p.groups, p.size};
  both.in(of_queries, 2, p.gap).in(of_keys, 2, p.gap).in(of_keys, 1, p.gap);     // 0 q 1 k 2 v
  both.in(of_queries, 1, p.gap);                                                 // 3 dout
  both.integers({p.batch, p.queries}, positions(p, p.queries));                  // 4
  both.integers({p.batch, p.keys}, positions(p, p.keys));                        // 5
  both.integers({p.batch, p.queries}, documents(p, p.queries, true));            // 6
  both.integers({p.batch, p.keys}, documents(p, p.keys, false));                 // 7
  both.integers({p.batch}, random_integers(p.batch, 100000), Kind::i64);         // 8
  both.out(of_queries, p.gap).out({p.batch, p.heads, p.queries}, 0, Kind::f32);  // 9 out 10 lse
  both.out(of_queries, p.gap).out(of_keys, p.gap).out(of_keys, p.gap);  // 11 dq 12 dk 13 dv
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.size)));
  // Probabilities and their gradients are rounded once more, as factors of products.
  both.within(1e-5).narrow_within(2e-2).times_rounding(3);
  both.check([&](Ops& ops, const Tensors& t) {
    AttentionMask mask;
    mask.causal = p.causal;
    if (p.causal) {
      mask.query_positions = t[4];
      mask.key_positions = t[5];
    }
    if (p.documents) {
      mask.query_documents = t[6];
      mask.key_documents = t[7];
    }
    mask.plain = p.plain;
    const Dropout dropout{p.rate, {test_seed(), Purpose::dropout, 11}};
    ops.attention(t[9], t[10], t[0], t[1], t[2], mask, scale, dropout, t[8], p.slice);
    ops.attention_backward(t[11], t[12], t[13], t[3], t[9], t[10], t[0], t[1], t[2], mask, scale,
                           dropout, t[8], p.slice);
  });
}

TEST(Attention, Plain) {
  for (const std::int64_t size : {8, 64, 40}) {
    check({2, 70, 70, 4, 2, size, true, false, true});
  }
  if (is_emulated()) return;
  check({2, 1024, 1024, 12, 12, 64, true, false, true});
  check({1, 777, 777, 8, 2, 128, true, false, true});
}

TEST(Attention, CausalWithACache) {
  check({1, 3, 70, 2, 2, 16});
  check({2, 65, 130, 2, 1, 24});
  if (!is_emulated()) check({2, 500, 1234, 6, 3, 96});
}

TEST(Attention, NotCausal) { check({1, 33, 66, 2, 2, 32, false}); }

TEST(Attention, Documents) {
  check({2, 90, 90, 2, 1, 16, true, true});
  check({1, 40, 130, 1, 1, 72, false, true});
  if (!is_emulated()) check({2, 2048, 2048, 4, 4, 64, true, true});
}

TEST(Attention, DropoutByLogicalIndex) {
  check({2, 37, 37, 2, 2, 16, true, false, false, 0.25F});
  check({1, 20, 66, 1, 1, 80, true, false, false, 0.4F, HeadSlice{}, 8});
}

TEST(Attention, SliceOfHeads) {
  // Heads 3 … 7 of 12 that share groups in threes: groups 1 and 2, in part.
  check({1, 21, 21, 5, 2, 16, true, false, false, 0.2F, HeadSlice{3, 12, 3}});
  check({1, 21, 21, 3, 2, 16, true, false, false, 0, HeadSlice{2, 12, 3}});
}

TEST(Attention, OddAndLargeHeads) {
  check({1, 19, 19, 2, 2, 7, true, false, false, 0, HeadSlice{}, 3});
  check({1, 35, 35, 1, 1, 160});
  check({1, 35, 35, 2, 1, 256});
  check({1, 1, 1, 1, 1, 1});
}

}  // namespace
}  // namespace trireme::ops
