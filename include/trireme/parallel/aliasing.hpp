// Activation aliasing: gradients are not in use from one update until backward adds to them again.
// Activations may use their memory meanwhile, where the program reads them for the last time before
// it first adds to the gradient.
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
  std::vector<bool> aliased;         // by group of the layout: some part aliases its gradient
};

/// Places as many of `parts` as fit into the flat fp32 gradients of `layout`, last units' first. An
/// aliased gradient must be zeroed just before it is first added to. `last_unit` of the model adds
/// to its gradients in forward.
Aliases plan_aliases(const Program& program, const params::Layout& layout, int last_unit,
                     const std::vector<StashPart>& parts);

}  // namespace trireme::parallel
