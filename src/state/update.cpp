#include "trireme/state/update.hpp"

#include <algorithm>
#include <cmath>

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

}  // namespace

std::vector<optim::UpdateRange> update_ranges(const ModelState& state) {
  std::vector<optim::UpdateRange> ranges;
  const params::Layout& layout = state.layout();
  for (int g = 0; g < state.shards().groups(); ++g) {
    const params::Group& group = layout.groups()[static_cast<std::size_t>(g)];
    const params::Range& own = state.shards().own(g);
    const Tensor values = state.own_values(g), gradients = state.own_gradient(g);
    for (std::int64_t b = group.blocks.begin; b < group.blocks.end; ++b) {
      const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
      const std::int64_t block_end = b + 1 < group.blocks.end
                                         ? layout.blocks()[static_cast<std::size_t>(b) + 1].offset
                                         : group.elements.end;
      const params::Range part{std::max(own.begin, block.offset), std::min(own.end, block_end)};
      if (part.size() <= 0) continue;
      const std::int64_t begin = part.begin - own.begin, end = part.end - own.begin;
      const bool decay = layout.table().row(block.row).decay;
      const std::int64_t offset = state.shards().offset(g) + begin;
      if (begin > 0 && ranges.back().decay == decay) {
        const std::int64_t first = ranges.back().offset - state.shards().offset(g);
        ranges.back().parameters = values.slice(0, first, end);
        ranges.back().gradients = gradients.slice(0, first, end);
      } else {
        ranges.push_back(
            {values.slice(0, begin, end), gradients.slice(0, begin, end), offset, decay});
      }
    }
  }
  return ranges;
}

std::int64_t GradientNorm::partial_sums(const params::ParameterTable& table,
                                        const model::Shares& shares) {
  if (!shares.reproducible) return static_cast<std::int64_t>(table.rows().size());
  std::int64_t total = 0;
  number_blocks(table, shares.tiles.all, total);
  return total;
}

GradientNorm::GradientNorm(const ModelState& state, const ShardMap& counting, bool counts)
    : sums_(
          static_cast<std::size_t>(partial_sums(state.layout().table(), state.options().shares))) {
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
      std::int64_t index = block.row;
      if (shares.reproducible) {
        index = first[static_cast<std::size_t>(block.row)][static_cast<std::size_t>(block.tile)];
      }
      for (const params::Range& range : layout.owned(block)) {
        for (std::int64_t at = range.begin; at < range.end; at += params::norm_block) {
          const params::Range part{block.offset + at,
                                   block.offset + std::min(at + params::norm_block, range.end)};
          const std::int64_t place = shares.reproducible ? index++ : index;
          if (part.begin < own.begin || part.begin >= own.end) continue;
          TRIREME_ASSERT(part.end <= own.end, "a norm block across shards");
          parts_.push_back(
              {gradient.slice(0, part.begin - held.begin, part.end - held.begin), place});
        }
      }
    }
  }
}

double GradientNorm::compute(ops::Ops& ops, comm::Communicator& world, device::Stream& stream) {
  std::fill(sums_.begin(), sums_.end(), 0.0);
  for (const Part& part : parts_) {
    sums_[static_cast<std::size_t>(part.index)] += ops.sum_of_squares(part.gradient);
  }
  const auto count = static_cast<std::int64_t>(sums_.size());
  world.all_reduce(Tensor(sums_.data(), {count}), comm::Reduction::sum, stream).wait();
  double sum = 0;
  for (const double square : sums_) sum += square;
  return std::sqrt(sum);
}

}  // namespace trireme::state
