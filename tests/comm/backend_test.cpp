#include "trireme/comm/backend.hpp"

#include <algorithm>
#include <string>
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

// Eight ranks in which every kind of group has more than one member: tensor groups are {0, 1}, {2,
// 3}, …; data groups {0, 2}, {1, 3}, {4, 6}, {5, 7}; the first stage has ranks 0 to 3.
const GridShape shape{{2, 1, 2, 2}};

BackendFacts with_gpus() {
  BackendFacts facts{.device = "cuda:0 (NVIDIA H200)", .is_host = false, .nccl = true};
  for (int rank = 0; rank < shape.size(); ++rank) {
    facts.device_of.push_back(rank);
  }
  return facts;
}

Backend choice(const CommConfig& config, GroupKind kind, const BackendFacts& facts) {
  return choose_backends(config, shape, facts)[kind];
}

std::string refusal(const CommConfig& config, const BackendFacts& facts) {
  try {
    choose_backends(config, shape, facts);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

CommConfig data_by(const std::string& backend) {
  CommConfig config;
  config.data = backend;
  return config;
}

constexpr GroupKind tensor_kinds[] = {GroupKind::tensor, GroupKind::context, GroupKind::data,
                                      GroupKind::shard,  GroupKind::replica, GroupKind::embedding,
                                      GroupKind::kv};
constexpr GroupKind other_kinds[] = {GroupKind::pipeline, GroupKind::world, GroupKind::stage,
                                     GroupKind::model};

TEST(Backend, AutoTakesTheFastestWhereTensorsPass) {
  for (const bool gpus : {false, true}) {
    const Backends backends = choose_backends({}, shape, gpus ? with_gpus() : BackendFacts{});
    for (const GroupKind kind : tensor_kinds) {
      EXPECT_EQ(backends[kind], gpus ? Backend::nccl : Backend::shared) << name_of(kind);
    }
    for (const GroupKind kind : other_kinds) EXPECT_EQ(backends[kind], Backend::mpi);
  }
}

TEST(Backend, AutoUsesMpiWithoutNccl) {
  BackendFacts facts = with_gpus();
  facts.nccl = false;
  EXPECT_EQ(choice({}, GroupKind::data, facts), Backend::mpi);
}

TEST(Backend, RanksOfOneDeviceDoNotUseNccl) {
  BackendFacts facts = with_gpus();
  facts.device_of[7] = facts.device_of[6];  // one tensor group, two data groups
  EXPECT_EQ(choice({}, GroupKind::tensor, facts), Backend::mpi);
  EXPECT_EQ(choice({}, GroupKind::data, facts), Backend::nccl);
  facts.device_of[7] = facts.device_of[5];
  EXPECT_EQ(choice({}, GroupKind::tensor, facts), Backend::nccl);
  EXPECT_EQ(choice({}, GroupKind::data, facts), Backend::mpi);
  EXPECT_THAT(
      refusal(data_by("nccl"), facts),
      AllOf(StartsWith("comm.data = nccl: "),
            HasSubstr("of a data group ranks 5 and 7 share a device; start one rank per GPU")));
  facts.device_of[7] = -1;
  EXPECT_THAT(refusal(data_by("nccl"), facts),
              HasSubstr("of a data group rank 7 has a device without identity"));
}

TEST(Backend, GroupsThatSpanNodesSendMessages) {
  // Tensor groups are inside nodes; data groups and their shard groups span nodes.
  const BackendFacts facts{.node_of = {0, 0, 2, 2, 4, 4, 6, 6}};
  EXPECT_EQ(choice({}, GroupKind::tensor, facts), Backend::shared);
  EXPECT_EQ(choice({}, GroupKind::data, facts), Backend::mpi);
  EXPECT_EQ(choice({}, GroupKind::shard, facts), Backend::mpi);
  EXPECT_EQ(choice({}, GroupKind::replica, facts), Backend::shared);  // of one rank each
  EXPECT_THAT(refusal(data_by("shared"), facts),
              AllOf(StartsWith("comm.data = shared: "),
                    HasSubstr("of a data group ranks 0 and 2 are on different nodes; use auto")));
}

TEST(Backend, WithoutSpaceForSharedMemoryMessagesAreSent) {
  const BackendFacts facts{.no_space = "/dev/shm is full"};
  EXPECT_EQ(choice({}, GroupKind::data, facts), Backend::mpi);
  EXPECT_THAT(refusal(data_by("shared"), facts), HasSubstr("/dev/shm is full; free space"));
}

TEST(Backend, EachAxisHasItsOwnGroups) {
  for (int axis = 0; axis < 4; ++axis) {
    CommConfig config;
    std::string* const values[] = {&config.tensor, &config.data, &config.pipeline, &config.world};
    for (std::string* value : values) *value = "nccl";
    *values[axis] = "mpi";
    const char* const keys[] = {"comm.tensor", "comm.data", "comm.pipeline", "comm.world"};
    const std::vector<GroupKind> own[] = {{GroupKind::tensor, GroupKind::context, GroupKind::kv},
                                          {GroupKind::data, GroupKind::shard, GroupKind::replica},
                                          {GroupKind::pipeline, GroupKind::embedding},
                                          {GroupKind::world, GroupKind::stage, GroupKind::model}};
    const Backends backends = choose_backends(config, shape, with_gpus());
    for (const GroupKind kind : all_group_kinds) {
      const bool is_own = std::find(own[axis].begin(), own[axis].end(), kind) != own[axis].end();
      EXPECT_EQ(backends[kind], is_own ? Backend::mpi : Backend::nccl) << name_of(kind);
      EXPECT_EQ(backend_key(kind) == keys[axis], is_own) << name_of(kind);
    }
  }
}

TEST(Backend, UnusableBackendsAreRefusedInOneLine) {
  EXPECT_EQ(choice(data_by("nccl"), GroupKind::shard, with_gpus()), Backend::nccl);
  EXPECT_THAT(refusal(data_by("nccl"), {}),
              AllOf(StartsWith("comm.data = nccl: "), HasSubstr("the device is cpu")));
  EXPECT_THAT(refusal(data_by("shared"), with_gpus()), HasSubstr("the device is cuda:0"));
  BackendFacts facts = with_gpus();
  facts.nccl = false;
  EXPECT_THAT(refusal(data_by("nccl"), facts), HasSubstr("built without NCCL"));
  EXPECT_EQ(refusal(data_by("gloo"), {}),
            "comm.data = gloo: is no backend; use auto, nccl, shared or mpi");
}

TEST(Direct, FollowsTheLibraryUnlessConfigured) {
  EXPECT_TRUE(choose_direct("auto", true));
  EXPECT_FALSE(choose_direct("auto", false));
  EXPECT_FALSE(choose_direct("auto", std::nullopt));
  EXPECT_FALSE(choose_direct("yes", true));
  EXPECT_TRUE(choose_direct("no", true));
  EXPECT_TRUE(choose_direct("no", std::nullopt));
  EXPECT_THROW(choose_direct("no", false), ConfigError);
  EXPECT_THROW(choose_direct("perhaps", true), ConfigError);
}

TEST(Direct, IsDescribed) {
  EXPECT_THAT(describe_direct(true), StartsWith("given to MPI"));
  EXPECT_THAT(describe_direct(false), AllOf(StartsWith("staged"), HasSubstr("cannot read")));
  EXPECT_THAT(describe_direct(std::nullopt), HasSubstr("cannot be asked"));
}

TEST(NcclLibrary, LoadsOrReportsThatItIsMissing) {
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
