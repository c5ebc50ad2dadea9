#include "trireme/state/zero.hpp"

#include <array>

namespace trireme::state {

const ZeroPolicy& zero_policy(int stage) {
  static constexpr std::array<ZeroPolicy, 4> table = {{
      // parameters, gradients, optimizer state
      {Held::whole, Held::whole, Held::whole},
      {Held::whole, Held::whole, Held::sharded},
      {Held::whole, Held::sharded, Held::sharded},
      {Held::sharded, Held::sharded, Held::sharded},
  }};
  return table.at(static_cast<std::size_t>(stage));
}

ShardMap::ShardMap(const params::Layout& layout, int parts, int index)
    : parts_(parts), index_(index) {
  constexpr std::int64_t alignment = 16;
  for (const params::Group& group : layout.groups()) {
    const std::vector<std::int64_t> bounds = params::shard_bounds(layout, group, parts);
    Group mine;
    for (int part = 0; part < parts; ++part) {
      const auto p = static_cast<std::size_t>(part);
      mine.counts.push_back(bounds[p + 1] - bounds[p]);
    }
    const auto i = static_cast<std::size_t>(index);
    mine.own = {group.elements.begin + bounds[i], group.elements.begin + bounds[i + 1]};
    mine.offset = elements_;
    elements_ += (mine.own.size() + alignment - 1) / alignment * alignment;
    groups_.push_back(std::move(mine));
  }
}

std::vector<params::FlatRange> ShardMap::own_ranges() const {
  std::vector<params::FlatRange> ranges;
  for (const Group& group : groups_) ranges.push_back({group.own, group.offset});
  return ranges;
}

}  // namespace trireme::state
