// ModelState and its shards against offsets worked out by hand for one small table.
//
// In elements of the flat buffer, each block padded to a multiple of 16; shards are cut at
// multiples of 4096 from a block's beginning, at the cut nearest to the even share:
//
//   group  unit  block          elements  flat            cuts within the group
//   0      0, 3  embedding      6400      [0, 6400)       0 4096
//   1      0     positions      2048      [6400, 8448)    0
//   2      1     norm           60 (64)   [8448, 8512)    0
//                qkv            8192      [8512, 16704)   64 4160
//                up             12800     [16704, 29504)  8256 12352 16448 20544
//   3      2     as unit 1      21056     [29504, 50560)
//   4      3     norm           60 (64)   [50560, 50624)  0
#include "trireme/state/model_state.hpp"

#include <gtest/gtest.h>

namespace trireme::state {
namespace {

using Offsets = std::vector<std::int64_t>;

params::Parameter row(const std::string& name, const Shape& shape, int unit, int dimension = -1) {
  params::Parameter parameter{.name = name, .shape = shape};
  parameter.split = dimension;
  parameter.units = {unit};
  return parameter;
}

enum Row { embedding, positions, norm1, qkv1, up1, norm2, qkv2, up2, norm3 };

/// Four query heads of 16 rows on two key/value heads; the embedding is tied to the last unit.
params::ParameterTable small_table() {
  params::ParameterTable table;
  table.add(row("embedding", {100, 64}, 0, 0));
  table.add(row("positions", {32, 64}, 0));
  for (int unit = 1; unit <= 2; ++unit) {
    const std::string name = std::to_string(unit);
    table.add(row(name + ".norm", {60}, unit));
    params::Parameter qkv = row(name + ".qkv", {128, 64}, unit, 0);
    qkv.parts = {{"q", 64, 16, 1}, {"k", 32, 16, 2}, {"v", 32, 16, 2}};
    table.add(qkv);
    table.add(row(name + ".up", {200, 64}, unit, 0));
  }
  table.add(row("3.norm", {60}, 3));
  table.share(embedding, 3);
  return table;
}

const params::ParameterTable& table() {
  static const params::ParameterTable made = small_table();
  return made;
}

params::Layout layout_of(const std::vector<params::Range>& units, const params::Tiles& tiles = {}) {
  return {table(), units, tiles};
}
params::Layout whole_layout() { return layout_of({{0, 4}}); }

Offsets first_elements(const params::Layout& layout) {
  Offsets result;
  for (const params::Group& group : layout.groups()) result.push_back(group.elements.begin);
  result.push_back(layout.elements());
  return result;
}

/// Begin, end and offset of each own shard.
std::vector<Offsets> shards_of(const ShardMap& shards) {
  std::vector<Offsets> result;
  for (int g = 0; g < shards.groups(); ++g) {
    result.push_back({shards.own(g).begin, shards.own(g).end, shards.offset(g)});
  }
  return result;
}

/// Elements from `base` to `tensor` in one buffer.
std::int64_t distance(const Tensor& base, const Tensor& tensor) {
  return tensor.as<float>() - base.as<float>();
}

TEST(ShardMap, OfTwoRanks) {
  const params::Layout layout = whole_layout();
  EXPECT_EQ(first_elements(layout), (Offsets{0, 6400, 8448, 29504, 50560, 50624}));
  // Even shares would end at 3200, 1024, 10528, 10528 and 32.
  const ShardMap first(layout, 2, 0), second(layout, 2, 1);
  EXPECT_EQ(shards_of(first), (std::vector<Offsets>{{0, 4096, 0},
                                                    {6400, 8448, 4096},
                                                    {8448, 20800, 6144},
                                                    {29504, 41856, 18496},
                                                    {50560, 50624, 30848}}));
  EXPECT_EQ(shards_of(second), (std::vector<Offsets>{{4096, 6400, 0},
                                                     {8448, 8448, 2304},
                                                     {20800, 29504, 2304},
                                                     {41856, 50560, 11008},
                                                     {50624, 50624, 19712}}));
  EXPECT_EQ(first.elements(), 30912);
  EXPECT_EQ(second.elements(), 19712);
  EXPECT_EQ(first.counts(2), (Offsets{12352, 8704}));
  EXPECT_EQ(second.counts(1), (Offsets{2048, 0}));
}

// Even shares of unit 1 would end at 7018 and 14037.
TEST(ShardMap, OfThreeRanks) {
  const params::Layout layout = whole_layout();
  const ShardMap middle(layout, 3, 1);
  EXPECT_EQ(middle.counts(0), (Offsets{4096, 0, 2304}));
  EXPECT_EQ(middle.counts(2), (Offsets{8256, 4096, 8704}));
  EXPECT_EQ(middle.own(2), (params::Range{16704, 20800}));
}

// Tensor rank 1 of 4 holds 25 rows of the embedding, one query head with its key and value head,
// which rank 0 holds too, and 50 rows of up. Norm blocks begin with the query head (64), what rank
// 0 owns (1088) and up (3136).
TEST(ShardMap, KeyValueReplicas) {
  const params::Layout layout = layout_of({{0, 4}}, {4, 1, 1});
  EXPECT_EQ(first_elements(layout), (Offsets{0, 1600, 3648, 9984, 16320, 16384}));
  const params::Block& qkv = layout.blocks()[static_cast<std::size_t>(layout.blocks_of(qkv1)[0])];
  EXPECT_EQ(qkv.slices, (std::vector<params::Range>{{16, 32}, {64, 80}, {96, 112}}));
  EXPECT_EQ(layout.owned(qkv), (std::vector<params::Range>{{0, 1024}}));
  EXPECT_EQ(ShardMap(layout, 2, 0).counts(2), (Offsets{3136, 3200}));
  EXPECT_EQ(ShardMap(layout, 4, 0).counts(2), (Offsets{1088, 2048, 3200, 0}));
}

// A tied weight is split alike on both stages, wherever it is in their flat buffers.
TEST(ShardMap, TiedWeightOfTwoStages) {
  const params::Layout first = layout_of({{0, 2}}), last = layout_of({{2, 4}});
  EXPECT_EQ(first_elements(first), (Offsets{0, 6400, 8448, 29504}));
  EXPECT_EQ(first_elements(last), (Offsets{0, 6400, 27456, 27520}));
  EXPECT_EQ(ShardMap(first, 2, 1).own(0), (params::Range{4096, 6400}));
  EXPECT_EQ(ShardMap(last, 2, 1).own(0), (params::Range{4096, 6400}));
  EXPECT_EQ(ShardMap(last, 2, 1).own(1), (params::Range{18752, 27456}));
}

/// Rank 1 of 2 in a ZeRO stage.
struct Rank {
  explicit Rank(int zero, const StateOptions& options = {})
      : state(layout, ShardMap(layout, zero > 0 ? 2 : 1, zero > 0 ? 1 : 0), with(options, zero),
              ledger) {}
  static StateOptions with(StateOptions options, int zero) {
    options.zero = zero;
    return options;
  }
  std::int64_t held(device::Use use) const { return ledger.held(use); }

  params::Layout layout = whole_layout();
  device::MemoryLedger ledger;
  ModelState state;
};

TEST(ModelState, BytesByUse) {
  using device::Use;
  struct Held {
    std::int64_t parameters, gradients, gathered;
  };
  // Whole: 4 · 50624. Shards of rank 1: 4 · 19712. Gradient buffers: 4 · 48576, gather buffers:
  // 4 · 48512 (see the tests below).
  const Held expected[] = {
      {202496, 202496, 0}, {202496, 202496, 0}, {202496, 78848, 194304}, {78848, 78848, 388352}};
  for (int zero = 0; zero <= 3; ++zero) {
    const Rank rank(zero);
    const Held& bytes = expected[zero];
    EXPECT_EQ(rank.held(Use::parameters), bytes.parameters) << zero;
    EXPECT_EQ(rank.held(Use::gradients), bytes.gradients) << zero;
    EXPECT_EQ(rank.held(Use::gathered), bytes.gathered) << zero;
    EXPECT_EQ(rank.held(Use::optimizer), 0) << zero;
  }
}

// bf16 weights: 2 bytes where units read them; fp32 masters are held like the optimizer's state.
TEST(ModelState, BytesOfMasters) {
  using device::Use;
  StateOptions options;
  options.shares.compute = DType::bf16;
  const std::int64_t masters[] = {202496, 78848, 78848, 78848};
  const std::int64_t values[] = {101248, 101248, 101248, 39424};
  for (int zero = 0; zero <= 3; ++zero) {
    const Rank rank(zero, options);
    EXPECT_EQ(rank.held(Use::parameters), values[zero]) << zero;
    EXPECT_EQ(rank.held(Use::optimizer), masters[zero]) << zero;
    EXPECT_EQ(rank.state.parameters_sharded(), zero > 0) << zero;
  }
}

TEST(ModelState, WholeBuffers) {
  for (const int zero : {0, 1}) {
    const Rank rank(zero);
    const ModelState& state = rank.state;
    const Tensor values = state.parameters(), gradients = state.gradients();
    EXPECT_EQ(distance(values, state.group_values(3)), 29504);
    EXPECT_EQ(distance(values, state.own_parameters(3)), zero == 0 ? 29504 : 41856);
    EXPECT_EQ(state.own_parameters(3).elements(), zero == 0 ? 21056 : 8704);
    EXPECT_EQ(distance(gradients, state.own_gradient(2)), zero == 0 ? 8448 : 20800);
    EXPECT_EQ(distance(values, state.values()(qkv2)), 29568);
    EXPECT_EQ(distance(gradients, state.gradients(0, false)(up1)), 16704);
    EXPECT_EQ(state.gather_buffers().count, 0);
    EXPECT_EQ(state.gradient_buffers().count, 0);
  }
}

// Units alternate between two buffers as large as unit 1 and unit 2. The tied group has a third.
TEST(ModelState, GatherBuffers) {
  const Rank rank(3);
  const ModelState& state = rank.state;
  EXPECT_EQ(state.gather_buffers().buffer, (std::vector<int>{2, 0, 1, 0, 1}));
  EXPECT_EQ(state.gather_buffers().first, (Offsets{42112, 0, 21056, 0, 21056}));
  EXPECT_EQ(state.gather_buffers().elements, 48512);
  const Tensor first = state.group_values(1);
  EXPECT_EQ(distance(first, state.group_values(0)), 42112);
  EXPECT_EQ(distance(first, state.values()(norm1)), 21056);
  EXPECT_EQ(distance(first, state.values()(up1)), 21056 + 8256);
  EXPECT_EQ(distance(first, state.values()(qkv2)), 64);
  // Own shards are stored one after the other.
  EXPECT_EQ(distance(state.parameters(), state.own_values(2)), 2304);
  EXPECT_EQ(distance(state.parameters(), state.own_parameters(3)), 11008);
  EXPECT_EQ(state.own_values(3).elements(), 8704);
}

// Without resharding after forward every group stays in a buffer of its own.
TEST(ModelState, GatherBuffersThatAreKept) {
  const Rank rank(3, {.keeps_gathered = true});
  EXPECT_EQ(rank.state.gather_buffers().first, (Offsets{0, 6400, 8448, 29504, 50560}));
  EXPECT_EQ(rank.state.gather_buffers().buffer, (std::vector<int>{2, 3, 4, 5, 6}));
}

// The last unit adds to its gradients in forward, so its groups have buffers of their own.
TEST(ModelState, GradientBuffers) {
  for (const int zero : {2, 3}) {
    const Rank rank(zero);
    const ModelState& state = rank.state;
    EXPECT_EQ(state.gradient_buffers().buffer, (std::vector<int>{2, 0, 1, 0, 3}));
    EXPECT_EQ(state.gradient_buffers().first, (Offsets{42112, 0, 21056, 0, 48512}));
    EXPECT_EQ(state.gradient_buffers().elements, 48576);
    EXPECT_EQ(distance(state.group_gradient(1), state.group_gradient(4)), 48512);
    EXPECT_EQ(distance(state.group_gradient(1), state.gradients(0, false)(up2)), 8256);
    EXPECT_EQ(distance(state.gradients(), state.own_gradient(3)), 11008);
  }
}

// Reproducible mode on one tensor rank of two tiles: per set the flat sum (50624), a second copy of
// rows that are not split (2048 + 3 · 64) and the last unit's sum of the tied weight (6400).
TEST(ModelState, SetsOfReproducibleMode) {
  StateOptions options{.sets = 2};
  options.shares.reproducible = true;
  options.shares.tiles = {2, 0, 2};
  const params::Layout layout = layout_of({{0, 4}}, {2, 0, 2});
  EXPECT_EQ(first_elements(layout), (Offsets{0, 6400, 8448, 29504, 50560, 50624}));
  for (const int zero : {0, 1, 2, 3}) {  // gradients stay whole
    device::MemoryLedger ledger;
    options.zero = zero;
    const ModelState state(layout, ShardMap(layout, 1, 0), options, ledger);
    EXPECT_EQ(ledger.held(device::Use::gradients), 474112);  // 4 · 2 · 59264
    const Tensor flat = state.gradients();
    EXPECT_EQ(distance(flat, state.group_gradient(2, 1)), 59264 + 8448);
    EXPECT_EQ(distance(flat, state.gradient_copy(2, 0, 0)), 50624);   // positions
    EXPECT_EQ(distance(flat, state.gradient_copy(3, 1, 0)), 111936);  // 59264 + 50624 + 2048
    EXPECT_EQ(distance(flat, state.tied_gradient(0, 0)), 52864);      // 50624 + 2240
    EXPECT_EQ(distance(flat, state.gradients(0, true)(embedding, 1)), 52864 + 3200);
    EXPECT_EQ(distance(flat, state.gradients(0, false)(embedding, 1)), 3200);
    EXPECT_FALSE(state.tied_gradient(2, 0));
  }
}

}  // namespace
}  // namespace trireme::state
