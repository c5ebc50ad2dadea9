#include <random>

#include "trireme/device/memory.hpp"
#include "trireme/ops/workspace.hpp"

#include "support.hpp"

namespace trireme::ops {
namespace {

struct Sizes {
  std::int64_t batch, queries, keys, heads, groups, size;
};

/// One attention problem with its inputs.
struct Problem {
  Problem(const Sizes& sizes, float rate, std::int64_t gap)
      : s(sizes),
        q(random_array({s.batch, s.queries, s.heads, s.size}, 1, 2, gap)),
        k(random_array({s.batch, s.keys, s.groups, s.size}, 2, 2, gap)),
        v(random_array({s.batch, s.keys, s.groups, s.size}, 3, 1, gap)),
        dout(random_array({s.batch, s.queries, s.heads, s.size}, 4, 1, gap)),
        out({s.batch, s.queries, s.heads, s.size}, gap),
        lse({s.batch, s.heads, s.queries}),
        dq({s.batch, s.queries, s.heads, s.size}, gap),
        dk({s.batch, s.keys, s.groups, s.size}, gap),
        dv({s.batch, s.keys, s.groups, s.size}, gap),
        query_positions({s.batch, s.queries}),
        key_positions({s.batch, s.keys}),
        query_documents({s.batch, s.queries}),
        key_documents({s.batch, s.keys}),
        samples({s.batch}) {
    dropout = {rate, {99, Purpose::dropout, 3}};
    for (std::int64_t b = 0; b < s.batch; ++b) {
      samples[b] = 1000 + 7 * b;
      // The last query is at the last key, as in generation with a key/value cache.
      for (std::int64_t i = 0; i < s.queries; ++i) {
        query_positions[b * s.queries + i] = static_cast<std::int32_t>(s.keys - s.queries + i);
      }
      for (std::int64_t j = 0; j < s.keys; ++j) {
        key_positions[b * s.keys + j] = static_cast<std::int32_t>(j);
      }
    }
  }
  AttentionMask mask() {
    AttentionMask m;
    m.causal = causal;
    m.plain = plain;
    if (causal) {
      m.query_positions = query_positions;
      m.key_positions = key_positions;
    }
    if (documents) {
      m.query_documents = query_documents;
      m.key_documents = key_documents;
    }
    return m;
  }
  bool sees(std::int64_t b, std::int64_t i, std::int64_t j) const {
    if (causal && key_positions[b * s.keys + j] > query_positions[b * s.queries + i]) return false;
    return !documents || key_documents[b * s.keys + j] == query_documents[b * s.queries + i];
  }
  double kept(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (dropout.rate == 0) return 1;
    const std::int64_t index = ((samples[b] * s.heads + h) * s.queries + i) * s.keys + j;
    return random_bits(dropout.key, static_cast<std::uint64_t>(index)) >=
                   dropout.rate * 4294967296.0
               ? 1.0 / (1.0 - double{dropout.rate})
               : 0.0;
  }
  void forward(Ops& ops) {
    ops.attention(out, lse, q, k, v, mask(), static_cast<float>(scale), dropout, samples);
  }
  void backward(Ops& ops) {
    ops.attention_backward(dq, dk, dv, dout, out, lse, q, k, v, mask(), static_cast<float>(scale),
                           dropout, samples);
  }

  Sizes s;
  Array q, k, v, dout, out, lse, dq, dk, dv;
  Integers query_positions, key_positions, query_documents, key_documents;
  ArrayOf<std::int64_t> samples;
  Dropout dropout;
  bool causal = true, documents = false, plain = false;
  double scale = 0.25;  // exact in fp32
};

struct Inputs {
  std::vector<double> q, k, v;
};

/// Attention in fp64. `sizes`, if given, receives Σ P|v|, the scale of the error of `out`.
std::vector<double> reference(const Problem& p, const Inputs& x, std::vector<double>* lse = nullptr,
                              std::vector<double>* sizes = nullptr) {
  const Sizes& s = p.s;
  std::vector<double> out(p.dout.values().size());
  if (lse != nullptr) lse->clear();
  if (sizes != nullptr) sizes->assign(out.size(), 0);
  std::vector<double> scores(static_cast<std::size_t>(s.keys));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t group = h / (s.heads / s.groups);
      for (std::int64_t i = 0; i < s.queries; ++i) {
        const auto at = static_cast<std::size_t>(((b * s.queries + i) * s.heads + h) * s.size);
        const auto key = [&](std::int64_t j) {
          return static_cast<std::size_t>(((b * s.keys + j) * s.groups + group) * s.size);
        };
        double sum = 0;
        for (std::int64_t j = 0; j < s.keys; ++j) {
          double& score = scores[static_cast<std::size_t>(j)];
          score = 0;
          if (!p.sees(b, i, j)) continue;
          double product = 0;
          for (std::size_t d = 0; d < static_cast<std::size_t>(s.size); ++d) {
            product += x.q[at + d] * x.k[key(j) + d];
          }
          score = std::exp(product * p.scale);
          sum += score;
        }
        if (lse != nullptr) lse->push_back(std::log(sum));
        if (sum == 0) continue;
        for (std::int64_t j = 0; j < s.keys; ++j) {
          const double weight = scores[static_cast<std::size_t>(j)] / sum * p.kept(b, h, i, j);
          for (std::size_t d = 0; d < static_cast<std::size_t>(s.size); ++d) {
            out[at + d] += weight * x.v[key(j) + d];
            if (sizes != nullptr) (*sizes)[at + d] += weight * std::abs(x.v[key(j) + d]);
          }
        }
      }
    }
  }
  return out;
}

void check_forward(const Problem& p, const std::string& what) {
  std::vector<double> lse, sizes;
  const auto out = reference(p, {widen(p.q), widen(p.k), widen(p.v)}, &lse, &sizes);
  // A score is a sum of D products of up to 4, times ¼: off by (D + 2)·u·D, a relative error after
  // exp; the two sums over keys add one rounding per key; exp and the quotient about 8.
  const auto size = static_cast<double>(p.s.size);
  const double relative =
      roundoff * (2 * (size + 2) * size + 2 * static_cast<double>(p.s.keys) + 16);
  for (double& bound : sizes) bound *= relative;
  expect_close(p.out, out, sizes, what + ": out");
  for (std::int64_t i = 0; i < p.lse.elements(); ++i) {
    const double expected = lse[static_cast<std::size_t>(i)];
    if (std::isinf(expected)) {
      EXPECT_EQ(p.lse[i], expected) << what << ": lse " << i;
    } else {
      EXPECT_NEAR(p.lse[i], expected, relative) << what << ": lse " << i;
    }
  }
}

/// Compares with central differences at every `step`-th element.
void check_backward(const Problem& p, std::size_t step, const std::string& what) {
  const Inputs x{widen(p.q), widen(p.k), widen(p.v)};
  const std::vector<double> dout = widen(p.dout);
  const Sizes& s = p.s;
  const auto check = [&](std::vector<double> Inputs::*member, const Array& gradient, double terms,
                         const char* name) {
    Inputs moved = x;
    // Each gradient sums `terms` rows of P∘(dP − δ)·scale·x with Σ P = 1 per query, |x| ≤ 2, |dP|,
    // |δ| ≤ 2D·(1/(1 − rate)): wide, but any wrong term exceeds it; 1e-8 for the differences.
    const double size = static_cast<double>(s.size), kept = 1 / (1 - double{p.dropout.rate});
    const double bound = roundoff * (4 * (size + 2) * size + 2 * static_cast<double>(s.keys) + 32) *
                             (1 + size * kept) * terms +
                         1e-8;
    int failures = 0;
    finite_differences(
        [&](const std::vector<double>& values) {
          moved.*member = values;
          return dot(reference(p, moved), dout);
        },
        x.*member, step,
        [&](std::size_t i, double derivative) {
          const double actual = gradient[static_cast<std::int64_t>(i)];
          if (std::abs(actual - derivative) <= bound || ++failures > 3) return;
          ADD_FAILURE() << what << ": " << name << "[" << i << "] = " << actual << ", expected "
                        << derivative << " within " << bound;
        });
    EXPECT_TRUE(gradient.gaps_untouched()) << what << ": " << name;
  };
  // A key sums over all queries and heads of its group, with weights that sum to far less.
  const std::int64_t gathers = s.queries * (s.heads / s.groups);
  const double gathered = std::sqrt(static_cast<double>(gathers));
  check(&Inputs::q, p.dq, 1, "dq");
  check(&Inputs::k, p.dk, gathered, "dk");
  check(&Inputs::v, p.dv, gathered, "dv");
}

void check(Ops& ops, Problem& p, std::size_t step, const std::string& what) {
  p.forward(ops);
  EXPECT_TRUE(p.out.gaps_untouched()) << what;
  check_forward(p, what);
  p.backward(ops);
  check_backward(p, step, what);
}

class AttentionTest : public OpsTest {};

TEST_P(AttentionTest, CausalWithGroupedHeads) {
  for (const Sizes& s :
       std::vector<Sizes>{{2, 37, 37, 4, 2, 5}, {1, 37, 37, 4, 1, 3}, {1, 20, 20, 3, 3, 4}}) {
    for (const std::int64_t gap : {0, 3}) {
      Problem p(s, 0, gap);
      check(*ops, p, 13, "causal");
    }
  }
}

TEST_P(AttentionTest, SeveralBlocksOfQueriesAndKeys) {
  Problem p({1, 150, 150, 2, 1, 3}, 0, 0);
  check(*ops, p, 41, "150 tokens");
}

TEST_P(AttentionTest, EveryKeyVisible) {
  Problem p({1, 37, 53, 2, 1, 4}, 0, 0);
  p.causal = false;
  check(*ops, p, 13, "not causal");
}

TEST_P(AttentionTest, FewQueriesAgainstACache) {
  for (const std::int64_t queries : {1, 5}) {
    Problem p({2, queries, 101, 4, 2, 5}, 0, 0);
    check(*ops, p, 17, "cache");
  }
}

TEST_P(AttentionTest, OffsetPositionsHideWholeBlocks) {
  // As on one rank of ring attention: keys before, across and after the queries.
  for (const std::int32_t offset : {-1000, -40, 0, 40}) {
    Problem p({1, 70, 130, 2, 2, 3}, 0, 0);
    for (std::int64_t i = 0; i < 70; ++i) p.query_positions[i] = static_cast<std::int32_t>(i) + 200;
    for (std::int64_t j = 0; j < 130; ++j) {
      p.key_positions[j] = static_cast<std::int32_t>(j) + 200 + offset;
    }
    check(*ops, p, 31, "offset " + std::to_string(offset));
  }
}

TEST_P(AttentionTest, PermutedPositions) {
  Problem p({1, 90, 110, 2, 1, 3}, 0, 0);
  for (std::int64_t i = 0; i < 90; ++i)
    p.query_positions[i] = static_cast<std::int32_t>(i * 37 % 90);
  for (std::int64_t j = 0; j < 110; ++j)
    p.key_positions[j] = static_cast<std::int32_t>(j * 41 % 110);
  check(*ops, p, 31, "permuted");
}

TEST_P(AttentionTest, Documents) {
  Problem p({2, 130, 130, 2, 1, 3}, 0, 0);
  p.documents = true;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < 130; ++i) {
      // Documents of uneven length; positions restart in each.
      const std::int32_t document = i < 9 ? 0 : i < 64 + b ? 3 : i < 101 ? 4 : 70;
      const std::int64_t start = i < 9 ? 0 : i < 64 + b ? 9 : i < 101 ? 64 + b : 101;
      p.query_documents[b * 130 + i] = p.key_documents[b * 130 + i] = document;
      p.query_positions[b * 130 + i] = p.key_positions[b * 130 + i] =
          static_cast<std::int32_t>(i - start);
    }
  }
  check(*ops, p, 83, "documents");
  p.causal = false;
  check(*ops, p, 83, "documents, not causal");
}

TEST_P(AttentionTest, ADocumentWithoutKeysGivesZeros) {
  Problem p({1, 40, 40, 2, 1, 3}, 0, 0);
  p.documents = true;
  p.query_documents[5] = 9;                                        // in a block with visible keys
  for (std::int64_t i = 0; i < 3; ++i) p.query_positions[i] = -5;  // before every key
  p.backward(*ops);  // writes values that must be overwritten
  p.forward(*ops);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (const std::int64_t i : {0, 1, 2, 5}) {
      EXPECT_EQ(p.lse[h * 40 + i], -std::numeric_limits<float>::infinity());
      for (std::int64_t d = 0; d < 3; ++d) EXPECT_EQ(p.out[(i * 2 + h) * 3 + d], 0.0F);
    }
  }
  check(*ops, p, 7, "unseen");
  for (std::int64_t i = 0; i < 40; ++i) p.query_documents[i] = 9;  // no key is visible
  check(*ops, p, 7, "all unseen");
  for (std::int64_t i = 0; i < p.dq.elements(); ++i) EXPECT_EQ(p.dq[i], 0.0F);
  for (std::int64_t i = 0; i < p.dk.elements(); ++i) EXPECT_EQ(p.dk[i], 0.0F);
}

TEST_P(AttentionTest, DropoutByLogicalIndex) {
  for (const Sizes& s : std::vector<Sizes>{{2, 37, 37, 4, 2, 3}, {1, 70, 290, 1, 1, 3}}) {
    Problem p(s, 0.4F, 0);
    check(*ops, p, 61, "dropout");
  }
  Problem p({1, 100, 100, 2, 1, 3}, 0.2F, 0);
  p.documents = true;  // several runs of keys
  for (std::int64_t i = 0; i < 100; ++i) {
    p.key_documents[i] = i < 33 ? 1 : i < 66 ? 2 : 1;
    p.query_documents[i] = 1;
  }
  check(*ops, p, 31, "dropout and documents");
}

TEST_P(AttentionTest, LargeScoresAndNan) {
  Problem p({1, 37, 37, 1, 1, 4}, 0, 0);
  for (std::int64_t i = 0; i < p.q.elements(); ++i) p.q[i] *= 1000;
  p.forward(*ops);
  for (std::int64_t i = 0; i < p.out.elements(); ++i) EXPECT_TRUE(std::isfinite(p.out[i]));
  p.k[20 * 4] = std::numeric_limits<float>::quiet_NaN();
  p.forward(*ops);
  for (std::int64_t i = 0; i < 37; ++i) {
    EXPECT_EQ(std::isnan(p.out[i * 4]), i >= 20) << "query " << i;
    EXPECT_EQ(std::isnan(p.lse[i]), i >= 20) << "query " << i;
  }
}

TEST_P(AttentionTest, BitsDoNotDependOnThreads) {
  // B·G = 2 is split among threads; B·G = 18 is not.
  for (const Sizes& s : std::vector<Sizes>{{1, 200, 200, 6, 2, 8}, {9, 70, 70, 4, 2, 8}}) {
    std::vector<Problem> results;
    for (const int threads : {1, 2, 3}) {
      Problem p(s, 0.1F, 0);
      const auto backend = make_cpu_ops(threads);
      p.forward(*backend);
      p.backward(*backend);
      results.push_back(p);
    }
    for (const std::size_t other : {1, 2}) {
      expect_same_bits(results[0].out, results[other].out, "out");
      expect_same_bits(results[0].lse, results[other].lse, "lse");
      expect_same_bits(results[0].dq, results[other].dq, "dq");
      expect_same_bits(results[0].dk, results[other].dk, "dk");
      expect_same_bits(results[0].dv, results[other].dv, "dv");
    }
  }
}

/// Host knowledge of a mask saves work and changes no bit.
TEST_P(AttentionTest, APlainMaskGivesTheSameBits) {
  for (const Sizes& s :
       std::vector<Sizes>{{2, 200, 200, 6, 2, 8}, {1, 1100, 1100, 2, 1, 20}, {1, 5, 5, 2, 2, 7}}) {
    std::vector<Problem> results;
    for (const bool plain : {false, true}) {
      Problem p(s, 0.1F, 3);
      p.plain = plain;
      p.forward(*ops);
      p.backward(*ops);
      results.push_back(p);
    }
    expect_same_bits(results[0].out, results[1].out, "out");
    expect_same_bits(results[0].lse, results[1].lse, "lse");
    expect_same_bits(results[0].dq, results[1].dq, "dq");
    expect_same_bits(results[0].dk, results[1].dk, "dk");
    expect_same_bits(results[0].dv, results[1].dv, "dv");
  }
}

TEST_P(AttentionTest, WorkSpaceIsBoundedAndEntered) {
  device::MemoryLedger ledger;
  const auto backend = make_cpu_ops(2, &ledger);
  Problem p({4, 300, 300, 4, 4, 8}, 0, 0);
  p.forward(*backend);
  const std::int64_t forward = ledger.held(device::Use::workspace);
  // Per thread: scores of one block of 64 queries by the keys, with 8 columns of a head and one
  // cache line more; the head's values; the block's results.
  const std::int64_t scores = (64 + 8) * (304 + 16), rows = 304 * 8, block = 64 * 8;
  EXPECT_GT(forward, 0);
  EXPECT_LE(forward, 2 * (scores + rows + block) * 4 + 64);
  p.backward(*backend);
  const std::int64_t backward = ledger.held(device::Use::workspace);
  // Likewise for dout·vᵀ, the gradients of keys and values, the block's queries and dout.
  EXPECT_LE(backward, 2 * (2 * scores + 3 * rows + 3 * block) * 4 + 64);
  p.forward(*backend);
  p.backward(*backend);
  EXPECT_EQ(ledger.held(device::Use::workspace), backward);  // nothing more in steady state
  EXPECT_EQ(ledger.peak(device::Use::workspace), backward);
}

/// Heads in uneven slices, with key/value heads that two slices share: forward, backward and
/// dropout match one call with all heads.
TEST_P(AttentionTest, SlicesOfHeadsMatchAllHeads) {
  const std::int64_t batch = 2, length = 21, heads = 6, groups = 2, share = 3, size = 8;
  const Sizes sizes{batch, length, length, heads, groups, size};
  Problem whole(sizes, 0.3F, 0);
  whole.forward(*ops);
  whole.backward(*ops);
  const std::int64_t bounds[] = {0, 2, 2, 5, 6};  // slices share a group; one is empty
  Array dk({batch, length, groups, size}), dv({batch, length, groups, size});
  for (int i = 0; i < 4; ++i) {
    const std::int64_t first = bounds[i], end = bounds[i + 1], count = end - first;
    if (count == 0) continue;
    const std::int64_t group = first / share, group_end = (end + share - 1) / share;
    const HeadSlice slice{first, heads, share};
    const auto of_heads = [&](Array& x) { return x.view().slice(2, first, end); };
    const auto of_groups = [&](Array& x) { return x.view().slice(2, group, group_end); };
    Array out({batch, length, count, size}), lse({batch, count, length});
    ops->attention(out, lse, of_heads(whole.q), of_groups(whole.k), of_groups(whole.v),
                   whole.mask(), static_cast<float>(whole.scale), whole.dropout, whole.samples,
                   slice);
    Array dq({batch, length, count, size});
    Array dk_part({batch, length, group_end - group, size});
    Array dv_part({batch, length, group_end - group, size});
    ops->attention_backward(dq, dk_part, dv_part, of_heads(whole.dout), out, lse, of_heads(whole.q),
                            of_groups(whole.k), of_groups(whole.v), whole.mask(),
                            static_cast<float>(whole.scale), whole.dropout, whole.samples, slice);
    for (std::int64_t row = 0; row < batch * length; ++row) {
      for (std::int64_t c = 0; c < count * size; ++c) {
        const std::int64_t at = (row * heads + first) * size + c;
        ASSERT_EQ(out[row * count * size + c], whole.out[at]);
        ASSERT_EQ(dq[row * count * size + c], whole.dq[at]);
      }
      for (std::int64_t c = 0; c < (group_end - group) * size; ++c) {
        const std::int64_t at = (row * groups + group) * size + c;
        dk[at] += dk_part[row * (group_end - group) * size + c];
        dv[at] += dv_part[row * (group_end - group) * size + c];
      }
    }
  }
  // Sums over heads in another order: few additions that round once each.
  for (std::int64_t i = 0; i < dk.elements(); ++i) {
    ASSERT_NEAR(dk[i], whole.dk[i], 1e-5);
    ASSERT_NEAR(dv[i], whole.dv[i], 1e-5);
  }
}

/// Merged results for parts of the keys are that for all keys, in fp64. A query may see none of one
/// part, or of both; and log-sum-exps may be far apart.
TEST(MergeAttention, OfPartsIsThatOfAll) {
  constexpr std::int64_t tokens = 5, heads = 3, size = 7, keys = 11;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto ops = make_cpu_ops(2);
  for (const double spread : {1.0, 300.0}) {
    Array out({tokens, heads, size}), other({tokens, heads, size});
    Array lse({heads, tokens}), other_lse({heads, tokens});
    std::vector<double> expected_out(tokens * heads * size), expected_lse(heads * tokens);
    std::mt19937_64 random(3);
    std::normal_distribution<double> normal;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const int kind = static_cast<int>((t * heads + h) % 4);  // 1, 2, 3: which part is seen
        double sums[2] = {}, weighted[2][size] = {}, most = -1e300;
        std::vector<double> scores(keys);
        for (std::int64_t k = 0; k < keys; ++k) {
          scores[k] = spread * normal(random);
          most = std::max(most, scores[k]);
        }
        for (std::int64_t k = 0; k < keys; ++k) {
          const int part = k < 4 ? 0 : 1;
          const bool seen = kind == 0 || (kind == 1 && part == 0) || (kind == 2 && part == 1);
          const double weight = seen ? std::exp(scores[k] - most) : 0;
          sums[part] += weight;
          for (std::int64_t d = 0; d < size; ++d) weighted[part][d] += weight * normal(random);
        }
        const std::int64_t at = h * tokens + t, first = (t * heads + h) * size;
        const auto log_sum = [&](double sum) {
          return sum > 0 ? static_cast<float>(most + std::log(sum)) : -infinity;
        };
        lse[at] = log_sum(sums[0]);
        other_lse[at] = log_sum(sums[1]);
        const double all = sums[0] + sums[1];
        expected_lse[at] = all > 0 ? most + std::log(all) : -infinity;
        for (std::int64_t d = 0; d < size; ++d) {
          out[first + d] = sums[0] > 0 ? static_cast<float>(weighted[0][d] / sums[0]) : 0;
          other[first + d] = sums[1] > 0 ? static_cast<float>(weighted[1][d] / sums[1]) : 0;
          expected_out[first + d] = all > 0 ? (weighted[0][d] + weighted[1][d]) / all : 0;
        }
      }
    }
    ops->merge_attention(out, lse, other, other_lse);
    for (std::int64_t i = 0; i < heads * tokens; ++i) {
      if (expected_lse[i] == -infinity) {
        EXPECT_EQ(lse[i], -infinity);
      } else {
        EXPECT_NEAR(lse[i], expected_lse[i], 1e-6 * (1 + std::abs(expected_lse[i])));
      }
    }
    for (std::int64_t i = 0; i < tokens * heads * size; ++i) {
      // The weights' exponents are differences of rounded log-sum-exps.
      EXPECT_NEAR(out[i], expected_out[i], 1e-6 + 4e-7 * spread) << i;
    }
  }
}

TEST(Workspace, MatchesThePrediction) {
  // Split among threads, not split, more keys than a chunk of backward, forward the larger.
  for (const Sizes& s :
       std::vector<Sizes>{{1, 200, 200, 6, 2, 8}, {9, 70, 70, 4, 2, 8}, {1, 3, 1300, 16, 16, 4}}) {
    for (const int threads : {1, 3}) {
      device::MemoryLedger ledger;
      const auto backend = make_cpu_ops(threads, &ledger);
      Problem p(s, 0, 0);
      p.forward(*backend);
      p.backward(*backend);
      const AttentionShape shape{s.batch, s.queries, s.keys, s.heads, s.groups, s.size};
      EXPECT_EQ(static_cast<std::size_t>(ledger.peak(device::Use::workspace)),
                device::aligned(cpu_attention_workspace({&shape, 1}, threads)));
    }
  }
  device::MemoryLedger ledger;
  const auto backend = make_cpu_ops(2, &ledger);
  Array rows = random_array({700, 37}, 2), sum({37});
  backend->column_sum(sum, rows);
  EXPECT_EQ(static_cast<std::size_t>(ledger.held(device::Use::workspace)),
            device::aligned(cpu_row_sum_workspace(700, 37, 1)));
}

TRIREME_FOR_INSTRUCTION_SETS(AttentionTest);

}  // namespace
}  // namespace trireme::ops
