// MPI with tensors of a device: staged through host memory, and direct.
#include <atomic>
#include <stdexcept>

#include "trireme/comm/progress.hpp"

#include "device_groups.hpp"

namespace trireme::comm::testing {
namespace {

/// By MPI, staged or direct.
class Devices : public ::testing::TestWithParam<bool> {
 protected:
  explicit Devices(unsigned seed = 7) : groups_(seed) {
    groups_.make([this](const TestGroup& group) { return make(group.oracle); });
  }
  std::unique_ptr<Communicator> make(MPI_Comm ranks) {
    return make_mpi_communicator(ranks, groups_.ledger, messages());
  }
  DeviceMessages messages() {
    if (!GetParam()) return {};
    return {.direct = true, .address = [this](void* memory) {
              return static_cast<void*>(groups_.device.real(static_cast<std::byte*>(memory)));
            }};
  }
  const DeviceGroups::Group& world() const { return groups_.groups[1]; }
  std::int64_t held() const { return groups_.ledger.held(device::Use::communication); }
  DeviceGroups groups_;
};

INSTANTIATE_TEST_SUITE_P(Mpi, Devices, ::testing::Bool(),
                         [](const auto& direct) { return direct.param ? "Direct" : "Staged"; });

TEST_P(Devices, EveryCollectiveMatchesTheHostBitForBit) { try_everything(groups_, 10'007); }

TEST_P(Devices, ReductionsInManyPiecesMatchTheHostBitForBit) {
  const std::int64_t count = world()->size() * ((std::int64_t{5} << 19) / 4) + 3;
  Trial{groups_, world()}.expect_same(
      DType::f32, {count}, [](Communicator& group, const Tensors& t, device::Stream& stream) {
        group.all_reduce(t[0], Reduction::sum, stream).wait();
      });
}

TEST_P(Devices, AProgressThreadServesThem) {
  for (const DeviceGroups::Group& group : groups_.groups) {
    OnDevice data(groups_, DType::f64, 100'000);
    Elements values(DType::f64, 100'000);
    for (std::int64_t i = 0; i < 100'000; ++i) values.set(i, group->rank() + 1);
    data.put(values);
    device::Stream stream(groups_.device);
    Progress progress({&stream});
    device::Event event;
    for (int i = 0; i < 3; ++i) {
      event = group->all_reduce(data.tensor(), Reduction::max, stream);
      progress.wake();
    }
    const double begin = MPI_Wtime();
    while (!event.done() && MPI_Wtime() < begin + 60) std::this_thread::yield();
    ASSERT_TRUE(event.done());
    EXPECT_EQ(first_wrong(data.get(), [&](std::int64_t) { return group->size(); }), -1);
  }
}

TEST_P(Devices, TrafficMatchesTheHost) {
  for (const DeviceGroups::Group& group : groups_.groups) {
    group.host->reset_traffic();
    Trial{groups_, group}.expect_same(
        DType::bf16, {1001}, [](Communicator& each, const Tensors& t, device::Stream& stream) {
          each.all_reduce(t[0], Reduction::sum, stream).wait();
        });
    EXPECT_EQ(group->traffic().total().bytes, group.host->traffic().total().bytes);
    EXPECT_EQ(group->traffic().total().operations, group->size() > 1 ? 1 : 0);
  }
}

// Staging memory is reused, and all of it is released at the end.
TEST_P(Devices, MemoryGrowsToPeakUse) {
  const std::int64_t before = held();
  {
    const auto own = make(MPI_COMM_WORLD);
    OnDevice data(groups_, DType::f32, 10'000);
    device::Stream stream(groups_.device);
    own->all_reduce(data.tensor(), Reduction::sum, stream).wait();
    const std::int64_t once = held();
    for (int i = 0; i < 5; ++i) own->all_reduce(data.tensor(), Reduction::sum, stream).wait();
    EXPECT_EQ(held(), once);
    if (own->size() > 1) {
      EXPECT_GT(once, before);
    }
  }
  EXPECT_EQ(held(), before);
}

// A rank's messages to itself are device copies, and complete with them.
TEST_P(Devices, CopiesToItselfAreWaitedFor) {
  for (const DeviceGroups::Group& group : groups_.groups) {
    OnDevice from(groups_, DType::i32, 100), to(groups_, DType::i32, 100);
    Elements values(DType::i32, 100);
    for (std::int64_t i = 0; i < 100; ++i) values.set(i, static_cast<double>(i));
    from.put(values);
    groups_.device.synchronize();
    device::Stream stream(groups_.device);
    std::atomic<bool> open = false;
    groups_.device.repeat(stream.queue().native(), [&] { return open.load(); });
    const device::Event event = group->exchange(
        {{from.tensor(), group->rank(), true}, {to.tensor(), group->rank(), false}}, stream);
    for (int i = 0; i < 20; ++i) stream.poll();
    EXPECT_FALSE(event.done()) << group.name;
    open = true;
    event.wait();
    EXPECT_EQ(first_wrong(to.get(), [](std::int64_t i) { return static_cast<double>(i); }), -1);
  }
}

// Of two ranks; pending messages in the communicator affect no other test.
TEST_P(Devices, AnOperationThatThrowsFailsItsWaiter) {
  const auto own = make(MPI_COMM_WORLD);
  if (own->size() == 1 || own->rank() > 1) return;
  OnDevice data(groups_, DType::u8, 16), other(groups_, DType::u8, 8);
  Elements values(DType::u8, 8);
  for (std::int64_t i = 0; i < 8; ++i) values.set(i, own->rank() == 0 ? 5 : 0);
  other.put(values);
  device::Stream stream(groups_.device);
  const bool sends = own->rank() == 0;
  const auto first =
      own->exchange({{data.tensor(0, sends ? 8 : 16), 1 - own->rank(), sends}}, stream);
  const auto second = own->exchange({{other.tensor(), 1 - own->rank(), sends}}, stream);
  if (sends) {
    EXPECT_NO_THROW(first.wait());
  } else {
    EXPECT_THROW(first.wait(), Error);
  }
  second.wait();
  EXPECT_EQ(first_wrong(other.get(), [](std::int64_t) { return 5; }), -1);
}

// An exception in flight drops pending operations, at any stage, also during device copies.
TEST_P(Devices, AnExceptionInFlightDropsPendingOperations) {
  for (int polls = 0; polls < 4; ++polls) {
    DeviceGroups alone(static_cast<unsigned>(polls));
    const auto fails = [&] {
      DeviceMessages how;
      if (GetParam()) {
        how = {.direct = true, .address = [&](void* memory) {
                 return static_cast<void*>(alone.device.real(static_cast<std::byte*>(memory)));
               }};
      }
      const auto own = make_mpi_communicator(MPI_COMM_WORLD, alone.ledger, how);
      OnDevice data(alone, DType::f32, 100'000);
      device::Stream stream(alone.device);
      const int next = (own->rank() + 1) % own->size();
      // Never sent, unless it is to itself.
      own->exchange(
          {{data.tensor(0, 9), next, next == own->rank()}, {data.tensor(9, 9), next, false}},
          stream);
      own->all_reduce(data.tensor(), Reduction::sum, stream);
      for (int i = 0; i < polls; ++i) stream.poll();
      throw std::runtime_error("on its way");
    };
    EXPECT_THROW(fails(), std::runtime_error);
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

}  // namespace
}  // namespace trireme::comm::testing
