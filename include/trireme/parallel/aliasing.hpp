// Gradients lie idle from one update until backward adds to them again. What forward keeps for
// backward may lie there meanwhile, where the program reads it for the last time before the
// gradient is first added to.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/parallel/lowering.hpp"

namespace trireme::parallel {

/// Part of what a stash slot of a chunk holds for one unit.
struct StashPart {
  int chunk = 0, slot = 0, unit = 0;
  std::size_t bytes = 0;  // a multiple of device::alignment
};

struct Aliases {
  std::vector<std::int64_t> places;  // by part: byte of the flat gradients, −1: none
  std::vector<bool> lent;            // by group of the layout: some part lies in its gradient
};

/// Places as many of `parts` as fit into the flat fp32 gradients of `layout`, last units' first. A
/// group that lends is to be zeroed just before it is first added to. `last_unit` of the model adds
/// to its groups in forward.
Aliases plan_aliases(const Program& program, const params::Layout& layout, int last_unit,
                     const std::vector<StashPart>& parts);

}  // namespace trireme::parallel
