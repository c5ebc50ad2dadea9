// Traffic that the communicators count, against what each algorithm must send.
#include <cmath>
#include <thread>

#include "trireme/comm/grid.hpp"

#include "groups.hpp"

namespace trireme::comm::testing {
namespace {

/// Traffic of one kind; all other kinds must be zero.
Traffic only(const TrafficByKind& traffic, OperationKind kind) {
  for (std::size_t each = 0; each < operation_kinds; ++each) {
    if (each == static_cast<std::size_t>(kind)) continue;
    EXPECT_EQ(traffic.kinds[each].bytes, 0) << each;
    EXPECT_EQ(traffic.kinds[each].operations, 0) << each;
  }
  return traffic[kind];
}

class Counting : public ::testing::Test {
 protected:
  /// Runs `enqueue(group, stream)` on every group after a reset, and checks kind and bytes sent by
  /// this rank, without agreement.
  template <class Enqueue, class Expected>
  void expect(OperationKind kind, const Enqueue& enqueue, const Expected& expected) {
    for (const TestGroup& group : groups_.all()) {
      group->reset_traffic();
      group->barrier();
      EXPECT_EQ(group->traffic().total().operations, 0);
      device::Stream stream;
      enqueue(*group, stream).wait();
      const Traffic traffic = only(group->traffic(), kind);
      const bool alone = group->size() == 1;
      EXPECT_EQ(traffic.bytes, alone ? 0 : expected(*group)) << group.name << " " << name_of(kind);
      EXPECT_EQ(traffic.operations, alone ? 0 : 1);
      EXPECT_EQ(traffic.seconds > 0, !alone);
      EXPECT_LT(traffic.seconds, 60);
    }
  }
  Groups groups_;
  // Divides by all group sizes; spans several pieces of a reduction.
  static constexpr std::int64_t count = 12 * 100'003;
  static constexpr std::int64_t bytes = count * 4;
};

TEST_F(Counting, AllReduceSendsTwiceTheOthersShare) {
  Elements data(DType::f32, count);
  expect(
      OperationKind::all_reduce,
      [&](Communicator& group, device::Stream& stream) {
        return group.all_reduce(data.tensor(), Reduction::sum, stream);
      },
      [&](Communicator& group) { return 2 * (group.size() - 1) * (bytes / group.size()); });
}

TEST_F(Counting, AllReduceWithARemainderDiffersByItsSlices) {
  Elements data(DType::bf16, 1001);
  for (const TestGroup& group : groups_.all()) {
    if (group->size() == 1) continue;
    group->reset_traffic();
    device::Stream stream;
    group->all_reduce(data.tensor(), Reduction::sum, stream).wait();
    const std::int64_t own = group->traffic()[OperationKind::all_reduce].bytes;
    // All but the own slice go out, and the own slice, of ⌊1001/n⌋ or one more, to all others.
    const int n = group->size();
    const auto sent = [&](std::int64_t slice) { return 2 * (1001 - slice) + 2 * slice * (n - 1); };
    EXPECT_TRUE(own == sent(1001 / n) || own == sent(1001 / n + 1)) << own;
    // Over the group exactly 2(n−1)·S.
    EXPECT_EQ(group->all_reduce(own, Reduction::sum), 2 * (n - 1) * std::int64_t{2002});
  }
}

TEST_F(Counting, ReduceScatterSendsTheOthersShare) {
  Elements input(DType::f32, count);
  Elements output(DType::f32, count);
  expect(
      OperationKind::reduce_scatter,
      [&](Communicator& group, device::Stream& stream) {
        return group.reduce_scatter(output.tensor(0, count / group.size()), input.tensor(),
                                    Reduction::sum, stream);
      },
      [&](Communicator& group) { return (group.size() - 1) * (bytes / group.size()); });
}

TEST_F(Counting, ReduceScatterOfUnequalCountsSendsAllButItsOwn) {
  Elements input(DType::f32, count);
  Elements output(DType::f32, count);
  const auto counts = [&](Communicator& group) {
    std::vector<std::int64_t> result(group.size(), 7);
    result.front() = 0;
    result.back() += count - 7 * (group.size() - 1);
    if (group.size() > 1) result.back() -= 7;
    return result;
  };
  expect(
      OperationKind::reduce_scatter,
      [&](Communicator& group, device::Stream& stream) {
        const auto each = counts(group);
        std::int64_t all = 0;
        for (const std::int64_t one : each) all += one;
        return group.reduce_scatter_v(output.tensor(0, each[group.rank()]), input.tensor(0, all),
                                      each, Reduction::sum, stream);
      },
      [&](Communicator& group) {
        const auto each = counts(group);
        std::int64_t others = 0;
        for (int r = 0; r < group.size(); ++r) others += r == group.rank() ? 0 : each[r];
        return others * 4;
      });
}

TEST_F(Counting, AllGatherSendsItsPartToAllOthers) {
  Elements output(DType::f32, count);
  expect(
      OperationKind::all_gather,
      [&](Communicator& group, device::Stream& stream) {
        const std::int64_t part = count / group.size();
        return group.all_gather(output.tensor(), output.tensor(part * group.rank(), part), stream);
      },
      [&](Communicator& group) { return (group.size() - 1) * (bytes / group.size()); });
}

// (n−1)·S in total, however the tree distributes it.
TEST_F(Counting, BroadcastReachesEveryOtherRankOnce) {
  Elements data(DType::f32, count);
  for (const TestGroup& group : groups_.all()) {
    group->reset_traffic();
    device::Stream stream;
    group->broadcast(data.tensor(), group->size() - 1, stream).wait();
    const Traffic own = only(group->traffic(), OperationKind::broadcast);
    EXPECT_EQ(own.bytes % bytes, 0);
    EXPECT_EQ(group->all_reduce(own.bytes, Reduction::sum), (group->size() - 1) * bytes);
  }
}

TEST_F(Counting, AllToAllSendsAllButItsOwnBlock) {
  Elements input(DType::f32, count);
  Elements output(DType::f32, count);
  expect(
      OperationKind::all_to_all,
      [&](Communicator& group, device::Stream& stream) {
        return group.all_to_all(output.tensor(), input.tensor(), stream);
      },
      [&](Communicator& group) { return (group.size() - 1) * (bytes / group.size()); });
}

TEST_F(Counting, ExchangeCountsMessagesToOthers) {
  Elements data(DType::f32, count);
  Elements arriving(DType::f32, count);
  Elements own(DType::f32, 1000);
  expect(
      OperationKind::exchange,
      [&](Communicator& group, device::Stream& stream) {
        const int n = group.size();
        const int rank = group.rank();
        // A ring, and a message to itself, which is not counted.
        return group.exchange({{data.tensor(), (rank + 1) % n, true},
                               {arriving.tensor(), (rank + n - 1) % n, false},
                               {data.tensor(0, 1000), rank, true},
                               {own.tensor(), rank, false}},
                              stream);
      },
      [&](Communicator&) { return bytes; });
}

TEST_F(Counting, AgreementIsNotCounted) {
  for (const TestGroup& group : groups_.all()) {
    group->reset_traffic();
    group->all_reduce(1.0, Reduction::sum);
    group->all_gather_bytes(std::vector<std::uint8_t>(100, 1));
    EXPECT_EQ(group->traffic().total().operations, 0);
    EXPECT_EQ(group->traffic().total().bytes, 0);
  }
}

TEST_F(Counting, SecondsIncludeWaitingForOthers) {
  for (const TestGroup& group : groups_.all()) {
    if (group->size() == 1) continue;
    group->barrier();
    group->reset_traffic();
    if (group->rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::int64_t value = 1;
    device::Stream stream;
    group->all_reduce(Tensor(&value, {1}), Reduction::sum, stream).wait();
    const double seconds = group->traffic()[OperationKind::all_reduce].seconds;
    if (group->rank() != 0) {
      EXPECT_GE(seconds, 0.05);
    }
    EXPECT_LT(seconds, 60);
  }
}

TEST(GridTraffic, IsReportedByGroup) {
  const Session session(nullptr, nullptr);
  device::MemoryLedger ledger;
  Grid grid(session, {{1, 1, session.size(), 1}}, ledger);
  std::vector<float> data(1200);
  device::Stream stream;
  const Tensor all(data.data(), {1200});
  grid.group(Axis::data).all_reduce(all, Reduction::sum, stream).wait();
  grid.shard_group().broadcast(all, 0, stream).wait();
  grid.world().barrier();
  std::int64_t found = 0;
  for (const auto& [name, traffic] : grid.traffic()) {
    const std::int64_t operations = traffic.total().operations;
    EXPECT_EQ(operations, session.size() > 1 && (name == "data" || name == "shard") ? 1 : 0)
        << name;
    found += name == "data" ? traffic[OperationKind::all_reduce].bytes : 0;
  }
  EXPECT_EQ(grid.traffic().size(), static_cast<std::size_t>(group_kinds) + 2);
  EXPECT_EQ(found, 2 * (session.size() - 1) * (4800 / session.size()));
  grid.reset_traffic();
  for (const auto& [name, traffic] : grid.traffic()) EXPECT_EQ(traffic.total().operations, 0);
}

}  // namespace
}  // namespace trireme::comm::testing
