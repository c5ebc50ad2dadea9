// What one rank holds of the parameter table under tensor and pipeline parallelism: pure arithmetic
// from the table. A split dimension of n grains has V tiles [⌊v·n/V⌋, ⌊(v+1)·n/V⌋), possibly empty,
// nothing is padded; a rank holds a run of tiles. In fast mode V is the tensor degree and each rank
// holds one tile; in reproducible mode V is `virtual_tensor` at every degree, so that the library
// sees the same matrices in every layout.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/params/table.hpp"

namespace trireme::params {

/// [begin, end)
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Tile v of V of n units.
constexpr Range tile_of(std::int64_t n, std::int64_t v, std::int64_t tiles) {
  return {v * n / tiles, (v + 1) * n / tiles};
}
/// The tile that has unit `i` of n.
constexpr std::int64_t tile_with(std::int64_t n, std::int64_t i, std::int64_t tiles) {
  return ((i + 1) * tiles + n - 1) / n - 1;
}

/// The tiles of one rank: [first, first + count) of `all`.
struct Tiles {
  int all = 1;
  int first = 0;
  int count = 1;
  /// Rows of `n` that belong to these tiles.
  Range of(std::int64_t n) const {
    return {tile_of(n, first, all).begin, tile_of(n, first + count - 1, all).end};
  }
};

/// The range of each part of `row` along its split dimension that tile `v` of `tiles` holds. The
/// first part is cut into tiles. A part of which each grain serves `serves` grains of the first
/// follows it, so that neighboring tiles may hold the same grains (fewer key/value heads than
/// tiles).
std::vector<Range> tile_slices(const Parameter& row, int v, int tiles);

/// One row's share on one tile: a dense matrix of its own in the flat buffer.
struct Block {
  int row = 0;
  int tile = 0;               // index among all tiles; 0 for a row that is not split
  Shape shape;                // local
  std::vector<Range> slices;  // of the split dimension, in storage order; empty: not split
  std::int64_t offset = 0;    // first element in the flat buffer
  std::int64_t elements() const { return shape.elements(); }
};

/// Contiguous in the flat buffer and in the logical tensor alike.
struct Run {
  std::int64_t local = 0;    // first element within the block
  std::int64_t logical = 0;  // first element of the row's row-major elements
  std::int64_t elements = 0;
};

/// A grain of a row (a key/value head) that more than one tile holds.
struct SharedGrain {
  std::size_t part = 0;
  Range along;  // the split dimension
  Range tiles;  // from the first to the last that holds it
};
/// Those of `row` among `tiles` tiles, in the order of the row. Only parts that serve an earlier
/// one have any.
std::vector<SharedGrain> shared_grains(const Parameter& row, int tiles);
/// The elements of `block`, one of `row`'s, that hold the grain; empty where it does not.
Range elements_of(const Parameter& row, const Block& block, const SharedGrain& grain);

/// Blocks that are gathered, reduced and sharded together: those of one unit, or one row that
/// several units share (a tied weight), whose group has the same inner offsets on every stage.
struct Group {
  std::vector<int> units;  // that use it, ascending
  Range blocks;            // indices
  Range elements;          // of the flat buffer
};

/// Everything that some units keep on one tensor rank. Blocks start on 64-byte boundaries of an
/// fp32 buffer.
class Layout {
 public:
  /// `units`: ranges of a stage's units, ascending.
  Layout(const ParameterTable& table, std::vector<Range> units, const Tiles& tiles);

  const ParameterTable& table() const { return *table_; }
  const Tiles& tiles() const { return tiles_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const std::vector<Group>& groups() const { return groups_; }
  std::int64_t elements() const { return elements_; }  // of the flat buffer
  /// Blocks of a row, one per local tile, or one where the row is not split. Empty: not held.
  const std::vector<int>& blocks_of(int row) const {
    return by_row_[static_cast<std::size_t>(row)];
  }
  /// Groups that unit `unit` reads.
  const std::vector<int>& groups_of(int unit) const {
    return by_unit_[static_cast<std::size_t>(unit)];
  }
  bool has_unit(int unit) const;
  /// Whether two groups have the same blocks at the same offsets, as those of two layers do: they
  /// have equal cuts and owners.
  bool equivalent(const Group& a, const Group& b) const;

  /// Visits the block's runs in storage order.
  template <class Visit>
  void for_each_run(const Block& block, const Visit& visit) const {
    const Shape& whole = table_->row(block.row).shape;
    const int dimension = table_->row(block.row).split;
    if (block.slices.empty()) return visit(Run{0, 0, block.elements()});
    std::int64_t local = 0;
    if (dimension == 0) {
      const std::int64_t width = whole.elements() / whole[0];
      for (const Range& slice : block.slices) {
        if (slice.size() > 0) visit(Run{local, slice.begin * width, slice.size() * width});
        local += slice.size() * width;
      }
      return;
    }
    for (std::int64_t r = 0; r < whole[0]; ++r) {
      for (const Range& slice : block.slices) {
        if (slice.size() > 0) visit(Run{local, r * whole[1] + slice.begin, slice.size()});
        local += slice.size();
      }
    }
  }

  /// Parts of the block, in storage order, that no lower tile holds too: what counts in norms and
  /// checkpoints, so that every logical element counts once over all tiles.
  std::vector<Range> owned(const Block& block) const;

 private:
  const ParameterTable* table_;
  std::vector<Range> units_;
  Tiles tiles_;
  std::vector<Block> blocks_;
  std::vector<Group> groups_;
  std::vector<std::vector<int>> by_row_, by_unit_;
  std::int64_t elements_ = 0;
};

/// A range of the flat buffer and its offset in another one.
struct FlatRange {
  Range elements;
  std::int64_t offset = 0;
};
/// Writes initial values of some ranges into `values` (fp32), each at its offset. Element i of row
/// r is a function of (seed, row name, i) alone, in every layout. The gaps are zeroed.
void initialize(const Layout& layout, std::uint64_t seed, const std::vector<FlatRange>& ranges,
                const Tensor& values);

/// Elements of one partial sum of squares (reproducible norms); a cut of sharded state never falls
/// inside one.
inline constexpr std::int64_t norm_block = 4096;

/// Boundaries (size parts + 1, from the group's beginning) of the shards of a group over `parts`
/// ranks: as even as possible, never inside a norm block, so that each rank can add up its own.
std::vector<std::int64_t> shard_bounds(const Layout& layout, const Group& group, int parts);

}  // namespace trireme::params
