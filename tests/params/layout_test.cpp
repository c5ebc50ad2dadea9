#include "trireme/params/layout.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace trireme::params {
namespace {

Parameter make(const std::string& name, const Shape& shape, int unit, int dimension = -1) {
  Parameter parameter{.name = name, .shape = shape};
  parameter.split = dimension;
  parameter.units = {unit};
  parameter.initialization = {Initialization::Kind::normal, 0.5};
  return parameter;
}

/// Six query heads of size 4 on three key/value heads; an odd vocabulary that two units share.
ParameterTable odd_table() {
  ParameterTable table;
  const int tied = table.add(make("embedding", {53, 24}, 0, 0));
  for (int unit = 1; unit <= 3; ++unit) {
    const std::string name = std::to_string(unit);
    table.add(make(name + ".norm", {24}, unit));
    Parameter qkv = make(name + ".qkv", {48, 24}, unit, 0);
    qkv.parts = {{"q", 24, 4, 1}, {"k", 12, 4, 2}, {"v", 12, 4, 2}};
    table.add(qkv);
    Parameter out = make(name + ".out", {24, 24}, unit, 1);
    out.parts = {{"heads", 24, 4, 1}};
    table.add(out);
    table.add(make(name + ".down", {24, 37}, unit, 1));
  }
  table.add(make("head.norm", {24}, 4));
  table.share(tied, 4);
  return table;
}

const std::vector<Range> all_units{{0, 5}};

TEST(Tiles, CoverWithoutGaps) {
  for (const std::int64_t n : {1, 5, 8, 53}) {
    for (const int tiles : {1, 2, 3, 8}) {
      std::int64_t end = 0;
      for (int v = 0; v < tiles; ++v) {
        EXPECT_EQ(tile_of(n, v, tiles).begin, end);
        end = tile_of(n, v, tiles).end;
      }
      EXPECT_EQ(end, n);
    }
  }
}

TEST(Tiles, KeyValueHeadsAreWithTheirQueries) {
  const ParameterTable table = odd_table();
  const Parameter& qkv = table.row(*table.find("1.qkv"));
  for (const int tiles : {1, 2, 3, 4, 8}) {
    for (int v = 0; v < tiles; ++v) {
      const auto slices = tile_slices(qkv, v, tiles);
      for (std::int64_t head = slices[0].begin / 4; head < slices[0].end / 4; ++head) {
        const std::int64_t key = 24 + head / 2 * 4;
        EXPECT_LE(slices[1].begin, key);
        EXPECT_GE(slices[1].end, key + 4);
      }
      EXPECT_EQ(slices[1].size(), slices[2].size());
    }
  }
}

TEST(Layout, BlocksAreAlignedAndDoNotOverlap) {
  const ParameterTable table = odd_table();
  const Layout layout(table, all_units, {4, 1, 1});
  std::int64_t end = 0;
  for (const Block& block : layout.blocks()) {
    EXPECT_EQ(block.offset % 16, 0);
    EXPECT_GE(block.offset, end);
    end = block.offset + block.elements();
  }
  EXPECT_LE(end, layout.elements());
  // The tied weight is its own group; the others are one group per unit.
  EXPECT_EQ(layout.groups().size(), 5U);
  EXPECT_EQ(layout.groups()[0].units, (std::vector<int>{0, 4}));
  EXPECT_EQ(layout.groups_of(4).size(), 2U);
  std::int64_t covered = 0;
  for (const Group& group : layout.groups()) {
    EXPECT_EQ(group.elements.begin, covered);
    covered = group.elements.end;
  }
  EXPECT_EQ(covered, layout.elements());
}

TEST(Layout, OwnedPartsCoverEveryElementOnce) {
  const ParameterTable table = odd_table();
  for (const int tiles : {1, 2, 3, 4, 8}) {
    std::map<int, std::vector<int>> seen;
    for (int tile = 0; tile < tiles; ++tile) {
      const Layout layout(table, all_units, {tiles, tile, 1});
      for (const Block& block : layout.blocks()) {
        if (block.slices.empty() && tile > 0) continue;
        auto& counts = seen[block.row];
        counts.resize(static_cast<std::size_t>(table.row(block.row).shape.elements()));
        layout.for_each_run(block, [&](const params::Run& run) {
          for (std::int64_t i = 0; i < run.elements; ++i) {
            for (const Range& own : layout.owned(block)) {
              if (run.local + i >= own.begin && run.local + i < own.end) {
                ++counts[static_cast<std::size_t>(run.logical + i)];
              }
            }
          }
        });
      }
    }
    for (const auto& [row, counts] : seen) {
      EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; }))
          << table.row(row).name << " in " << tiles << " tiles";
    }
  }
}

TEST(Layout, FirstValuesMatchOneRank) {
  const ParameterTable table = odd_table();
  const Layout one(table, all_units, {});
  std::vector<float> whole(static_cast<std::size_t>(one.elements()), -1);
  initialize(one, 42, {{{0, one.elements()}, 0}}, Tensor(whole.data(), {one.elements()}));
  for (const Tiles& tiles : {Tiles{2, 1, 1}, Tiles{4, 3, 1}, Tiles{8, 4, 4}}) {
    for (const auto& units : std::vector<std::vector<Range>>{all_units, {{1, 2}, {4, 5}}}) {
      const Layout layout(table, units, tiles);
      std::vector<float> flat(static_cast<std::size_t>(layout.elements()), -1);
      initialize(layout, 42, {{{0, layout.elements()}, 0}},
                 Tensor(flat.data(), {layout.elements()}));
      for (const Block& block : layout.blocks()) {
        const Block& logical = one.blocks()[static_cast<std::size_t>(one.blocks_of(block.row)[0])];
        layout.for_each_run(block, [&](const params::Run& run) {
          for (std::int64_t i = 0; i < run.elements; ++i) {
            ASSERT_EQ(flat[static_cast<std::size_t>(block.offset + run.local + i)],
                      whole[static_cast<std::size_t>(logical.offset + run.logical + i)]);
          }
        });
      }
    }
  }
  EXPECT_EQ(whole[53 * 24], 0) << "gaps hold zeros: flat reductions may read them";
  std::vector<float> other = whole;
  initialize(one, 43, {{{0, one.elements()}, 0}}, Tensor(other.data(), {one.elements()}));
  EXPECT_NE(whole, other);
}

TEST(Layout, ShardsAreInitializedLikeTheWhole) {
  const ParameterTable table = odd_table();
  const Layout layout(table, all_units, {2, 0, 1});
  std::vector<float> whole(static_cast<std::size_t>(layout.elements()));
  initialize(layout, 7, {{{0, layout.elements()}, 0}}, Tensor(whole.data(), {layout.elements()}));
  const std::vector<FlatRange> ranges{{{5, 700}, 3}, {{900, 1400}, 800}};
  std::vector<float> part(1400, -1);
  initialize(layout, 7, ranges, Tensor(part.data(), {1400}));
  for (const FlatRange& range : ranges) {
    for (std::int64_t i = 0; i < range.elements.size(); ++i) {
      ASSERT_EQ(part[static_cast<std::size_t>(range.offset + i)],
                whole[static_cast<std::size_t>(range.elements.begin + i)]);
    }
  }
}

TEST(Layout, ShardsNeverSplitANormBlock) {
  ParameterTable table;
  table.add(make("a", {100, 130}, 0, 0));
  table.add(make("b", {24}, 0));
  table.add(make("c", {9000}, 0));
  const Layout layout(table, {{0, 1}}, {});
  for (const int parts : {1, 2, 3, 4, 16}) {
    const auto bounds = shard_bounds(layout, layout.groups()[0], parts);
    ASSERT_EQ(bounds.size(), static_cast<std::size_t>(parts) + 1);
    EXPECT_EQ(bounds.front(), 0);
    EXPECT_EQ(bounds.back(), layout.elements());
    EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
    for (const std::int64_t bound : bounds) {
      for (const Block& block : layout.blocks()) {
        const std::int64_t inside = bound - block.offset;
        if (inside > 0 && inside < block.elements()) {
          EXPECT_EQ(inside % norm_block, 0);
        }
      }
    }
    for (int part = 0; part < parts; ++part) {
      const auto p = static_cast<std::size_t>(part);
      EXPECT_LE(bounds[p + 1] - bounds[p], layout.elements() / parts + 2 * norm_block);
    }
  }
}

// Key/value heads that a lower tile also owns must not make one shard larger than the others.
TEST(Layout, ShardsAreEvenWithSharedKeyValueHeads) {
  ParameterTable table;
  Parameter qkv = make("qkv", {128 * 10, 512}, 0, 0);
  qkv.parts = {{"q", 128 * 8, 128, 1}, {"k", 128, 128, 8}, {"v", 128, 128, 8}};
  table.add(qkv);
  table.add(make("up", {2048, 512}, 0, 0));
  for (const int rank : {0, 3, 7}) {
    const Layout layout(table, {{0, 1}}, {8, rank, 1});
    for (const int parts : {2, 8, 16}) {
      const auto bounds = shard_bounds(layout, layout.groups()[0], parts);
      for (int part = 0; part < parts; ++part) {
        const auto p = static_cast<std::size_t>(part);
        EXPECT_NEAR(static_cast<double>(bounds[p + 1] - bounds[p]),
                    static_cast<double>(layout.elements()) / parts, norm_block)
            << "tensor rank " << rank << ", part " << part << " of " << parts;
      }
    }
  }
}

TEST(Initialize, NormalHasItsDeviation) {
  ParameterTable table;
  table.add(make("x", {100'000}, 0));
  const Layout layout(table, {{0, 1}}, {});
  std::vector<float> values(static_cast<std::size_t>(layout.elements()));
  initialize(layout, 1, {{{0, layout.elements()}, 0}}, Tensor(values.data(), {layout.elements()}));
  double sum = 0, squares = 0;
  for (float v : values) {
    sum += v;
    squares += v * v;
  }
  // Five standard errors: of the mean 0.5/√n, of the variance 0.25·√(2/n).
  EXPECT_NEAR(sum / 1e5, 0, 5 * 0.5 / std::sqrt(1e5));
  EXPECT_NEAR(squares / 1e5, 0.25, 5 * 0.25 * std::sqrt(2 / 1e5));
}

}  // namespace
}  // namespace trireme::params
