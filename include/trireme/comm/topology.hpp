// What the placement of ranks on nodes means for a grid. Pure: nodes are given as a map from world
// ranks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/comm/shape.hpp"

namespace trireme::comm {

/// One line for each thing about the placement that costs speed, with its remedy. `node_of`: by
/// world rank, equal numbers for ranks that share memory.
std::vector<std::string> topology_warnings(const GridShape& shape, std::span<const int> node_of);

/// The largest divisor N of the data degree such that every shard group of N (see
/// Grid::shard_group) lies inside one node; 1 where none larger does.
int shard_inside_node(const GridShape& shape, std::span<const int> node_of);

}  // namespace trireme::comm
