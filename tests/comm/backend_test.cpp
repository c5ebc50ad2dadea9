#include "trireme/comm/backend.hpp"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/nccl.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const BackendFacts gpus{.device = "cuda:0 (NVIDIA H200)", .is_host = false, .nccl = true};

std::string refusal(const CommConfig& config, GroupKind kind, const BackendFacts& facts) {
  try {
    choose_backend(config, kind, facts);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Backend, AutoTakesNcclWhereverItCan) {
  BackendFacts facts = gpus;
  EXPECT_EQ(choose_backend({}, GroupKind::data, facts), Backend::nccl);
  facts.crowded = "ranks 0 and 1 share GPU-1";
  EXPECT_EQ(choose_backend({}, GroupKind::data, facts), Backend::mpi);
  facts = gpus;
  facts.nccl = false;
  EXPECT_EQ(choose_backend({}, GroupKind::data, facts), Backend::mpi);
}

TEST(Backend, AutoSharesMemoryInsideANode) {
  BackendFacts facts;
  using enum GroupKind;
  for (const GroupKind kind : {tensor, context, data, shard, replica, embedding}) {
    EXPECT_EQ(choose_backend({}, kind, facts), Backend::shared) << name_of(kind);
  }
  for (const GroupKind kind : {pipeline, world, stage, model}) {
    EXPECT_EQ(choose_backend({}, kind, facts), Backend::mpi) << name_of(kind);
  }
  facts.apart = "ranks 0 and 2 are on different nodes";
  EXPECT_EQ(choose_backend({}, data, facts), Backend::mpi);
  CommConfig config;
  config.data = "shared";
  EXPECT_THAT(refusal(config, data, facts),
              AllOf(StartsWith("comm.data = shared: "),
                    HasSubstr("of a data group ranks 0 and 2 are on different nodes; use auto")));
  facts.apart.clear();
  facts.no_room = "/dev/shm is full";
  EXPECT_EQ(choose_backend({}, data, facts), Backend::mpi);
  EXPECT_THAT(refusal(config, replica, facts), HasSubstr("/dev/shm is full; make room"));
  EXPECT_THAT(refusal(config, data, gpus), HasSubstr("the device is cuda:0"));
}

// Four ranks on two nodes: tensor groups lie inside, data groups reach across.
TEST(Backend, GroupsThatReachAcrossNodesSendMessages) {
  const GridShape shape{{2, 1, 2, 1}};
  const std::vector<int> nodes = {0, 0, 2, 2};
  EXPECT_EQ(scattered_ranks(shape, GroupKind::tensor, 2, nodes), "");
  EXPECT_EQ(scattered_ranks(shape, GroupKind::data, 2, nodes),
            "ranks 0 and 2 are on different nodes");
  const Backends backends = choose_host_backends({}, shape, 2, nodes);
  const auto of = [&](GroupKind kind) { return backends.at(static_cast<std::size_t>(kind)); };
  EXPECT_EQ(of(GroupKind::tensor), Backend::shared);
  EXPECT_EQ(of(GroupKind::data), Backend::mpi);
  EXPECT_EQ(of(GroupKind::shard), Backend::mpi);
  for (const GroupKind kind : {GroupKind::data, GroupKind::shard, GroupKind::tensor}) {
    EXPECT_EQ(choose_host_backends({}, shape, 2, {}).at(static_cast<std::size_t>(kind)),
              Backend::shared);
  }
}

TEST(Backend, EachAxisHasItsOwnGroups) {
  for (int axis = 0; axis < 4; ++axis) {
    CommConfig config;
    std::string* const values[] = {&config.tensor, &config.data, &config.pipeline, &config.world};
    for (std::string* value : values) *value = "nccl";
    *values[axis] = "mpi";
    const char* const keys[] = {"comm.tensor", "comm.data", "comm.pipeline", "comm.world"};
    const std::vector<GroupKind> own[] = {{GroupKind::tensor, GroupKind::context},
                                          {GroupKind::data, GroupKind::shard, GroupKind::replica},
                                          {GroupKind::pipeline, GroupKind::embedding},
                                          {GroupKind::world, GroupKind::stage, GroupKind::model}};
    for (int index = 0; index < group_kinds; ++index) {
      const auto kind = static_cast<GroupKind>(index);
      const bool is_own = std::find(own[axis].begin(), own[axis].end(), kind) != own[axis].end();
      EXPECT_EQ(choose_backend(config, kind, gpus), is_own ? Backend::mpi : Backend::nccl)
          << name_of(kind);
      EXPECT_EQ(backend_key(kind) == keys[axis], is_own) << name_of(kind);
    }
  }
}

TEST(Backend, AutoLeavesGroupsThatCarryNoTensorsToMpi) {
  using enum GroupKind;
  for (const GroupKind kind : {tensor, context, data, shard, replica, embedding}) {
    EXPECT_EQ(choose_backend({}, kind, gpus), Backend::nccl) << name_of(kind);
  }
  for (const GroupKind kind : {pipeline, world, stage, model}) {
    EXPECT_EQ(choose_backend({}, kind, gpus), Backend::mpi) << name_of(kind);
  }
}

TEST(Backend, WhatCannotBeIsRefusedInOneLine) {
  CommConfig config;
  config.data = "nccl";
  EXPECT_EQ(choose_backend(config, GroupKind::shard, gpus), Backend::nccl);
  EXPECT_THAT(refusal(config, GroupKind::shard, {}),
              AllOf(StartsWith("comm.data = nccl: "), HasSubstr("the device is cpu")));
  BackendFacts facts = gpus;
  facts.nccl = false;
  EXPECT_THAT(refusal(config, GroupKind::data, facts), HasSubstr("built without NCCL"));
  facts = gpus;
  facts.crowded = "ranks 4 and 5 share GPU-7";
  EXPECT_THAT(refusal(config, GroupKind::data, facts),
              HasSubstr("of a data group ranks 4 and 5 share GPU-7; start one rank per GPU"));
  EXPECT_EQ(choose_backend(config, GroupKind::tensor, facts), Backend::mpi);
}

TEST(Backend, RanksOfOneDeviceAreFound) {
  const std::vector<std::string> devices = {"a", "b", "a", "c", ""};
  const auto crowded = [&](std::vector<int> members) { return crowded_device(members, devices); };
  EXPECT_EQ(crowded({0, 1, 3}), "");
  EXPECT_EQ(crowded({0, 1, 2}), "ranks 0 and 2 share a");
  EXPECT_EQ(crowded({2, 4}), "rank 4 has a device without identity");
}

TEST(Direct, FollowsTheLibraryUnlessTold) {
  EXPECT_TRUE(choose_direct("auto", true));
  EXPECT_FALSE(choose_direct("auto", false));
  EXPECT_FALSE(choose_direct("auto", std::nullopt));
  EXPECT_FALSE(choose_direct("yes", true));
  EXPECT_TRUE(choose_direct("no", true));
  EXPECT_TRUE(choose_direct("no", std::nullopt));
  EXPECT_THROW(choose_direct("no", false), ConfigError);
}

TEST(Direct, IsDescribed) {
  EXPECT_THAT(describe_direct(true), StartsWith("given to MPI"));
  EXPECT_THAT(describe_direct(false), AllOf(StartsWith("staged"), HasSubstr("cannot read")));
  EXPECT_THAT(describe_direct(std::nullopt), HasSubstr("cannot be asked"));
}

TEST(NcclLibrary, IsThereOrSaysThatItIsNot) {
  if (nccl_built_in()) {
    EXPECT_FALSE(nccl_library().version().empty());
    return;
  }
  try {
    nccl_library();
    ADD_FAILURE() << "a library";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("built without NCCL"));
  }
}

}  // namespace
}  // namespace trireme::comm
