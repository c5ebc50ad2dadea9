// A replica that one rank has damaged is found and named.
#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/parallel/replica.hpp"

#include "layouts.hpp"

namespace trireme::parallel::test {
namespace {

std::string complaint_of(LayoutRun& run) {
  try {
    check_replicas(run.replica, run.grid, 5);
  } catch (const AgreedError& error) {
    return error.what();
  }
  return {};
}

/// Changes one bit of the first (or last) element of `row` on the last rank; returns the error of
/// every rank.
std::string complaint_after_damage(const LayoutCase& layout, const std::string& row,
                                   bool llama = false, bool last = false) {
  LayoutRun run(testing_support::odd_model(llama), layout, stage_options(layout, {}),
                MPI_COMM_WORLD);
  run.replica.initialize();
  EXPECT_EQ(complaint_of(run), "") << layout.to_string();
  const params::Layout& held = run.replica.stage().layout();
  const int index = *run.model.table().find(row);
  if (run.session.rank() + 1 == run.session.size() && !held.blocks_of(index).empty()) {
    const auto& blocks = held.blocks_of(index);
    const auto filled = std::find_if(blocks.begin(), blocks.end(), [&](int b) {
      return held.blocks()[static_cast<std::size_t>(b)].elements() > 0;
    });
    const params::Block& block = held.blocks()[static_cast<std::size_t>(*filled)];
    const std::int64_t element = block.offset + (last ? block.elements() - 1 : 0);
    run.replica.state().parameters().as<float>()[element] += 1e-7F;
  }
  return complaint_of(run);
}

TEST(Placement, DamagedReplicasAreNamed) {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const auto expect = [&](const LayoutCase& layout, const std::string& row,
                          const std::string& axis) {
    if (layout.ranks() != size) return;
    const std::string complaint = complaint_after_damage(layout, row);
    EXPECT_NE(complaint.find("replicas of " + row), std::string::npos) << complaint;
    EXPECT_NE(complaint.find("step 5"), std::string::npos) << complaint;
    EXPECT_NE(complaint.find("on the " + axis), std::string::npos) << complaint;
  };
  expect({.data = 2}, "blocks.1.mlp.up.weight", "data");
  expect({.data = 2, .zero = 2}, "head.norm.weight", "data");
  expect({.tensor = 2}, "blocks.0.norm1.weight", "tensor");
  expect({.pipeline = 2}, "embedding.token.weight", "pipeline");
  expect({.tensor = 2, .data = 2}, "blocks.0.attention.out.bias", "data");
  expect({.data = 4, .zero = 1}, "blocks.0.norm2.bias", "data");
}

// A key/value head that two tensor ranks' queries need is on both; the value heads are last.
TEST(Placement, SharedKeyValueHeadsAreCompared) {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size < 2) return;
  const std::string complaint =
      complaint_after_damage({.tensor = size}, "blocks.0.attention.qkv.weight", true, true);
  EXPECT_NE(complaint.find("replicas of blocks.0.attention.qkv.weight rows ["), std::string::npos)
      << complaint;
  EXPECT_NE(complaint.find("on the tensor axis"), std::string::npos) << complaint;
  // Its queries have no replica.
  EXPECT_EQ(complaint_after_damage({.tensor = size}, "blocks.0.attention.qkv.weight", true), "");
}

// Split weights have no replica on the tensor axis.
TEST(Placement, SplitRowsAreNotCompared) {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != 2) return;
  EXPECT_EQ(complaint_after_damage({.tensor = 2}, "blocks.1.mlp.up.weight"), "");
}

}  // namespace
}  // namespace trireme::parallel::test
