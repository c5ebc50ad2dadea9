#include "trireme/comm/topology.hpp"

#include <algorithm>
#include <set>

#include "trireme/core/error.hpp"

namespace trireme::comm {
namespace {

/// Whether the ranks [begin, begin + count·stride) in steps of `stride` share a node.
bool together(std::span<const int> node_of, int begin, int count, int stride) {
  for (int i = 1; i < count; ++i) {
    if (node_of[begin + i * stride] != node_of[begin]) return false;
  }
  return true;
}

/// Ranks of a node follow each other: as many changes of node along the ranks as the nodes need.
bool consecutive(std::span<const int> node_of) {
  const std::set<int> nodes(node_of.begin(), node_of.end());
  std::size_t changes = 0;
  for (std::size_t rank = 1; rank < node_of.size(); ++rank) {
    if (node_of[rank] != node_of[rank - 1]) ++changes;
  }
  return changes + 1 == nodes.size();
}

/// The largest tensor degree below the given one that leaves the other axes but data as they are
/// and whose groups lie inside nodes.
int largest_tensor(const GridShape& shape, std::span<const int> node_of) {
  const int room = shape.of(Axis::tensor) * shape.of(Axis::data);
  for (int tensor = shape.of(Axis::tensor) - 1; tensor > 1; --tensor) {
    if (room % tensor != 0) continue;
    int begin = 0;
    while (begin < shape.size() && together(node_of, begin, tensor, 1)) begin += tensor;
    if (begin == shape.size()) return tensor;
  }
  return 1;
}

}  // namespace

std::vector<std::string> topology_warnings(const GridShape& shape, std::span<const int> node_of) {
  TRIREME_ASSERT(static_cast<int>(node_of.size()) == shape.size(), "{} ranks on nodes, {} in {}",
                 node_of.size(), shape.size(), shape.to_string());
  const int tensor = shape.of(Axis::tensor);
  int spanning = 0;
  int first = -1;
  for (int begin = 0; begin < shape.size(); begin += tensor) {
    if (together(node_of, begin, tensor, 1)) continue;
    if (spanning++ == 0) first = begin;
  }
  if (spanning == 0) return {};
  // Blocks of ranks shrink to nothing where the launcher deals ranks out one by one.
  const std::string mend =
      consecutive(node_of) ? fmt::format("use parallel.tensor = {}, the largest that does not",
                                         largest_tensor(shape, node_of))
                           : std::string(
                                 "place consecutive ranks on a node (mpirun --map-by slot, srun "
                                 "--distribution=block)");
  return {fmt::format("tensor groups span nodes: {} of {}, the first of ranks {} to {}; {}",
                      spanning, shape.size() / tensor, first, first + tensor - 1, mend)};
}

int shard_inside_node(const GridShape& shape, std::span<const int> node_of) {
  TRIREME_ASSERT(static_cast<int>(node_of.size()) == shape.size(), "{} ranks on nodes, {} in {}",
                 node_of.size(), shape.size(), shape.to_string());
  const int data = shape.of(Axis::data);
  const int stride = shape.of(Axis::tensor) * shape.of(Axis::context);
  for (int shard = data; shard > 1; --shard) {
    if (data % shard != 0) continue;
    bool inside = true;
    for (int rank = 0; inside && rank < shape.size(); ++rank) {
      const int place = shape.coordinates(rank)[static_cast<int>(Axis::data)];
      if (place % shard == 0) inside = together(node_of, rank, shard, stride);
    }
    if (inside) return shard;
  }
  return 1;
}

}  // namespace trireme::comm
