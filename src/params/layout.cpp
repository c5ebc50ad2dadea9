#include "trireme/params/layout.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "trireme/core/random.hpp"

namespace trireme::params {

namespace {

constexpr std::int64_t block_alignment = 16;  // fp32 elements in 64 bytes

std::int64_t round_up(std::int64_t value, std::int64_t grain) {
  return (value + grain - 1) / grain * grain;
}

/// FNV-1a: a parameter's random stream is derived from its name, not from its row in the table.
std::uint32_t stream_of(std::string_view name) {
  std::uint32_t hash = 2166136261U;
  for (unsigned char c : name) hash = (hash ^ c) * 16777619U;
  return hash;
}

/// Fills values[0, n) with the initial values of elements first … first + n − 1 of `row`.
void fill_initial(const Parameter& row, std::uint64_t seed, std::int64_t first, std::int64_t n,
                  float* values) {
  switch (row.initialization.kind) {
    case Initialization::Kind::zeros:
      std::fill_n(values, n, 0.0F);
      return;
    case Initialization::Kind::ones:
      std::fill_n(values, n, 1.0F);
      return;
    case Initialization::Kind::normal: {
      const RandomKey key{seed, Purpose::initialization, stream_of(row.name)};
      const double deviation = row.initialization.deviation;
      constexpr std::int64_t chunk = 1024;
#pragma omp parallel for schedule(static) if (n > 4 * chunk)
      for (std::int64_t begin = 0; begin < n; begin += chunk) {
        std::array<double, chunk> drawn;
        const std::int64_t count = std::min(chunk, n - begin);
        normals(key, static_cast<std::uint64_t>(first + begin),
                {drawn.data(), static_cast<std::size_t>(count)});
        for (std::int64_t i = 0; i < count; ++i) {
          values[begin + i] = static_cast<float>(deviation * drawn[static_cast<std::size_t>(i)]);
        }
      }
      return;
    }
  }
  no_case_for(row.initialization.kind);
}

}  // namespace

std::vector<Range> tile_slices(const Parameter& row, int v, int tiles) {
  const std::int64_t extent = row.shape[row.split];
  if (row.parts.empty()) return {tile_of(extent, v, tiles)};
  const Part& lead = row.parts.front();
  const Range grains = tile_of(lead.extent / lead.grain, v, tiles);
  std::vector<Range> slices;
  std::int64_t begin = 0;
  for (const Part& part : row.parts) {
    Range own{grains.begin / part.serves, (grains.end + part.serves - 1) / part.serves};
    if (grains.size() == 0) own.end = own.begin;
    slices.push_back({begin + own.begin * part.grain, begin + own.end * part.grain});
    begin += part.extent;
  }
  return slices;
}

std::vector<SharedGrain> shared_grains(const Parameter& row, int tiles) {
  std::vector<SharedGrain> result;
  std::int64_t begin = 0;
  for (std::size_t p = 0; p < row.parts.size(); begin += row.parts[p].extent, ++p) {
    const Part& part = row.parts[p];
    const std::int64_t lead = row.parts.front().extent / row.parts.front().grain;
    std::int64_t last = -1;
    for (int v = 1; part.serves > 1 && v < tiles; ++v) {
      // A grain whose leading grains two tiles have is where a tile begins inside them.
      const std::int64_t border = tile_of(lead, v, tiles).begin, grain = border / part.serves;
      if (border % part.serves == 0 || border == lead || grain == last) continue;
      last = grain;
      const std::int64_t at = begin + grain * part.grain;
      const std::int64_t next = (grain + 1) * part.serves;
      result.push_back(
          {p,
           {at, at + part.grain},
           {tile_with(lead, grain * part.serves, tiles), tile_with(lead, next - 1, tiles) + 1}});
    }
  }
  return result;
}

Range elements_of(const Parameter& row, const Block& block, const SharedGrain& grain) {
  const Range& slice = block.slices[grain.part];
  if (grain.along.begin < slice.begin || grain.along.end > slice.end) return {};
  const std::int64_t width = row.shape.elements() / row.shape[0];
  std::int64_t before = grain.along.begin - slice.begin;
  for (std::size_t p = 0; p < grain.part; ++p) before += block.slices[p].size();
  return {before * width, (before + grain.along.size()) * width};
}

bool Layout::has_unit(int unit) const {
  return std::any_of(units_.begin(), units_.end(),
                     [&](const Range& r) { return unit >= r.begin && unit < r.end; });
}

bool Layout::equivalent(const Group& a, const Group& b) const {
  if (a.blocks.size() != b.blocks.size() || a.elements.size() != b.elements.size()) return false;
  for (std::int64_t i = 0; i < a.blocks.size(); ++i) {
    const Block& x = blocks_[static_cast<std::size_t>(a.blocks.begin + i)];
    const Block& y = blocks_[static_cast<std::size_t>(b.blocks.begin + i)];
    const bool same = x.tile == y.tile && x.shape == y.shape && x.slices == y.slices &&
                      x.offset - a.elements.begin == y.offset - b.elements.begin &&
                      table_->row(x.row).split == table_->row(y.row).split &&
                      table_->row(x.row).parts == table_->row(y.row).parts;
    if (!same) return false;
  }
  return true;
}

Layout::Layout(const ParameterTable& table, std::vector<Range> units, const Tiles& tiles)
    : table_(&table),
      units_(std::move(units)),
      tiles_(tiles),
      by_row_(table.rows().size()),
      by_unit_(static_cast<std::size_t>(units_.back().end)) {
  TRIREME_ASSERT(tiles.count >= 1 && tiles.first >= 0 && tiles.first + tiles.count <= tiles.all,
                 "tiles {} + {} of {}", tiles.first, tiles.count, tiles.all);
  const auto local = [&](int unit) { return has_unit(unit); };
  for (std::size_t r = 0; r < table.rows().size(); ++r) {
    const Parameter& row = table.rows()[r];
    if (std::none_of(row.units.begin(), row.units.end(), local)) continue;
    const bool fresh = groups_.empty() || row.units.size() > 1 || groups_.back().units != row.units;
    if (fresh) {
      const auto at = static_cast<std::int64_t>(blocks_.size());
      groups_.push_back({row.units, {at, at}, {elements_, elements_}});
      for (int unit : row.units) {
        if (local(unit)) {
          by_unit_[static_cast<std::size_t>(unit)].push_back(static_cast<int>(groups_.size()) - 1);
        }
      }
    }
    const bool split = row.split >= 0;
    for (int t = 0; t < (split ? tiles.count : 1); ++t) {
      Block block{static_cast<int>(r), split ? tiles.first + t : 0, row.shape, {}, elements_};
      if (split) {
        block.slices = tile_slices(row, block.tile, tiles.all);
        std::int64_t extent = 0;
        for (const Range& slice : block.slices) extent += slice.size();
        block.shape[row.split] = extent;
      }
      by_row_[r].push_back(static_cast<int>(blocks_.size()));
      elements_ += round_up(block.elements(), block_alignment);
      blocks_.push_back(std::move(block));
    }
    groups_.back().blocks.end = static_cast<std::int64_t>(blocks_.size());
    groups_.back().elements.end = elements_;
  }
}

std::vector<Range> Layout::owned(const Block& block) const {
  const Parameter& row = table_->row(block.row);
  if (block.slices.empty() || row.split != 0 || block.tile == 0) {
    return {{0, block.elements()}};
  }
  const std::int64_t width = row.shape.elements() / row.shape[0];
  std::vector<Range> result;
  std::int64_t local = 0, first = 0;
  for (std::size_t p = 0; p < block.slices.size(); ++p) {
    const Range& slice = block.slices[p];
    std::int64_t lower = slice.begin;  // as far as lower tiles reach in the part
    if (!row.parts.empty()) {
      const Part &part = row.parts[p], &lead = row.parts.front();
      const Range grains = tile_of(lead.extent / lead.grain, block.tile, tiles_.all);
      lower = first + (grains.begin + part.serves - 1) / part.serves * part.grain;
      first += part.extent;
    }
    const std::int64_t begin = std::clamp(lower, slice.begin, slice.end);
    const Range own{(local + begin - slice.begin) * width, (local + slice.size()) * width};
    local += slice.size();
    if (own.size() == 0) continue;
    if (!result.empty() && result.back().end == own.begin) {
      result.back().end = own.end;
    } else {
      result.push_back(own);
    }
  }
  return result;
}

void initialize(const Layout& layout, std::uint64_t seed, const std::vector<FlatRange>& ranges,
                const Tensor& values) {
  std::fill_n(values.as<float>(), values.elements(), 0.0F);
  for (const FlatRange& range : ranges) {
    for (const Block& block : layout.blocks()) {
      if (block.offset >= range.elements.end ||
          block.offset + block.elements() <= range.elements.begin) {
        continue;
      }
      layout.for_each_run(block, [&](const Run& run) {
        const std::int64_t first = block.offset + run.local;
        const std::int64_t begin = std::max(first, range.elements.begin);
        const std::int64_t end = std::min(first + run.elements, range.elements.end);
        if (begin >= end) return;
        fill_initial(layout.table().row(block.row), seed, run.logical + begin - first, end - begin,
                     values.as<float>() + range.offset + begin - range.elements.begin);
      });
    }
  }
}

namespace {

/// Where a group may be cut: from each begin on, every norm_block elements before `end`.
std::vector<Range> cuts_of(const Layout& layout, const Group& group) {
  std::vector<Range> cuts;  // from the group's beginning, ascending
  for (std::int64_t b = group.blocks.begin; b < group.blocks.end; ++b) {
    const Block& block = layout.blocks()[static_cast<std::size_t>(b)];
    const std::int64_t first = block.offset - group.elements.begin;
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      if (begin < end) cuts.push_back({first + begin, first + end});
    };
    // Norm blocks begin with each owned part. Between them is what lower tiles own.
    std::int64_t done = 0;
    for (const Range& own : layout.owned(block)) {
      add(done, own.begin);
      add(own.begin, own.end);
      done = own.end;
    }
    add(done, block.elements());
  }
  return cuts;
}

}  // namespace

std::vector<std::int64_t> shard_bounds(const Layout& layout, const Group& group, int parts) {
  const std::vector<Range> cuts = cuts_of(layout, group);
  const std::int64_t size = group.elements.size();
  std::vector<std::int64_t> bounds{0};
  bounds.reserve(static_cast<std::size_t>(parts) + 1);
  std::size_t next = 0;  // of the cuts, the first that begins after the ideal bound
  for (std::int64_t part = 1; part < parts; ++part) {
    const std::int64_t ideal = size / parts * part + size % parts * part / parts;
    while (next < cuts.size() && cuts[next].begin <= ideal) ++next;
    std::int64_t below = 0, above = next < cuts.size() ? cuts[next].begin : size;
    if (next > 0) {
      const Range& here = cuts[next - 1];
      below = here.begin + (std::min(ideal, here.end - 1) - here.begin) / norm_block * norm_block;
      if (below == ideal) {
        above = ideal;
      } else if (below + norm_block < here.end) {
        above = below + norm_block;
      }
    }
    const std::int64_t cut = ideal - below < above - ideal ? below : above;
    bounds.push_back(std::max(bounds.back(), cut));
  }
  bounds.push_back(size);
  return bounds;
}

}  // namespace trireme::params
