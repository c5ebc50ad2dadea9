#include "trireme/state/update.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trireme::state {

namespace {

std::int64_t norm_blocks(std::int64_t elements) {
  return (elements + params::norm_block - 1) / params::norm_block;
}

/// First partial sum of each (row, tile) of the whole model in reproducible mode, in table order;
/// the last entry is their number.
std::vector<std::vector<std::int64_t>> number_blocks(const params::ParameterTable& table, int tiles,
                                                     std::int64_t& total) {
  const int units =
      1 +
      std::max_element(table.rows().begin(), table.rows().end(), [](const auto& a, const auto& b) {
        return a.units.back() < b.units.back();
      })->units.back();
  const params::Layout whole(table, {{0, units}}, {tiles, 0, tiles});
  std::vector<std::vector<std::int64_t>> first(table.rows().size());
  total = 0;
  for (std::size_t row = 0; row < table.rows().size(); ++row) {
    for (int b : whole.blocks_of(static_cast<int>(row))) {
      first[row].push_back(total);
      for (const params::Range& own : whole.owned(whole.blocks()[static_cast<std::size_t>(b)])) {
        total += norm_blocks(own.size());
      }
    }
  }
  return first;
}

/// Index of each row's first element, all rows one after another.
std::vector<std::int64_t> first_elements(const params::ParameterTable& table) {
  std::vector<std::int64_t> first;
  std::int64_t next = 0;
  for (const params::Parameter& row : table.rows()) {
    first.push_back(next);
    next += row.shape.elements();
  }
  return first;
}

/// Elements of a block whose indices follow one rule.
struct Piece {
  params::Range local;
  ops::ElementIndices indices;
};

/// All of `block`. A column range of a matrix, as row-split layers hold it, is one piece and not
/// one for each row.
std::vector<Piece> pieces_of(const params::Layout& layout, const params::Block& block,
                             const std::vector<std::int64_t>& bases) {
  const params::Parameter& row = layout.table().row(block.row);
  const std::int64_t base = bases[static_cast<std::size_t>(block.row)];
  if (block.elements() == 0) return {};
  if (row.split == 1 && block.slices.size() == 1) {
    const params::Range& columns = block.slices.front();
    return {{{0, block.elements()},
             {.first = base + columns.begin,
              .width = columns.size(),
              .skip = row.shape[1] - columns.size()}}};
  }
  std::vector<Piece> pieces;
  layout.for_each_run(block, [&](const params::Run& run) {
    pieces.push_back({{run.local, run.local + run.elements}, {.first = base + run.logical}});
  });
  return pieces;
}

/// Where the next block of the group begins: the gap before it holds zeros.
std::int64_t end_of_block(const params::Layout& layout, const params::Group& group,
                          std::int64_t block) {
  return block + 1 < group.blocks.end ? layout.blocks()[static_cast<std::size_t>(block) + 1].offset
                                      : group.elements.end;
}

}  // namespace

TensorSums::Packs TensorSums::plan(const params::Layout& layout, const params::Group& group,
                                   const model::Shares& shares) {
  Packs packs;
  const int kv_tiles = shares.kv_tiles == 0 ? shares.tiles.all : shares.kv_tiles;
  const int first = shares.tiles.first / kv_tiles * kv_tiles;
  int last_row = -1;
  for (std::int64_t b = group.blocks.begin; b < group.blocks.end; ++b) {
    const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
    const std::int64_t offset = block.offset - group.elements.begin;
    if (block.slices.empty()) {
      if (!shares.sequence_parallel) continue;
      packs.rows.pieces.push_back({0, offset, packs.rows.elements, block.elements()});
      packs.rows.elements += block.elements();
      continue;
    }
    if (block.row == last_row) continue;  // done with the row's first tile
    last_row = block.row;
    const params::Parameter& row = layout.table().row(block.row);
    for (const params::SharedGrain& grain : params::shared_grains(row, shares.tiles.all)) {
      if (grain.tiles.end <= first || grain.tiles.begin >= first + kv_tiles) continue;
      TRIREME_ASSERT(grain.tiles.begin >= first && grain.tiles.end <= first + kv_tiles,
                     "{}: a head of tiles [{}, {}) in a group of [{}, {})", row.name,
                     grain.tiles.begin, grain.tiles.end, first, first + kv_tiles);
      for (int own : layout.blocks_of(block.row)) {
        const params::Block& tile = layout.blocks()[static_cast<std::size_t>(own)];
        const params::Range held = params::elements_of(row, tile, grain);
        if (held.size() == 0) continue;
        packs.heads.pieces.push_back({tile.tile - shares.tiles.first,
                                      tile.offset - group.elements.begin + held.begin,
                                      packs.heads.elements, held.size()});
      }
      packs.heads.elements += grain.along.size() * row.shape.elements() / row.shape[0];
    }
  }
  return packs;
}

TensorSums::Messages TensorSums::messages_of(const params::Layout& layout,
                                             const params::Group& group,
                                             const model::Shares& shares) {
  const Packs packs = plan(layout, group, shares);
  return {packs.rows.elements, packs.heads.elements};
}

TensorSums::Messages TensorSums::largest_messages(const params::Layout& layout,
                                                  const model::Shares& shares) {
  Messages largest;
  for (const params::Group& group : layout.groups()) {
    const Messages each = messages_of(layout, group, shares);
    largest.rows = std::max(largest.rows, each.rows);
    largest.heads = std::max(largest.heads, each.heads);
  }
  return largest;
}

std::int64_t TensorSums::bytes(const params::Layout& layout, const model::Shares& shares) {
  const Messages largest = largest_messages(layout, shares);
  return std::max(largest.rows, largest.heads) * shares.tiles.count *
         static_cast<std::int64_t>(sizeof(float));
}

TensorSums::TensorSums(const ModelState& state, device::MemoryLedger& ledger) : state_(state) {
  const params::Layout& layout = state.layout();
  const model::Shares& shares = state.options().shares;
  if (!state.options().train) return;
  for (const params::Group& group : layout.groups()) packs_.push_back(plan(layout, group, shares));
  const std::int64_t size = bytes(layout, shares);
  if (size > 0) {
    buffer_ = device::Buffer(ledger, device::Use::communication, static_cast<std::size_t>(size));
  }
}

void TensorSums::join(int group, int set, ops::Ops& ops, const model::TensorGroup& tensor) const {
  const params::Layout& layout = state_.layout();
  const params::Group& members = layout.groups()[static_cast<std::size_t>(group)];
  const Tensor whole = state_.group_gradient(group, set);
  for (std::int64_t b = members.blocks.begin; b < members.blocks.end; ++b) {
    const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
    if (!block.slices.empty() || state_.copies() == 1) continue;
    const std::int64_t begin = block.offset - members.elements.begin;
    std::vector<Tensor> copies{
        whole.slice(0, begin, begin + block.elements()).reshape(block.shape)};
    for (int copy = 0; copy + 1 < state_.copies(); ++copy) {
      copies.push_back(state_.gradient_copy(static_cast<int>(b), set, copy));
    }
    ops.add_up(copies);
  }
  if (const Tensor other = state_.tied_gradient(group, set)) ops.add(whole, whole, other);

  const Packs& packs = packs_[static_cast<std::size_t>(group)];
  sum(packs.rows, whole, ops, tensor.group, tensor.stream);
  sum(packs.heads, whole, ops, tensor.kv, tensor.stream);
}

void TensorSums::sum(const Pack& pack, const Tensor& whole, ops::Ops& ops,
                     comm::Communicator& ranks, device::Stream& stream) const {
  if (pack.elements == 0) return;
  const int tiles = state_.options().shares.tiles.count;
  std::vector<Tensor> packed;
  for (int i = 0; i < tiles; ++i) {
    packed.push_back(buffer_.view(DType::f32, {pack.elements},
                                  static_cast<std::size_t>(i * pack.elements) * sizeof(float)));
    ops.fill(packed.back(), 0);
  }
  const auto own = [&](const Piece& piece) {
    return whole.slice(0, piece.offset, piece.offset + piece.elements).reshape({1, piece.elements});
  };
  const auto there = [&](const Piece& piece, int tile) {
    return packed[static_cast<std::size_t>(tile)]
        .slice(0, piece.packed, piece.packed + piece.elements)
        .reshape({1, piece.elements});
  };
  // Added to 0 and not copied: a sum must not be −0 in one size of group and 0 in another.
  for (const Piece& piece : pack.pieces) {
    const Tensor summand = there(piece, piece.tile);
    ops.add(summand, summand, own(piece));
  }
  ops.add_up(packed);
  ranks.all_reduce(packed.front(), comm::Reduction::sum, stream).wait();
  for (const Piece& piece : pack.pieces) ops.copy(own(piece), there(piece, 0));
}

std::vector<optim::UpdateRange> update_ranges(const ModelState& state, bool indexed) {
  std::vector<optim::UpdateRange> ranges;
  const params::Layout& layout = state.layout();
  const std::vector<std::int64_t> bases = first_elements(layout.table());
  for (int g = 0; g < state.shards().groups(); ++g) {
    const params::Group& group = layout.groups()[static_cast<std::size_t>(g)];
    const params::Range& own = state.shards().own(g);
    const Tensor values = state.own_parameters(g), gradients = state.own_gradient(g);
    const Tensor read = state.has_masters() ? state.own_values(g) : Tensor();
    // Adds [begin, end) of the rank's own shard, or extends the range before it of the same decay.
    const auto add = [&](std::int64_t begin, std::int64_t end, bool decay,
                         const ops::ElementIndices& indices) {
      const bool joins = !indexed && begin > 0 && ranges.back().decay == decay;
      if (joins) begin = ranges.back().offset - state.shards().offset(g);
      const optim::UpdateRange range{.parameters = values.slice(0, begin, end),
                                     .gradients = gradients.slice(0, begin, end),
                                     .rounded = read ? read.slice(0, begin, end) : Tensor(),
                                     .offset = state.shards().offset(g) + begin,
                                     .decay = decay,
                                     .indices = indices};
      if (joins) {
        ranges.back() = range;
      } else {
        ranges.push_back(range);
      }
    };
    for (std::int64_t b = group.blocks.begin; b < group.blocks.end; ++b) {
      const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
      const std::int64_t block_end = end_of_block(layout, group, b);
      const params::Range part{std::max(own.begin, block.offset), std::min(own.end, block_end)};
      if (part.size() <= 0) continue;
      const bool decay = layout.table().row(block.row).decay;
      if (!indexed) {
        add(part.begin - own.begin, part.end - own.begin, decay, {});
        continue;
      }
      std::vector<Piece> pieces = pieces_of(layout, block, bases);
      // The gap after a block holds zeros, which any indices leave unchanged.
      if (pieces.empty()) pieces.push_back({});
      pieces.back().local.end = block_end - block.offset;
      for (const Piece& piece : pieces) {
        const std::int64_t begin = std::max(part.begin, block.offset + piece.local.begin);
        const std::int64_t end = std::min(part.end, block.offset + piece.local.end);
        if (begin >= end) continue;
        add(begin - own.begin, end - own.begin, decay,
            piece.indices.from(begin - block.offset - piece.local.begin));
      }
    }
  }
  return ranges;
}

std::int64_t GradientNorm::partial_sums(const params::ParameterTable& table,
                                        const model::Shares& shares) {
  if (!shares.reproducible) return 1;
  std::int64_t total = 0;
  number_blocks(table, shares.tiles.all, total);
  return total;
}

GradientNorm::GradientNorm(const ModelState& state, const ShardMap& counting, bool counts,
                           device::MemoryLedger& ledger)
    : buffer_(
          ledger, device::Use::communication,
          static_cast<std::size_t>(partial_sums(state.layout().table(), state.options().shares)) *
              sizeof(double)),
      sums_(
          buffer_.view(DType::f64, {partial_sums(state.layout().table(), state.options().shares)})),
      read_(ledger, device::Use::communication, sums_) {
  if (!counts) return;
  const params::Layout& layout = state.layout();
  const model::Shares& shares = state.options().shares;
  std::int64_t total = 0;
  std::vector<std::vector<std::int64_t>> first;
  if (shares.reproducible) first = number_blocks(layout.table(), shares.tiles.all, total);
  for (int g = 0; g < state.shards().groups(); ++g) {
    const params::Group& group = layout.groups()[static_cast<std::size_t>(g)];
    if (!layout.has_unit(group.units.front())) continue;  // the first stage counts a tied weight
    const params::Range held = state.shards().own(g), own = counting.own(g);
    const Tensor gradient = state.own_gradient(g);
    for (std::int64_t b = group.blocks.begin; b < group.blocks.end; ++b) {
      const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
      if (block.slices.empty() && shares.tiles.first > 0) continue;  // tensor rank 0 counts it
      const auto sum_squares = [&](const params::Range& part, const params::Range& sums) {
        add({gradient.slice(0, part.begin - held.begin, part.end - held.begin), sums});
      };
      if (!shares.reproducible) {
        const std::int64_t block_end = end_of_block(layout, group, b);
        for (const params::Range& range : layout.owned(block)) {
          const bool last = range.end == block.elements();
          const params::Range part{std::max(own.begin, block.offset + range.begin),
                                   std::min(own.end, last ? block_end : block.offset + range.end)};
          if (part.size() > 0) sum_squares(part, {0, 1});
        }
        continue;
      }
      std::int64_t index =
          first[static_cast<std::size_t>(block.row)][static_cast<std::size_t>(block.tile)];
      for (const params::Range& range : layout.owned(block)) {
        for (std::int64_t at = range.begin; at < range.end; at += params::norm_block) {
          const params::Range part{block.offset + at,
                                   block.offset + std::min(at + params::norm_block, range.end)};
          const std::int64_t place = index++;
          if (part.begin < own.begin || part.begin >= own.end) continue;
          TRIREME_ASSERT(part.end <= own.end, "a norm block across shards");
          sum_squares(part, {place, place + 1});
        }
      }
    }
  }
}

void GradientNorm::add(const Part& part) {
  // Adjacent elements are one call: they have one sum, or whole blocks have adjacent sums.
  if (!parts_.empty()) {
    Part& last = parts_.back();
    const bool neighbors =
        last.gradient.as<float>() + last.gradient.elements() == part.gradient.as<float>();
    const bool one_sum = last.sums.begin == part.sums.begin;
    const bool own_sums = last.sums.end == part.sums.begin &&
                          last.sums.size() * params::norm_block == last.gradient.elements();
    if (neighbors && (one_sum || own_sums)) {
      last.gradient = Tensor(last.gradient.data(), last.gradient.type(),
                             {last.gradient.elements() + part.gradient.elements()});
      last.sums.end = part.sums.end;
      return;
    }
  }
  parts_.push_back(part);
}

void GradientNorm::start(ops::Ops& ops) {
  ops.fill(sums_, 0);
  for (const Part& part : parts_) {
    ops.add_squares(sums_.slice(0, part.sums.begin, part.sums.end), part.gradient);
  }
  read_.queue();
}

double GradientNorm::finish(comm::Communicator& world) {
  const Tensor& sums = read_.values();
  world.all_reduce(sums, comm::Reduction::sum, stream_).wait();
  const auto* squares = sums.as<double>();
  return std::sqrt(std::accumulate(squares, squares + sums.elements(), 0.0));
}

}  // namespace trireme::state
