#include "trireme/parallel/aliasing.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "trireme/device/memory.hpp"

namespace trireme::parallel {

namespace {

using Kind = UnitAction::Kind;
constexpr auto float_bytes = static_cast<std::int64_t>(sizeof(float));

/// By group: the first action that adds to its gradient.
std::vector<std::size_t> first_additions(const Program& program, const params::Layout& layout,
                                         int last_unit) {
  std::vector<std::size_t> first(layout.groups().size(), std::numeric_limits<std::size_t>::max());
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const UnitAction& action = program.actions[i];
    const bool adds = action.kind == Kind::backward || action.kind == Kind::backward_weight ||
                      (action.kind == Kind::forward && action.unit == last_unit);
    if (!adds) continue;
    for (int g : layout.groups_of(action.unit)) {
      auto& place = first[static_cast<std::size_t>(g)];
      place = std::min(place, i);
    }
  }
  return first;
}

/// By part: the last action that reads it.
std::vector<std::size_t> last_reads(const Program& program, const std::vector<StashPart>& parts) {
  std::map<std::tuple<int, int, int>, std::size_t> last;  // by chunk, slot and unit
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const UnitAction& action = program.actions[i];
    if (action.unit >= 0) last[{action.chunk, action.stash, action.unit}] = i;
  }
  std::vector<std::size_t> result;
  result.reserve(parts.size());
  for (const StashPart& part : parts) result.push_back(last.at({part.chunk, part.slot, part.unit}));
  return result;
}

}  // namespace

Aliases plan_aliases(const Program& program, const params::Layout& layout, int last_unit,
                     const std::vector<StashPart>& parts) {
  Aliases aliases{std::vector<std::int64_t>(parts.size(), -1),
                  std::vector<bool>(layout.groups().size(), false)};
  const std::vector<std::size_t> additions = first_additions(program, layout, last_unit);
  const std::vector<std::size_t> reads = last_reads(program, parts);
  std::vector<std::size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return reads[a] < reads[b]; });
  // A part that is read later can alias no group that an earlier one cannot, so a group that one
  // part skips is of no use to those after it. Parts are placed from the end on: backward adds to
  // the last units' gradients first, and the groups that stay free longest are left for last.
  constexpr auto alignment = static_cast<std::int64_t>(device::alignment);
  std::int64_t limit = layout.elements() * float_bytes;
  for (const std::size_t part : order) {
    const auto bytes = static_cast<std::int64_t>(parts[part].bytes);
    if (bytes == 0) continue;
    std::int64_t begin = limit, end = limit;  // free for this part
    for (auto g = layout.groups().size(); g-- > 0 && end - begin < bytes;) {
      const params::Range& own = layout.groups()[g].elements;
      const std::int64_t first = own.begin * float_bytes, past = own.end * float_bytes;
      if (first >= end) continue;
      if (additions[g] <= reads[part]) {
        begin = end = first;
      } else {
        TRIREME_ASSERT(past >= begin, "groups {} bytes apart", begin - past);
        begin = first;
      }
    }
    end -= end % alignment;
    if (end - begin < bytes) continue;
    limit = end - bytes;
    aliases.places[part] = limit;
    for (std::size_t g = 0; g < layout.groups().size(); ++g) {
      const params::Range& own = layout.groups()[g].elements;
      if (own.begin * float_bytes < end && own.end * float_bytes > limit) aliases.aliased[g] = true;
    }
  }
  return aliases;
}

}  // namespace trireme::parallel
