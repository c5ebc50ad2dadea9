// bf16 attention differs from fp32 by the rounding of its factors. Host knowledge of a mask saves
// work and changes no bit, whatever an earlier call left in the work space.
#include <cmath>
#include <numeric>

#include "bf16_support.hpp"

namespace trireme::ops {
namespace {

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

struct Results {
  Narrow out, dq, dk, dv;
  Array lse;
};

class NarrowPlainMaskTest : public OpsTest {
 protected:
  Results run(Ops& backend, std::int64_t length, std::int64_t heads, std::int64_t groups,
              std::int64_t size, bool plain, bool poison) {
    const Shape of_queries{1, length, heads, size}, of_keys{1, length, groups, size};
    Both q(of_queries, 1, 2), k(of_keys, 2, 2), v(of_keys, 3), dout(of_queries, 4);
    if (poison) q.narrow = k.narrow = v.narrow = dout.narrow = poisoned(of_queries);
    Integers positions({1, length});
    for (std::int64_t i = 0; i < length; ++i) positions[i] = static_cast<std::int32_t>(i);
    AttentionMask mask{.causal = true, .query_positions = positions, .key_positions = positions};
    mask.plain = plain;
    std::int64_t sample = 5;
    const Tensor samples(&sample, {1});
    const Dropout dropout{0.1F, {3, Purpose::dropout, 2}};
    Results r{poisoned(of_queries), poisoned(of_queries), poisoned(of_keys), poisoned(of_keys),
              Array({1, heads, length})};
    backend.attention(r.out, r.lse, q.narrow, k.narrow, v.narrow, mask, 0.25F, dropout, samples);
    backend.attention_backward(r.dq, r.dk, r.dv, dout.narrow, r.out, r.lse, q.narrow, k.narrow,
                               v.narrow, mask, 0.25F, dropout, samples);
    return r;
  }
};
TRIREME_FOR_INSTRUCTION_SETS(NarrowPlainMaskTest);

TEST_P(NarrowPlainMaskTest, GivesTheSameBits) {
  struct Case {
    std::int64_t length, heads, groups, size;
  };
  for (const Case& c : std::vector<Case>{{5, 2, 2, 7}, {203, 4, 2, 16}, {620, 1, 1, 70}}) {
    SCOPED_TRACE(c.length);
    const auto backend = make_cpu_ops(1);
    run(*backend, c.length, c.groups, c.groups, c.size, true, true);
    const Results plain = run(*backend, c.length, c.heads, c.groups, c.size, true, false);
    const Results masked = run(*ops, c.length, c.heads, c.groups, c.size, false, false);
    expect_same(plain.out, masked.out, "out");
    expect_same_bits(plain.lse, masked.lse, "lse");
    expect_same(plain.dq, masked.dq, "dq");
    expect_same(plain.dk, masked.dk, "dk");
    expect_same(plain.dv, masked.dv, "dv");
  }
}

}  // namespace
}  // namespace trireme::ops
