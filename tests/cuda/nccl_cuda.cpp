// NCCL on GPUs, one rank each: its start, every kind of operation, its end, and an abort. With one
// rank it has a communicator of that rank alone, and sends to itself; sums and maxima are then our
// own but for those of "ByNccl". Skipped without a device.
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/nccl.hpp"
#include "trireme/core/error.hpp"
#include "trireme/device/cuda.hpp"

namespace trireme::comm {
namespace {

class NcclOnGpus : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    int count = device::cuda_device_count();
    MPI_Allreduce(MPI_IN_PLACE, &count, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (count == 0) GTEST_SKIP() << "no CUDA device: " << device::cuda_description();
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    device_ = device::make_cuda_device(rank % count);
    ledger_ = std::make_unique<device::MemoryLedger>(*device_);
    runtime_ = std::make_unique<NcclRuntime>(
        nccl_library(), *ledger_, NcclOptions{.library_sums = GetParam(), .alone = true});
    group_ = make("world");
    stream_ = std::make_unique<device::Stream>(*device_);
  }
  std::unique_ptr<Communicator> make(const std::string& name) {
    return runtime_->make(make_mpi_communicator(MPI_COMM_WORLD, *ledger_), name, "comm.world");
  }
  device::Buffer buffer(std::int64_t elements) {
    return {*ledger_, device::Use::workspace, static_cast<std::size_t>(elements) * 4};
  }
  /// Whole numbers, different in each place and on each rank.
  static float value(int rank, std::int64_t i) { return static_cast<float>(rank + 1 + i % 1000); }
  void fill(const device::Buffer& data, std::int64_t elements) {
    std::vector<float> values(static_cast<std::size_t>(elements));
    for (std::int64_t i = 0; i < elements; ++i) values[i] = value(group_->rank(), i);
    device::write(*device_, data.view(DType::f32, {elements}), values.data());
  }
  std::vector<float> read(const device::Buffer& data, std::int64_t elements) {
    std::vector<float> values(static_cast<std::size_t>(elements));
    device::read(*device_, values.data(), data.view(DType::f32, {elements}));
    return values;
  }
  /// Over all ranks, of place i.
  float sum(std::int64_t i) const {
    float total = 0;
    for (int r = 0; r < group_->size(); ++r) total += value(r, i);
    return total;
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::MemoryLedger> ledger_;
  std::unique_ptr<NcclRuntime> runtime_;
  std::unique_ptr<Communicator> group_;
  std::unique_ptr<device::Stream> stream_;
};

INSTANTIATE_TEST_SUITE_P(Sums, NcclOnGpus, testing::Bool(),
                         [](const auto& by) { return by.param ? "ByNccl" : "InTheTree"; });

TEST_P(NcclOnGpus, SumsAreExact) {
  const int n = group_->size();
  for (const std::int64_t each : {1, 1001, 1 << 22}) {
    const std::int64_t count = each * n;
    const device::Buffer all = buffer(count), own = buffer(each);
    fill(all, count);
    group_->reduce_scatter(own.view(DType::f32, {each}), all.view(DType::f32, {count}),
                           Reduction::sum, *stream_);
    group_->all_reduce(all.view(DType::f32, {count}), Reduction::sum, *stream_).wait();
    const std::vector<float> sums = read(all, count), part = read(own, each);
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(sums[i], sum(i)) << count << " at " << i;
    for (std::int64_t i = 0; i < each; ++i) ASSERT_EQ(part[i], sum(group_->rank() * each + i));
  }
}

TEST_P(NcclOnGpus, DataArriveUnchanged) {
  const int n = group_->size(), rank = group_->rank();
  const std::int64_t each = 100'003;
  const device::Buffer all = buffer(each * n), own = buffer(each);
  fill(own, each);
  group_->all_gather(all.view(DType::f32, {each * n}), own.view(DType::f32, {each}), *stream_)
      .wait();
  const std::vector<float> gathered = read(all, each * n);
  for (std::int64_t i = 0; i < each * n; ++i) {
    ASSERT_EQ(gathered[i], value(static_cast<int>(i / each), i % each)) << i;
  }
  group_->broadcast(own.view(DType::f32, {each}), n - 1, *stream_).wait();
  EXPECT_EQ(read(own, each).back(), value(n - 1, each - 1));
  // Around the ring.
  fill(own, each);
  group_
      ->exchange({{own.view(DType::f32, {each}), (rank + 1) % n, true},
                  {all.view(DType::f32, {each}), (rank + n - 1) % n, false}},
                 *stream_)
      .wait();
  EXPECT_EQ(read(all, each).back(), value((rank + n - 1) % n, each - 1));
}

TEST_P(NcclOnGpus, GroupsShareTheDevice) {
  const auto other = make("data");
  device::Stream beside(*device_);
  const std::int64_t each = 1 << 18, count = each * group_->size();
  const device::Buffer own = buffer(each), first = buffer(count), second = buffer(count);
  fill(own, each);
  for (int i = 0; i < 20; ++i) {
    group_->all_gather(first.view(DType::f32, {count}), own.view(DType::f32, {each}), *stream_);
    other->all_gather(second.view(DType::f32, {count}), own.view(DType::f32, {each}), beside)
        .wait();
  }
  stream_->synchronize();
  device_->synchronize();
  const std::vector<float> one = read(first, count), two = read(second, count);
  for (std::int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(one[i], value(static_cast<int>(i / each), i % each)) << i;
    ASSERT_EQ(two[i], one[i]) << i;
  }
}

TEST_P(NcclOnGpus, GroupsOfOneParentAddRegisteredMemory) {
  if (!nccl_library().splits() || !nccl_library().registers()) GTEST_SKIP() << "an older NCCL";
  const auto split = [&](const char* name) {
    return runtime_->make(make_mpi_communicator(MPI_COMM_WORLD, *ledger_), name, "comm.data",
                          {*group_});
  };
  const auto data = split("data"), shard = split("shard");
  const std::int64_t count = 1 << 20;
  const device::Buffer first = buffer(count), second = buffer(count);
  fill(first, count);
  fill(second, count);
  const Tensor one = first.view(DType::f32, {count}), two = second.view(DType::f32, {count});
  const auto registrations = {data->register_memory(one), shard->register_memory(two)};
  for (const auto& registration : registrations) EXPECT_NE(registration, nullptr);
  EXPECT_EQ(runtime_->refusal(), "");
  device::Stream beside(*device_);
  data->all_reduce(one, Reduction::sum, *stream_);
  shard->all_reduce(two, Reduction::sum, beside).wait();
  stream_->synchronize();
  device_->synchronize();
  const std::vector<float> sums = read(first, count), others = read(second, count);
  for (std::int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(sums[i], sum(i)) << i;
    ASSERT_EQ(others[i], sum(i)) << i;
  }
}

// As stages of a pipeline: both ranks queue a receive, a sum of another group, and only then the
// send that ends the other's receive. As in a run, everything but the links has been used before:
// the first sum makes its connections and work space and loads its kernels.
TEST_P(NcclOnGpus, PairsReceiveBeforeTheySend) {
  if (group_->size() != 2) GTEST_SKIP() << "for two ranks";
  const int rank = group_->rank(), peer = 1 - rank;
  const std::int64_t each = 1 << 20;
  const device::Buffer own = buffer(each), other = buffer(each), summed = buffer(each);
  const auto whole = [&](const device::Buffer& data) { return data.view(DType::f32, {each}); };
  fill(own, each);
  fill(summed, each);
  group_->all_reduce(whole(summed), Reduction::sum, *stream_).wait();
  device_->synchronize();
  const auto pair = [&](const char* name, int sender) {
    return runtime_->make_pair(make_mpi_communicator(MPI_COMM_WORLD, *ledger_), name,
                               "comm.pipeline", rank == sender);
  };
  const auto down = pair("down", 0), up = pair("up", 1);
  const auto &sends = rank == 0 ? down : up, &receives = rank == 0 ? up : down;
  device::Stream to(*device_), from(*device_);
  for (int i = 0; i < 20; ++i) {
    fill(summed, each);
    const device::Event arrived = receives->exchange({{whole(other), peer, false}}, from);
    group_->all_reduce(whole(summed), Reduction::sum, *stream_).wait();
    const device::Event sent = sends->exchange({{whole(own), peer, true}}, to);
    arrived.wait();
    sent.wait();
    ASSERT_EQ(read(other, each).back(), value(peer, each - 1)) << i;
    ASSERT_EQ(read(summed, each).back(), sum(each - 1)) << i;
  }
}

TEST_P(NcclOnGpus, AnAbortEndsTheCommunicator) {
  const device::Buffer data = buffer(1000);
  fill(data, 1000);
  group_->all_reduce(data.view(DType::f32, {1000}), Reduction::sum, *stream_).wait();
  device_->synchronize();
  runtime_->abandon(std::make_exception_ptr(Error("enough")));
  EXPECT_THROW(group_->all_reduce(data.view(DType::f32, {1000}), Reduction::sum, *stream_).wait(),
               Error);
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace trireme::comm
