#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/shape.hpp"

namespace trireme::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Nodes of `per_node` consecutive ranks each; the last has the remainder.
std::vector<int> blocks(int world, int per_node) {
  std::vector<int> result;
  for (int rank = 0; rank < world; ++rank) result.push_back(rank / per_node * per_node);
  return result;
}

/// Ranks assigned to `nodes` nodes round-robin.
std::vector<int> dealt(int world, int nodes) {
  std::vector<int> result;
  for (int rank = 0; rank < world; ++rank) result.push_back(rank % nodes);
  return result;
}

TEST(Topology, TensorGroupsInsideNodesAreAccepted) {
  EXPECT_THAT(topology_warnings({{8, 1, 4, 2}}, blocks(64, 8)), IsEmpty());
  EXPECT_THAT(topology_warnings({{4, 1, 4, 1}}, blocks(16, 8)), IsEmpty());
  EXPECT_THAT(topology_warnings({{1, 1, 4, 1}}, dealt(4, 2)), IsEmpty());
}

TEST(Topology, TensorGroupsAcrossNodesGiveAWarning) {
  EXPECT_THAT(topology_warnings({{16, 1, 2, 2}}, blocks(64, 8)),
              ElementsAre("tensor groups span nodes: 4 of 4, the first of ranks 0 to 15; use "
                          "parallel.tensor = 8, the largest that does not"));
  // Nodes of 6: every second group of 4 spans two, groups of 3 are inside one.
  EXPECT_THAT(topology_warnings({{4, 1, 3, 1}}, blocks(12, 6)),
              ElementsAre("tensor groups span nodes: 1 of 3, the first of ranks 4 to 7; use "
                          "parallel.tensor = 3, the largest that does not"));
  EXPECT_THAT(topology_warnings({{2, 1, 2, 1}}, blocks(4, 3)),
              ElementsAre("tensor groups span nodes: 1 of 2, the first of ranks 2 to 3; use "
                          "parallel.tensor = 1, the largest that does not"));
}

TEST(Topology, PlacementIsNamedIfItIsTheReason) {
  EXPECT_THAT(topology_warnings({{2, 1, 8, 1}}, dealt(16, 4)),
              ElementsAre("tensor groups span nodes: 8 of 8, the first of ranks 0 to 1; place "
                          "consecutive ranks on a node (mpirun --map-by slot, srun "
                          "--distribution=block)"));
}

TEST(Topology, ShardGroupsFitIntoNodes) {
  EXPECT_EQ(shard_inside_node({{2, 1, 16, 1}}, blocks(32, 8)), 4);
  EXPECT_EQ(shard_inside_node({{2, 1, 16, 1}}, blocks(32, 32)), 16);
  EXPECT_EQ(shard_inside_node({{8, 1, 4, 1}}, blocks(32, 8)), 1);
  EXPECT_EQ(shard_inside_node({{1, 1, 12, 2}}, blocks(24, 6)), 6);
  EXPECT_EQ(shard_inside_node({{1, 1, 12, 2}}, blocks(24, 8)), 4);
  EXPECT_EQ(shard_inside_node({{1, 1, 8, 1}}, dealt(8, 2)), 1);
  EXPECT_EQ(shard_inside_node({{2, 1, 4, 1}}, dealt(8, 2)), 4);  // ranks two apart share a node
}

}  // namespace
}  // namespace trireme::comm
