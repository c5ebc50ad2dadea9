// Which units of the model each virtual stage holds.
#pragma once

#include <span>
#include <vector>

namespace trireme::schedule {

/// Splits units (embedding, blocks, head; `costs` in any unit, ≥ 0) into `virtual_stages`
/// contiguous runs of at least one unit, so that the largest run costs least; among such splits the
/// one with the least sum of squares, then the one whose first runs have fewest units. Costs count
/// to within 2⁻³⁰ of their sum. Returns virtual_stages + 1 numbers: the first unit of each, and the
/// number of units. Throws ConfigError when there are fewer units than virtual stages.
std::vector<int> split_units(std::span<const double> costs, int virtual_stages);

}  // namespace trireme::schedule
