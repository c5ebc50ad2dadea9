#include "trireme/checkpoint/pieces.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "trireme/core/half.hpp"

#include "manifest.hpp"

namespace trireme::checkpoint {
namespace {

using params::Range;

Range overlap(const Range& a, const Range& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Neighbors along one dimension both in a block and in the logical tensor.
struct Stretch {
  Range local;
  std::int64_t logical = 0;  // where local.begin is
};

/// A block's slices; adjacent ones are merged.
std::vector<Stretch> stretches_of(const std::vector<Range>& slices) {
  std::vector<Stretch> stretches;
  std::int64_t local = 0;
  for (const Range& slice : slices) {
    const Range here{local, local + slice.size()};
    local = here.end;
    if (slice.size() == 0) continue;
    if (!stretches.empty() &&
        stretches.back().logical + stretches.back().local.size() == slice.begin) {
      stretches.back().local.end = here.end;
    } else {
      stretches.push_back({here, slice.begin});
    }
  }
  return stretches;
}

/// Elements of a block, as a matrix: whole rows or a part of one.
struct Rectangle {
  Range rows, columns;
};

/// The at most three rectangles of the elements `range` of a matrix of that many columns.
std::vector<Rectangle> rectangles_of(const Range& range, std::int64_t columns) {
  std::vector<Rectangle> rectangles;
  for (std::int64_t at = range.begin; at < range.end;) {
    const std::int64_t row = at / columns, column = at % columns, left = range.end - at;
    if (column == 0 && left >= columns) {
      rectangles.push_back({{row, row + left / columns}, {0, columns}});
      at += left / columns * columns;
    } else {
      const std::int64_t end = std::min(columns, column + left);
      rectangles.push_back({{row, row + 1}, {column, end}});
      at += end - column;
    }
  }
  return rectangles;
}

/// Visits the logical boxes of the elements `range` of `block`, whose first element is element
/// `first` of `flat` (before its beginning where a shard begins inside the block): visit(begin,
/// view of `flat`).
template <class Visit>
void for_each_box(const params::Layout& layout, const params::Block& block, const Range& range,
                  const Tensor& flat, std::int64_t first, const Visit& visit) {
  if (range.size() == 0) return;
  const params::Parameter& row = layout.table().row(block.row);
  const bool vector = block.shape.dimensions() == 1;  // one row of a matrix
  TRIREME_ASSERT(vector || block.shape.dimensions() == 2, "{}: {}", row.name,
                 block.shape.to_string());
  const std::int64_t rows = vector ? 1 : block.shape[0];
  const std::int64_t columns = block.elements() / rows;
  std::vector<Stretch> along_rows{{{0, rows}, 0}}, along_columns{{{0, columns}, 0}};
  if (!block.slices.empty()) {
    const bool by_rows = !vector && row.split == 0;
    (by_rows ? along_rows : along_columns) = stretches_of(block.slices);
  }
  for (const Rectangle& rectangle : rectangles_of(range, columns)) {
    for (const Stretch& down : along_rows) {
      const Range r = overlap(rectangle.rows, down.local);
      if (r.size() == 0) continue;
      for (const Stretch& across : along_columns) {
        const Range c = overlap(rectangle.columns, across.local);
        if (c.size() == 0) continue;
        const std::int64_t top = down.logical + r.begin - down.local.begin;
        const std::int64_t left = across.logical + c.begin - across.local.begin;
        const std::int64_t at = first + r.begin * columns + c.begin;
        void* data = flat.slice(0, at, at + 1).data();
        if (vector) {
          visit(Index{left}, Tensor(data, flat.type(), {c.size()}));
        } else {
          visit(Index{top, left},
                Tensor(data, flat.type(), {r.size(), c.size()}, {columns, 1, 0, 0}));
        }
      }
    }
  }
}

/// Where element f of the whole flat buffer, one of group `group`, is in `flat`: f plus this.
std::int64_t displacement(const state::ShardMap& shards, int group, bool sharded) {
  return sharded ? shards.offset(group) - shards.own(group).begin : 0;
}

void check_size(const state::ModelState& state, const Tensor& flat, bool sharded) {
  const std::int64_t expected = sharded ? state.shards().elements() : state.layout().elements();
  TRIREME_ASSERT(flat.shape() == Shape({expected}), "a flat buffer {}, expected [{}]",
                 flat.shape().to_string(), expected);
}

/// Visits each block of group `group` with the part of it in `held`, a range of the whole
/// flat buffer: visit(block, elements of the block).
template <class Visit>
void for_each_block(const params::Layout& layout, int group, const Range& held,
                    const Visit& visit) {
  const Range& blocks = layout.groups()[static_cast<std::size_t>(group)].blocks;
  for (std::int64_t b = blocks.begin; b < blocks.end; ++b) {
    const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
    const Range inside = overlap(held, {block.offset, block.offset + block.elements()});
    if (inside.size() > 0) {
      visit(block, Range{inside.begin - block.offset, inside.end - block.offset});
    }
  }
}

/// Visits what this rank is to write: visit(block, elements of the block, displacement).
template <class Visit>
void for_each_own(const params::Layout& layout, const state::ShardMap& shards, bool sharded,
                  const Writers& writers, const Visit& visit) {
  if (sharded && writers.data_rank != shards.index()) return;  // a later shard group
  const state::ShardMap shares =
      sharded ? shards : state::ShardMap(layout, writers.data, writers.data_rank);
  for (int g = 0; g < shares.groups(); ++g) {
    const params::Group& group = layout.groups()[static_cast<std::size_t>(g)];
    if (!layout.has_unit(group.units.front())) continue;  // an earlier stage writes a tied row
    const std::int64_t shift = displacement(shares, g, sharded);
    for_each_block(layout, g, shares.own(g), [&](const params::Block& block, const Range& held) {
      if (block.slices.empty() && layout.tiles().first > 0) return;  // tensor rank 0 writes it
      for (const Range& own : layout.owned(block)) visit(block, overlap(own, held), shift);
    });
  }
}

/// load_pieces into host memory.
void load_into(const Reader& reader, const std::string& prefix, const state::ModelState& state,
               const Tensor& flat, bool sharded) {
  const params::Layout& layout = state.layout();
  const state::ShardMap& shards = state.shards();
  if (flat.elements() > 0) std::memset(flat.data(), 0, flat.bytes());
  for (int g = 0; g < shards.groups(); ++g) {
    const Range& held =
        sharded ? shards.own(g) : layout.groups()[static_cast<std::size_t>(g)].elements;
    const std::int64_t shift = displacement(shards, g, sharded);
    for_each_block(layout, g, held, [&](const params::Block& block, const Range& part) {
      const std::string name = prefix + "/" + layout.table().row(block.row).name;
      for_each_box(layout, block, part, flat, block.offset + shift,
                   [&](const Index& begin, const Tensor& data) {
                     reader.read(name, begin, data);
                     require_finite(reader.folder().string(), name, {begin, data.shape()}, data);
                   });
    });
  }
}

}  // namespace

void append_pieces(std::vector<Piece>& pieces, const std::string& prefix,
                   const state::ModelState& state, const Tensor& flat, bool sharded,
                   const Writers& writers) {
  check_size(state, flat, sharded);
  const params::Layout& layout = state.layout();
  for_each_own(layout, state.shards(), sharded, writers,
               [&](const params::Block& block, const Range& own, std::int64_t shift) {
                 const params::Parameter& row = layout.table().row(block.row);
                 for_each_box(layout, block, own, flat, block.offset + shift,
                              [&](const Index& begin, const Tensor& data) {
                                pieces.push_back({.name = prefix + "/" + row.name,
                                                  .shape = row.shape,
                                                  .begin = begin,
                                                  .data = data,
                                                  .finite = true});
                              });
               });
}

std::int64_t piece_elements(const params::Layout& layout, const state::ShardMap& shards,
                            bool sharded, const Writers& writers) {
  std::int64_t elements = 0;
  for_each_own(
      layout, shards, sharded, writers,
      [&](const params::Block&, const Range& own, std::int64_t) { elements += own.size(); });
  return elements;
}

std::vector<std::int64_t> piece_elements(const params::Layout& layout,
                                         const state::ShardMap& shares) {
  std::vector<std::int64_t> elements(static_cast<std::size_t>(shares.parts()), 0);
  // By list of shares, which equivalent groups have in common: one of them, and their number.
  std::map<const std::vector<std::int64_t>*, std::pair<int, std::int64_t>> kinds;
  for (int g = 0; g < shares.groups(); ++g) {
    const params::Group& group = layout.groups()[static_cast<std::size_t>(g)];
    const bool earlier_stage_writes = !layout.has_unit(group.units.front());
    if (earlier_stage_writes) continue;
    ++kinds.try_emplace(&shares.bounds(g), g, 0).first->second.second;
  }
  for (const auto& [bounds, kind] : kinds) {
    const params::Group& group = layout.groups()[static_cast<std::size_t>(kind.first)];
    std::vector<Range> written;  // from the group's beginning, ascending
    for (std::int64_t b = group.blocks.begin; b < group.blocks.end; ++b) {
      const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
      if (block.slices.empty() && layout.tiles().first > 0) continue;  // tensor rank 0 writes it
      const std::int64_t first = block.offset - group.elements.begin;
      for (const Range& own : layout.owned(block)) {
        written.push_back({first + own.begin, first + own.end});
      }
    }
    std::size_t next = 0;
    for (std::size_t part = 0; part < elements.size(); ++part) {
      const Range share{(*bounds)[part], (*bounds)[part + 1]};
      while (next < written.size() && written[next].end <= share.begin) ++next;
      for (std::size_t i = next; i < written.size() && written[i].begin < share.end; ++i) {
        elements[part] += kind.second * overlap(written[i], share).size();
      }
    }
  }
  return elements;
}

void load_pieces(const Reader& reader, const std::string& prefix, const state::ModelState& state,
                 const Tensor& flat, bool sharded) {
  check_size(state, flat, sharded);
  device::Device& device = state.optimizer_device();
  if (device.is_host() && flat.type() == DType::f32) {
    return load_into(reader, prefix, state, flat, sharded);
  }
  std::vector<float> host(static_cast<std::size_t>(flat.elements()));
  load_into(reader, prefix, state, Tensor(host.data(), flat.shape()), sharded);
  if (flat.type() == DType::f32) return device::write(device, flat, host.data());
  std::vector<std::uint16_t> rounded(host.size());
  std::transform(host.begin(), host.end(), rounded.begin(),
                 flat.type() == DType::bf16 ? float_to_bf16 : float_to_fp16);
  device::write(device, flat, rounded.data());
}

void clear_pieces(const state::ModelState& state, const Tensor& flat) {
  const std::vector<std::byte> zeros(flat.bytes());
  device::write(state.optimizer_device(), flat, zeros.data());
}

}  // namespace trireme::checkpoint
