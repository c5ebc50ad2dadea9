// Host knowledge of a mask saves bf16 attention work and changes no bit, whatever an earlier call
// left in the work space.
#include "bf16_support.hpp"

namespace trireme::ops {
namespace {

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
