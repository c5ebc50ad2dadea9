// Order, overlap, the blocking conveniences and the session.
#include <chrono>
#include <cmath>
#include <thread>

#include "trireme/comm/progress.hpp"

#include "groups.hpp"

namespace trireme::comm::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Each operation reads the previous result; only the last is waited for.
TEST(Streams, OperationsRunInOrder) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    const int size = group->size();
    const std::int64_t count = 400'000;
    Elements data(DType::f64, count);
    Elements all(DType::f64, count * size);
    Elements scattered(DType::f64, count);
    for (std::int64_t i = 0; i < count; ++i) data.set(i, group->rank() + 1);
    device::Stream stream;
    const device::Event first = group->all_reduce(data.tensor(), Reduction::sum, stream);
    group->all_reduce(data.tensor(), Reduction::sum, stream);
    group->all_gather(all.tensor(), data.tensor(), stream);
    group->broadcast(all.tensor(), size - 1, stream);
    const device::Event last =
        group->reduce_scatter(scattered.tensor(), all.tensor(), Reduction::sum, stream);
    last.wait();
    EXPECT_TRUE(first.done());
    const double sum = size * (size + 1) / 2.0;
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(scattered.get(i), sum * size * size) << group.name;
    }
  }
}

TEST(Streams, ManySmallOperations) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    device::Stream stream;
    std::vector<std::int64_t> values(200, group->rank());
    std::vector<device::Event> events;
    for (std::int64_t& value : values) {
      events.push_back(group->all_reduce(Tensor(&value, {1}), Reduction::max, stream));
    }
    stream.synchronize();
    for (const std::int64_t value : values) ASSERT_EQ(value, group->size() - 1);
    for (const device::Event& event : events) ASSERT_TRUE(event.done());
  }
}

// The main thread never polls: the progress thread alone completes a large reduction.
TEST(Streams, ProgressWorksWhileTheCallerComputes) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    Elements data(DType::f32, 2'000'000);
    for (std::int64_t i = 0; i < data.count(); ++i) data.set(i, pattern(group->rank(), i));
    device::Stream stream;
    Progress progress({&stream});
    for (int round = 0; round < 3; ++round) {
      const device::Event event = group->all_reduce(data.tensor(), Reduction::max, stream);
      progress.wake();
      const auto end = Clock::now() + std::chrono::seconds(60);
      while (!event.done() && Clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      ASSERT_TRUE(event.done()) << group.name;
    }
  }
}

// Two communicators on two streams, waited for in opposite orders: no deadlock, because the
// progress threads serve both.
TEST(Streams, CommunicatorsAreIndependent) {
  Groups groups;
  const auto other = make_mpi_communicator(MPI_COMM_WORLD, groups.ledger);
  Communicator& world = *groups.world();
  Elements a(DType::f32, 1'000'000);
  Elements b(DType::f32, 700'001);
  for (std::int64_t i = 0; i < a.count(); ++i) a.set(i, 1);
  for (std::int64_t i = 0; i < b.count(); ++i) b.set(i, 2);
  device::Stream first;
  device::Stream second;
  Progress progress({&first, &second});
  for (int round = 0; round < 3; ++round) {
    const bool even = world.rank() % 2 == 0;
    const auto reduce_a = [&] { return world.all_reduce(a.tensor(), Reduction::sum, first); };
    const auto reduce_b = [&] { return other->all_reduce(b.tensor(), Reduction::sum, second); };
    const device::Event early = even ? reduce_a() : reduce_b();
    const device::Event late = even ? reduce_b() : reduce_a();
    progress.wake();
    // Agreement is independent of pending reductions on the same communicator.
    EXPECT_EQ(world.all_reduce(std::int64_t{1}, Reduction::sum), world.size());
    early.wait();
    late.wait();
  }
  const double factor = std::pow(world.size(), 3);
  for (std::int64_t i = 0; i < a.count(); ++i) ASSERT_EQ(a.get(i), factor);
  for (std::int64_t i = 0; i < b.count(); ++i) ASSERT_EQ(b.get(i), 2 * factor);
}

TEST(Conveniences, GiveEveryRankTheSame) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    const int size = group->size();
    const int rank = group->rank();
    EXPECT_EQ(group->all_reduce(rank + 0.5, Reduction::sum), size * size / 2.0);
    EXPECT_EQ(group->all_reduce(rank + 0.5, Reduction::max), size - 0.5);
    EXPECT_EQ(group->all_reduce(std::int64_t{-rank}, Reduction::max), 0);
    EXPECT_TRUE(group->all_agree(true));
    EXPECT_FALSE(group->all_agree(rank != size - 1));
    for (int root = 0; root < size; ++root) {
      std::vector<std::uint8_t> bytes(3 * rank, 9);
      if (rank == root) bytes = {1, 2, static_cast<std::uint8_t>(root)};
      group->broadcast_bytes(bytes, root);
      EXPECT_EQ(bytes, (std::vector<std::uint8_t>{1, 2, static_cast<std::uint8_t>(root)}));
    }
    std::vector<std::uint8_t> empty;
    group->broadcast_bytes(empty, 0);
    EXPECT_TRUE(empty.empty());
    const std::vector<std::uint8_t> own(rank * 2, static_cast<std::uint8_t>(rank));
    const auto all = group->all_gather_bytes(own);
    ASSERT_EQ(static_cast<int>(all.size()), size);
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(all[r], std::vector<std::uint8_t>(r * 2, static_cast<std::uint8_t>(r)));
    }
    for (int root = 0; root < size; ++root) {
      EXPECT_EQ(group->gather_bytes(own, root),
                rank == root ? all : std::vector<std::vector<std::uint8_t>>());
    }
  }
}

TEST(Conveniences, NoRankLeavesABarrierBeforeTheLastEnters) {
  const Groups groups;
  Communicator& world = *groups.world();
  world.barrier();
  const double begin = MPI_Wtime();
  if (world.rank() == world.size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  world.barrier();
  EXPECT_GE(MPI_Wtime() - begin, 0.05);  // the ranks began within one barrier of each other
}

TEST(Session, OneRankOfANodeReports) {
  for (int round = 0; round < 3; ++round) {
    Session session(nullptr, nullptr);
    EXPECT_EQ(session.node_size(), session.size());
    EXPECT_EQ(session.node_rank(), session.rank());
    int reporters = session.claim_reporting() ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &reporters, 1, MPI_INT, MPI_SUM, session.node());
    EXPECT_EQ(reporters, 1);
    EXPECT_FALSE(session.claim_reporting());
  }
  Session session(nullptr, nullptr);
  if (session.rank() == session.size() - 1) {
    EXPECT_TRUE(session.claim_reporting());  // first caller, without communication
  }
  MPI_Barrier(MPI_COMM_WORLD);
  EXPECT_FALSE(session.claim_reporting());
}

}  // namespace
}  // namespace trireme::comm::testing
