// The groups of a grid: their members and their separate traffic.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/agree.hpp"
#include "trireme/comm/grid.hpp"
#include "trireme/comm/progress.hpp"

#include "groups.hpp"
#include "support/nccl_double.hpp"

namespace trireme::comm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing_support::SimulatedDevice;

/// Layouts of this world, with every axis split somewhere.
std::vector<GridShape> layouts(int world) {
  if (world == 4) {
    return {{{1, 1, 4, 1}},       {{1, 1, 4, 1}, 2}, {{2, 1, 1, 2}},
            {{2, 1, 2, 1}, 1},    {{1, 2, 2, 1}},    {{1, 1, 1, 4}},
            {{4, 1, 1, 1}, 0, 2}, {{1, 1, 2, 2}, 2}, {{4, 1, 1, 1}, 0, 1}};
  }
  if (world == 8) return {{{2, 1, 2, 2}, 1}, {{1, 1, 8, 1}, 2}, {{4, 1, 2, 1}, 0, 2}};
  return {{{1, 1, world, 1}}, {{1, 1, world, 1}, 1}, {{1, 1, 1, world}}, {{world, 1, 1, 1}}};
}

/// World ranks of a group in its order, gathered through it.
std::vector<int> asked(Communicator& group, int world_rank) {
  std::vector<std::int64_t> ranks(group.size(), -1);
  const Tensor all(ranks.data(), {group.size()});
  std::int64_t own = world_rank;
  device::Stream stream;
  group.all_gather(all, Tensor(&own, {1}), stream).wait();
  EXPECT_EQ(ranks[group.rank()], world_rank);
  return {ranks.begin(), ranks.end()};
}

TEST(Session, LetsTcpSendPiecesAtOnce) {
  const Session session(nullptr, nullptr);
  for (const char* limit : {"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_rndv_eager_limit"}) {
    const char* const value = std::getenv(limit);
    ASSERT_NE(value, nullptr);
    EXPECT_GT(std::stol(value), 1 << 20);
  }
}

TEST(Grid, GroupsHoldTheirMembers) {
  const Session session(nullptr, nullptr);
  for (const GridShape& shape : layouts(session.size())) {
    device::MemoryLedger ledger;
    Grid grid(session, shape, ledger);
    EXPECT_EQ(ledger.held(device::Use::communication),
              static_cast<std::int64_t>(grid_bytes(shape, session.rank(), grid.backends())));
    const auto here = shape.coordinates(session.rank());
    for (const GroupKind kind : all_group_kinds) {
      EXPECT_EQ(asked(grid.group(kind), session.rank()), members(shape, kind, session.rank()))
          << shape.to_string() << ", " << name_of(kind);
    }
    for (int axis = 0; axis < axis_count; ++axis) {
      EXPECT_EQ(grid.coordinate(static_cast<Axis>(axis)), here[axis]);
      if (static_cast<Axis>(axis) == Axis::data) continue;  // along the context axis too
      EXPECT_EQ(grid.group(static_cast<Axis>(axis)).size(), shape.degree[axis]);
      EXPECT_EQ(grid.group(static_cast<Axis>(axis)).rank(), here[axis]);
    }
    EXPECT_EQ(grid.group(Axis::data).size(), shape.copies());
    for (const Direction direction : {Direction::activations, Direction::gradients}) {
      EXPECT_EQ(asked(grid.pipeline_channel(direction), session.rank()),
                members(shape, GroupKind::pipeline, session.rank()));
    }
    EXPECT_EQ(&grid.world(), &grid.group(GroupKind::world));
    EXPECT_EQ(&grid.model_group(), &grid.group(GroupKind::model));
    EXPECT_EQ(&grid.shard_group(), &grid.group(GroupKind::shard));
    EXPECT_EQ(&grid.replica_group(), &grid.group(GroupKind::replica));
    EXPECT_EQ(&grid.embedding_group(), &grid.group(GroupKind::embedding));
    const std::string cut = shape.of(Axis::context) > 1 ? fmt::format(" context {},", here[1]) : "";
    EXPECT_THAT(
        grid.to_string(),
        StartsWith(fmt::format("rank {} of {}: tensor {},{} pipeline {}, data {} on ",
                               session.rank(), session.size(), here[0], cut, here[3], here[2])));
    // The tests run on one node.
    EXPECT_EQ(session.nodes(), std::vector<int>(session.size(), 0));
    EXPECT_TRUE(grid.warnings().empty());
  }
}

// All groups of one grid reduce at once, each on its own stream; those of the same ranks share an
// MPI communicator. Messages must not mix, whatever the starting order of ranks.
TEST(Grid, GroupsDoNotMixMessages) {
  const Session session(nullptr, nullptr);
  for (const GridShape& shape : layouts(session.size())) {
    device::MemoryLedger ledger;
    Grid grid(session, shape, ledger);
    std::vector<Communicator*> groups;
    for (const GroupKind kind : all_group_kinds) groups.push_back(&grid.group(kind));
    groups.push_back(&grid.pipeline_channel(Direction::activations));
    groups.push_back(&grid.pipeline_channel(Direction::gradients));
    const std::size_t count = groups.size();
    for (int round = 0; round < 3; ++round) {
      std::vector<device::Stream> streams(count);
      std::vector<device::Stream*> served;
      for (device::Stream& stream : streams) served.push_back(&stream);
      Progress progress(served);
      std::vector<std::vector<float>> values(count);
      for (std::size_t i = 0; i < count; ++i) {
        values[i].assign(10'000, static_cast<float>(i + 1));
      }
      for (std::size_t step = 0; step < count; ++step) {
        const std::size_t i = (step + static_cast<std::size_t>(session.rank()) * 5) % count;
        groups[i]->all_reduce(Tensor(values[i].data(), {10'000}), Reduction::sum, streams[i]);
        // The conveniences of one group during its stream's traffic, all ranks in the same order.
        EXPECT_EQ(groups[step]->all_reduce(static_cast<std::int64_t>(step), Reduction::sum),
                  static_cast<std::int64_t>(step) * groups[step]->size());
      }
      progress.wake();
      for (device::Stream& stream : streams) stream.synchronize();
      for (std::size_t i = 0; i < count; ++i) {
        const auto expected =
            static_cast<float>((i + 1) * static_cast<std::size_t>(groups[i]->size()));
        EXPECT_EQ(values[i], std::vector<float>(10'000, expected)) << i;
      }
    }
  }
}

// Neighboring stages pass messages both ways at once, each direction on its own channel.
TEST(Grid, PipelineChannelsAreSeparate) {
  const Session session(nullptr, nullptr);
  device::MemoryLedger ledger;
  Grid grid(session, {{1, 1, 1, session.size()}}, ledger);
  Communicator& forward = grid.pipeline_channel(Direction::activations);
  Communicator& backward = grid.pipeline_channel(Direction::gradients);
  const int rank = session.rank();
  const int last = session.size() - 1;
  std::int64_t down = 100 + rank, from_above = -1, up = 200 + rank, from_below = -1;
  std::vector<Communicator::Message> ahead;
  std::vector<Communicator::Message> behind;
  if (rank < last) {
    ahead.push_back({Tensor(&down, {1}), rank + 1, true});
    behind.push_back({Tensor(&from_below, {1}), rank + 1, false});
  }
  if (rank > 0) {
    ahead.push_back({Tensor(&from_above, {1}), rank - 1, false});
    behind.push_back({Tensor(&up, {1}), rank - 1, true});
  }
  device::Stream first;
  device::Stream second;
  const auto events = {backward.exchange(behind, second), forward.exchange(ahead, first)};
  for (const device::Event& event : events) event.wait();
  EXPECT_EQ(from_above, rank == 0 ? -1 : 100 + rank - 1);
  EXPECT_EQ(from_below, rank == last ? -1 : 200 + rank + 1);
}

// Without space for a window, auto falls back to messages with a warning; an explicit request is
// refused.
TEST(GridBackends, WithoutSpaceForAWindowMessagesAreSent) {
  const Session session(nullptr, nullptr);
  const GridShape shape{{1, 1, session.size(), 1}};
  device::MemoryLedger ledger;
  GridOptions options{.shared_space = 1000};
  const bool alone = session.size() == 1;
  {
    Grid grid(session, shape, ledger, options);
    EXPECT_EQ(grid.backend(GroupKind::data), alone ? Backend::shared : Backend::mpi);
    EXPECT_EQ(ledger.held(device::Use::communication),
              static_cast<std::int64_t>(grid_bytes(shape, session.rank())));
    ASSERT_EQ(grid.warnings().size(), alone ? 0U : 1U);
    if (!alone) {
      EXPECT_THAT(grid.warnings().front(),
                  AllOf(StartsWith("/dev/shm has 0.0 MiB free, "), HasSubstr("send messages")));
    }
    std::int64_t value = session.rank();
    device::Stream stream;
    grid.group(Axis::data).all_reduce(Tensor(&value, {1}), Reduction::sum, stream).wait();
    EXPECT_EQ(value, session.size() * (session.size() - 1) / 2);
  }
  options.comm.data = "shared";
  if (alone) return;
  try {
    const Grid grid(session, shape, ledger, options);
    ADD_FAILURE() << "not refused";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(StartsWith("comm.data = shared: /dev/shm has 0.0 MiB free"),
                                    HasSubstr("use auto or mpi")));
  }
  options.comm.data = "mpi";  // and tensor, shard … as they can
  const Grid grid(session, shape, ledger, {.comm = options.comm});
  EXPECT_EQ(grid.backend(GroupKind::data), Backend::mpi);
  EXPECT_EQ(grid.backend(GroupKind::shard), Backend::mpi);
  EXPECT_EQ(grid.backend(GroupKind::tensor), Backend::shared);
  EXPECT_TRUE(grid.warnings().empty());
}

/// An NCCL that is available but must not be used.
GridOptions with_nccl(testing_support::NcclDouble& nccl, const CommConfig& config) {
  return {.comm = config, .reproducible = true, .nccl = {}, .nccl_api = &nccl, .address = {}};
}

TEST(GridBackends, AHostSharesMemoryAndRefusesNccl) {
  const Session session(nullptr, nullptr);
  device::MemoryLedger ledger;
  CommConfig config;
  config.staging = "no";  // ignored there
  const Grid grid(session, {{1, 1, session.size(), 1}}, ledger, {.comm = config});
  using enum GroupKind;
  for (const GroupKind kind : {tensor, context, data, shard, replica, embedding, kv}) {
    EXPECT_EQ(grid.backend(kind), Backend::shared) << name_of(kind);
  }
  for (const GroupKind kind : {pipeline, world, stage, model}) {
    EXPECT_EQ(grid.backend(kind), Backend::mpi) << name_of(kind);
  }
  config.pipeline = "nccl";
  EXPECT_THROW(Grid(session, {{1, 1, session.size(), 1}}, ledger, {.comm = config}), ConfigError);
}

// Groups by NCCL where every rank has its own device, as configured per axis.
TEST(GridBackends, GroupsUseNcclWhereTheyMay) {
  const Session session(nullptr, nullptr);
  SimulatedDevice device(3, fmt::format("device-{}", session.rank()));
  device::MemoryLedger ledger(device);
  testing_support::NcclDouble nccl(device);
  CommConfig config;
  config.world = "mpi";
  {
    Grid grid(session, {{1, 1, session.size(), 1}}, ledger, with_nccl(nccl, config));
    EXPECT_EQ(grid.backend(GroupKind::shard), Backend::nccl);
    EXPECT_EQ(grid.backend(GroupKind::stage), Backend::mpi);
    EXPECT_EQ(nccl.alive(), session.size() > 1 ? 3 : 0);  // data and shard, and their parent
    const device::Buffer buffer(ledger, device::Use::workspace, 8);
    const Tensor number = buffer.view(DType::i64, {1});
    device::Stream stream(device);
    for (Communicator* group : {&grid.group(Axis::data), &grid.group(GroupKind::stage)}) {
      std::int64_t value = session.rank() + 1;
      device::write(device, number, &value);
      group->all_reduce(number, Reduction::sum, stream).wait();
      device::read(device, &value, number);
      EXPECT_EQ(value, session.size() * (session.size() + 1) / 2);
    }
    EXPECT_EQ(nccl.calls("group_end") > 0, session.size() > 1);
  }
  EXPECT_EQ(nccl.alive(), 0);
  // Of a pipeline, the stages with tied embeddings; the world group on request.
  const bool at_an_end = session.rank() == 0 || session.rank() == session.size() - 1;
  config = {};
  for (const int more : {0, 1}) {
    if (more == 1) config.pipeline = "nccl";
    const Grid grid(session, {{1, 1, 1, session.size()}}, ledger, with_nccl(nccl, config));
    // With both kinds, which are of one key, also their parent.
    EXPECT_EQ(nccl.alive(), session.size() == 1 ? 0 : (at_an_end ? 1 : 0) + 2 * more);
  }
}

/// NCCL's groups of each key of the configuration.
std::map<std::string, std::vector<std::set<std::vector<int>>>> nccl_groups(const Grid& grid) {
  std::map<std::string, std::vector<std::set<std::vector<int>>>> result;
  for (const GroupKind kind : all_group_kinds) {
    if (grid.backend(kind) != Backend::nccl || group_size(grid.shape(), kind, 0) == 1) continue;
    auto& groups = result[backend_key(kind)].emplace_back();
    for (int rank = 0; rank < grid.shape().size(); ++rank) {
      if (auto group = members(grid.shape(), kind, rank); group.size() > 1) groups.insert(group);
    }
  }
  return result;
}

/// The sums of all groups that use NCCL, each on a stream of its own, called in one order.
void expect_sums(Grid& grid, const Session& session, device::MemoryLedger& ledger) {
  device::Device& device = ledger.device();
  const device::Buffer buffer(ledger, device::Use::workspace, 8 * group_kinds);
  const Tensor numbers = buffer.view(DType::i64, {group_kinds});
  const std::vector<std::int64_t> begin(group_kinds, session.rank() + 1);
  device::write(device, numbers, begin.data());
  std::deque<device::Stream> streams;
  std::vector<device::Event> sums_done;
  for (int i = 0; i < group_kinds; ++i) streams.emplace_back(device);
  for (const GroupKind kind : all_group_kinds) {
    const int i = static_cast<int>(kind);
    sums_done.push_back(
        grid.group(kind).all_reduce(numbers.slice(0, i, i + 1), Reduction::sum, streams[i]));
  }
  for (const device::Event& event : sums_done) event.wait();
  std::vector<std::int64_t> sums(group_kinds);
  device::read(device, sums.data(), numbers);
  for (const GroupKind kind : all_group_kinds) {
    std::int64_t expected = 0;
    for (const int rank : members(grid.shape(), kind, session.rank())) expected += rank + 1;
    EXPECT_EQ(sums[static_cast<std::size_t>(kind)], expected)
        << grid.shape().to_string() << ", " << name_of(kind);
  }
}

/// Members and ranks of all groups that use NCCL, as NCCL has them.
void expect_members(Grid& grid, const Session& session, device::MemoryLedger& ledger) {
  device::Device& device = ledger.device();
  for (const GroupKind kind : all_group_kinds) {
    Communicator& group = grid.group(kind);
    const device::Buffer buffer(ledger, device::Use::workspace, 8 * (group.size() + 1));
    const Tensor all = buffer.view(DType::i64, {group.size()});
    const Tensor own = buffer.view(DType::i64, {1}, 8 * group.size());
    const std::int64_t rank = session.rank();
    device::write(device, own, &rank);
    device::Stream stream(device);
    group.all_gather(all, own, stream).wait();
    std::vector<std::int64_t> ranks(group.size());
    device::read(device, ranks.data(), all);
    EXPECT_EQ(std::vector<int>(ranks.begin(), ranks.end()), members(grid.shape(), kind, rank))
        << grid.shape().to_string() << ", " << name_of(kind);
  }
}

class NcclSplit : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ByLibrary, NcclSplit, ::testing::Bool(), [](const auto& splits) {
  return splits.param ? "ThatSplits" : "ThatDoesNot";
});

// One unique id and one bootstrap for all groups of a key, where the library can.
TEST_P(NcclSplit, GroupsHoldTheirMembersAndEnd) {
  const Session session(nullptr, nullptr);
  for (const GridShape& shape : layouts(session.size())) {
    SimulatedDevice device(3, fmt::format("device-{}", session.rank()));
    device::MemoryLedger ledger(device);
    testing_support::NcclDouble nccl(device, true, GetParam());
    {
      CommConfig config;
      config.world = "nccl";
      Grid grid(session, shape, ledger, with_nccl(nccl, config));
      std::int64_t ids = 0, alive = 0;
      for (const auto& [key, kinds] : nccl_groups(grid)) {
        const bool splits = GetParam() && kinds.size() > 1;
        if (splits) ++ids, ++alive;  // the parent's
        for (const auto& groups : kinds) {
          if (!splits) ids += static_cast<std::int64_t>(groups.size());
          alive += std::count_if(groups.begin(), groups.end(), [&](const auto& group) {
            return std::count(group.begin(), group.end(), session.rank()) > 0;
          });
        }
      }
      EXPECT_EQ(grid.world().all_reduce(std::int64_t{nccl.calls("get_unique_id")}, Reduction::sum),
                ids)
          << shape.to_string();
      EXPECT_EQ(nccl.alive(), alive);
      expect_members(grid, session, ledger);
      expect_sums(grid, session, ledger);
      device.synchronize();
    }
    EXPECT_EQ(nccl.alive(), 0);
    EXPECT_EQ(nccl.calls("parent ended first"), 0);
    EXPECT_EQ(nccl.calls("abort"), 0);
  }
}

// What one GPU can show: groups of one rank are split too.
TEST_P(NcclSplit, GroupsOfOneRank) {
  const Session session(nullptr, nullptr);
  SimulatedDevice device(3, fmt::format("device-{}", session.rank()));
  device::MemoryLedger ledger(device);
  testing_support::NcclDouble nccl(device, true, GetParam());
  GridOptions options = with_nccl(nccl, {});
  options.nccl.alone = true;
  {
    Grid grid(session, {{1, 1, session.size(), 1}}, ledger, options);
    // Tensor, context and kv, data, shard and replica; embedding has a key of its own.
    EXPECT_EQ(nccl.alive(), 7 + (GetParam() ? 2 : 0));
    EXPECT_EQ(nccl.calls("split"), GetParam() ? 6 : 0);
    expect_members(grid, session, ledger);
    expect_sums(grid, session, ledger);
  }
  EXPECT_EQ(nccl.alive(), 0);
  EXPECT_EQ(nccl.calls("parent ended first"), 0);
}

TEST_P(NcclSplit, AnAbortEndsGroupsBeforeTheirParents) {
  const Session session(nullptr, nullptr);
  for (const GridShape& shape : layouts(session.size())) {
    SimulatedDevice device(3, fmt::format("device-{}", session.rank()));
    device::MemoryLedger ledger(device);
    testing_support::NcclDouble nccl(device, true, GetParam());
    Grid grid(session, shape, ledger, with_nccl(nccl, {}));
    const device::Buffer buffer(ledger, device::Use::workspace, 8);
    device::Stream stream(device);
    for (const GroupKind kind : {GroupKind::data, GroupKind::tensor}) {
      Communicator& group = grid.group(kind);
      if (grid.backend(kind) != Backend::nccl || group.size() == 1) continue;
      const int next = (group.rank() + 1) % group.size();  // which never sends
      group.exchange({{buffer.view(DType::u8, {8}), next, false}}, stream);
      while (!stream.idle()) stream.poll();
    }
    grid.abandon(std::make_exception_ptr(Error("enough")));
    EXPECT_EQ(nccl.alive(), 0);
    EXPECT_EQ(nccl.calls("parent ended first"), 0);
    EXPECT_EQ(nccl.calls("abort that hangs"), 0);
    EXPECT_EQ(grid.world().all_reduce(std::int64_t{1}, Reduction::sum), session.size());
  }
}

// Data groups whose ranks have GPUs of their own, in a world where others share them.
TEST(GridBackends, RanksThatShareAGpuAreNotSplit) {
  const Session session(nullptr, nullptr);
  const int size = session.size();
  if (size < 4) return;
  const int tensor = 2;  // neighbors, which have one device
  SimulatedDevice device(3, fmt::format("device-{}", session.rank() / tensor));
  device::MemoryLedger ledger(device);
  testing_support::NcclDouble nccl(device, true);
  Grid grid(session, {{tensor, 1, size / tensor, 1}, 1}, ledger, with_nccl(nccl, {}));
  EXPECT_EQ(grid.backend(GroupKind::data), Backend::nccl);
  EXPECT_EQ(grid.backend(GroupKind::tensor), Backend::mpi);
  EXPECT_EQ(nccl.calls("split"), 0);
  expect_members(grid, session, ledger);
}

// Neighbors that both receive first, as in interleaved schedules: by MPI, and by NCCL once they are
// connected, whether or not NCCL orders launches.
class StageMessages : public ::testing::TestWithParam<std::tuple<bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, StageMessages,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& it) {
                           return std::string(std::get<0>(it.param) ? "Connected" : "ByMpi") +
                                  (std::get<1>(it.param) ? "Ordered" : "");
                         });
TEST_P(StageMessages, AreSentWhileTheStageWaits) {
  const auto [connected, ordered] = GetParam();
  const Session session(nullptr, nullptr);
  const int size = session.size();
  SimulatedDevice device(3, fmt::format("device-{}", session.rank()));
  device::MemoryLedger ledger(device);
  testing_support::NcclDouble nccl(device, ordered);
  CommConfig config;
  config.pipeline = "nccl";
  Grid grid(session, {{1, 1, 1, size}}, ledger, with_nccl(nccl, config));
  if (size == 1) return;
  const int own = session.rank(), next = (own + 1) % size;
  if (connected) {
    const StageLink in{Direction::activations, (own + size - 1) % size, own};
    grid.connect_stages({{Direction::activations, own, next}, in, in});
    grid.connect_stages({in});  // known
  }
  Communicator& channel = grid.pipeline_channel(Direction::activations);
  const device::Buffer buffer(ledger, device::Use::workspace, 16);
  const Tensor numbers = buffer.view(DType::i64, {2});
  const std::int64_t begin[] = {-1, session.rank()};
  device::write(device, numbers, begin);
  device::Stream receives(device), sends(device);
  const int previous = (session.rank() + size - 1) % size;
  const device::Event arrival =
      channel.exchange({{numbers.slice(0, 0, 1), previous, false}}, receives);
  channel.exchange({{numbers.slice(0, 1, 2), (session.rank() + 1) % size, true}}, sends).wait();
  EXPECT_EQ(nccl.calls("receive"), connected ? 2 : 0);  // one of each when connected
  arrival.wait();
  std::int64_t end[2] = {};
  device::read(device, end, numbers);
  EXPECT_EQ(end[0], previous);
  for (const auto& [name, traffic] : grid.traffic()) {
    EXPECT_EQ(traffic.total().bytes, name == "activations" ? 8 : 0) << name;
  }
}

// On an error, pending operations and the streams' ends wait for no other rank.
TEST(GridBackends, AnErrorAbandonsPendingOperations) {
  const Session session(nullptr, nullptr);
  const int size = session.size();
  SimulatedDevice device(3, fmt::format("device-{}", session.rank()));
  device::MemoryLedger ledger(device);
  testing_support::NcclDouble nccl(device);
  {
    Grid grid(session, {{1, 1, size, 1}}, ledger, with_nccl(nccl, {}));
    EXPECT_EQ(or_abandon(grid, [] { return 7; }), 7);
    device.check();
    const device::Buffer buffer(ledger, device::Use::workspace, 16);
    device::Stream stream(device);
    const auto fails = [&] {
      if (size > 1) {  // never sent
        const Tensor all = buffer.view(DType::u8, {16});
        grid.group(Axis::data).exchange({{all, (session.rank() + 1) % size, false}}, stream).wait();
      }
      throw Error("the loader's own");
    };
    EXPECT_THROW(or_abandon(grid, fails), Error);
    EXPECT_EQ(nccl.alive(), 0);
    EXPECT_THROW(size > 1 ? device.check() : fails(), Error);
    EXPECT_EQ(grid.world().all_reduce(std::int64_t{1}, Reduction::sum),
              size);  // agreement still works
  }
  EXPECT_EQ(nccl.calls("finalize"), 0);
}

TEST(GridBackends, RanksOfOneDeviceUseMpiAndRefuseNccl) {
  const Session session(nullptr, nullptr);
  if (session.size() == 1) return;
  // The last two ranks.
  SimulatedDevice device(
      3, fmt::format("device-{}", std::max(1, session.size() - 1 - session.rank())));
  device::MemoryLedger ledger(device);
  testing_support::NcclDouble nccl(device);
  CommConfig config;
  const GridShape shape{{1, 1, 1, session.size()}};
  {
    const Grid grid(session, shape, ledger, with_nccl(nccl, config));
    EXPECT_EQ(grid.backend(GroupKind::pipeline), Backend::mpi);
  }
  config.pipeline = "nccl";
  try {
    const Grid grid(session, shape, ledger, with_nccl(nccl, config));
    ADD_FAILURE() << "not refused";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                AllOf(StartsWith("comm.pipeline = nccl: "),
                      HasSubstr(fmt::format("ranks {} and {} share a device", session.size() - 2,
                                            session.size() - 1))));
  }
}

/// Warnings about how messages of a device pass.
int staging_warnings(const Grid& grid) {
  const std::vector<std::string> all = grid.warnings();
  return static_cast<int>(std::count_if(all.begin(), all.end(), [](const std::string& line) {
    return line.starts_with("comm.staging = auto: ");
  }));
}

/// A device whose memory the MPI library claims to read. Where `lost`, that of the last rank reads
/// as something else.
struct DirectMessages {
  explicit DirectMessages(bool lost) : device(3), ledger(device) {
    const bool last = session.rank() == session.size() - 1;
    options.mpi_reads_device = [] { return true; };
    options.address = [this, lost = lost && last](void* memory) {
      ++asked;
      void* const real = device.real(static_cast<std::byte*>(memory));
      return lost ? static_cast<void*>(elsewhere.data()) : real;
    };
  }
  Grid make() { return {session, GridShape{{1, session.size(), 1, 1}}, ledger, options}; }

  Session session{MPI_COMM_WORLD};
  SimulatedDevice device;
  device::MemoryLedger ledger;
  /// How often MPI's address of the memory is asked for while the ranks' numbers are added.
  int asked_in_sum(Grid& grid) {
    const device::Buffer data(ledger, device::Use::workspace, 4);
    const Tensor number = data.view(DType::f32, {1});
    device::Stream stream(device);
    const float own = 1;
    device::write(device, number, &own);
    asked = 0;
    grid.world().all_reduce(number, Reduction::sum, stream).wait();
    float sum = 0;
    device::read(device, &sum, number);
    EXPECT_EQ(sum, static_cast<float>(session.size()));
    return asked;
  }
  std::vector<std::byte> elsewhere = std::vector<std::byte>(std::size_t{1} << 20);
  GridOptions options;
  int asked = 0;
};

TEST(Direct, MessagesThatArriveAreNotStaged) {
  DirectMessages direct(false);
  EXPECT_TRUE(messages_arrive(direct.device, {.direct = true, .address = direct.options.address},
                              MPI_COMM_WORLD));
  Grid grid = direct.make();
  EXPECT_EQ(staging_warnings(grid), 0);
  EXPECT_EQ(direct.asked_in_sum(grid) > 0, direct.session.size() > 1);
  // This machine's libraries have no GPU support, or report so.
  EXPECT_FALSE(mpi_reads_cuda().value_or(false));
}

TEST(Direct, MessagesThatDoNotArriveAreStagedOrAnError) {
  DirectMessages direct(true);
  {
    Grid grid = direct.make();
    EXPECT_EQ(staging_warnings(grid), 1);
    EXPECT_EQ(direct.asked_in_sum(grid), 0);
  }
  direct.options.comm.staging = "no";
  try {
    direct.make();
    ADD_FAILURE() << "not refused";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(StartsWith("comm.staging = no: "), HasSubstr("to a neighbor")));
  }
}

TEST(Environment, AMixtureIsRefusedOnAllRanks) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    const auto require = [&](const std::string& value) {
      require_alike(*group, "instruction set", value, "use nodes of one kind of processor");
    };
    EXPECT_NO_THROW(require("AVX-512"));
    if (group->size() == 1) continue;
    const int last = group->size() - 1;
    try {
      require(group->rank() == last ? "AVX2" : "AVX-512");
      ADD_FAILURE() << "not refused";
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.what(),
                fmt::format("environment: rank {} of {} has instruction set AVX2, rank 0 has "
                            "AVX-512: all ranks must compute alike; use nodes of one kind of "
                            "processor",
                            last, group->size()));
    }
    EXPECT_NO_THROW(require("AVX-512"));
  }
}

}  // namespace
}  // namespace trireme::comm::testing
