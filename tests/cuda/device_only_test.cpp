// Tests that need a device: its memory, queues and fences, and the libraries' choices.
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "trireme/core/error.hpp"
#include "trireme/device/cuda.hpp"
#include "trireme/device/device.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/ops/cuda_ops.hpp"

#include "harness.hpp"

namespace trireme::ops {
namespace {

TEST(CudaDevice, MemoryIsZeroAndCopiesArrive) {
  device::Device& device = tested_device();
  device::MemoryLedger ledger(device);
  constexpr std::size_t bytes = (std::size_t{1} << 20) + 13;
  const device::Buffer there(ledger, device::Use::workspace, bytes);
  std::vector<unsigned char> host(bytes, 1), back(bytes, 2);
  device.copy(host.data(), there.data(), bytes);
  EXPECT_EQ(host, std::vector<unsigned char>(bytes, 0));
  for (std::size_t i = 0; i < bytes; ++i) host[i] = static_cast<unsigned char>(i * 7);
  const std::vector<unsigned char> sent = host;
  device.copy(there.data(), host.data(), bytes);
  std::memset(host.data(), 0, bytes);  // pageable memory can be reused at once
  device.copy(back.data(), there.data(), bytes);
  EXPECT_EQ(back, sent);
  EXPECT_EQ(ledger.held(device::Use::workspace), static_cast<std::int64_t>(bytes));
}

TEST(CudaDevice, TooMuchMemoryIsNull) {
  EXPECT_EQ(tested_device().allocate(std::size_t{1} << 50), nullptr);
  EXPECT_NE(tested_device().name().find("cuda:0"), std::string::npos);
}

TEST(CudaDevice, QueuesFollowFences) {
  device::Device& device = tested_device();
  const std::unique_ptr<device::Queue> other = device.make_queue();
  constexpr std::size_t bytes = std::size_t{64} << 20;
  auto* staging = static_cast<unsigned char*>(device.allocate_staging(bytes));
  void* memory = device.allocate(bytes);
  for (unsigned char round = 1; round < 20; ++round) {
    std::memset(staging, round, bytes);
    device.copy(memory, staging, bytes);
    const std::shared_ptr<device::Fence> fence = device.fence();
    if (fence) other->follow(*fence);
    unsigned char last = 0;
    other->copy(&last, static_cast<unsigned char*>(memory) + bytes - 1, 1);
    EXPECT_EQ(last, round);
    EXPECT_TRUE(!fence || fence->reached());
  }
  device.release_staging(staging);
  device.release(memory);
}

TEST(CudaDevice, AnyThreadMayQuery) {
  device::Device& device = tested_device();
  const std::shared_ptr<device::Fence> fence = device.fence();
  std::thread([&] {
    device.enter_thread();
    void* memory = device.allocate(1000);
    EXPECT_NE(memory, nullptr);
    while (fence && !fence->reached()) std::this_thread::yield();
    device.release(memory);
  }).join();
}

TEST(CudaDevice, MarksAreInOrderAndWithinTheHostsTimes) {
  using Clock = device::Timeline::Clock;
  device::Device& device = tested_device();
  const std::unique_ptr<device::Timeline> timeline = device.make_timeline();
  constexpr std::size_t bytes = std::size_t{64} << 20;
  void* memory = device.allocate(2 * bytes);
  for (int round = 0; round < 2; ++round) {
    device.synchronize();
    const Clock::time_point begin = Clock::now();
    timeline->mark();
    for (int i = 0; i < 3; ++i) {
      device.copy(memory, static_cast<char*>(memory) + bytes, bytes);
      timeline->mark();
    }
    device.synchronize();
    const std::vector<Clock::time_point> times = timeline->read();
    const Clock::time_point end = Clock::now();
    ASSERT_EQ(times.size(), 4U);
    // The time of reading replaces that of the last mark, so all may be late by the length of the
    // wait.
    EXPECT_GE(times.front(), begin);
    EXPECT_LE(times.back(), end);
    for (std::size_t i = 1; i < times.size(); ++i) EXPECT_LT(times[i - 1], times[i]);
  }
  device.release(memory);
}

TEST(CudaDevice, GraphsHoldTheQueuedWork) {
  device::Device& device = tested_device();
  device::MemoryLedger ledger(device);
  const device::Buffer memory(ledger, device::Use::workspace, 2 * sizeof(float));
  const Tensor y = memory.view(DType::f32, {1});
  const Tensor factor = memory.view(DType::f32, {1}, sizeof(float));
  const auto value = [&] {
    float read = 0;
    device::read(device, &read, y);
    return read;
  };
  Ops& ops = tested_ops();
  ops.fill(y, 3);
  ops.fill(factor, 2);
  ops.scale_by(y, factor);  // loads the kernel
  std::atomic<bool> ends = false;
  std::thread other([&] {  // like a progress thread
    device.enter_thread();
    const std::unique_ptr<device::Queue> beside = device.make_queue();
    const device::Buffer own(ledger, device::Use::communication, 1000);
    std::vector<std::byte> host(1000);
    while (!ends) {
      beside->copy(own.data(), host.data(), host.size());
      const std::shared_ptr<device::Fence> fence = beside->fence();
      while (fence && !fence->reached()) std::this_thread::yield();
    }
  });
  std::unique_ptr<device::GraphSequence> graph;
  for (int i = 0; i < 100; ++i) {
    graph = std::make_unique<device::GraphSequence>(device);
    graph->capture([&] { ops.scale_by(y, factor); });
  }
  ends = true;
  other.join();
  EXPECT_EQ(value(), 6);
  graph->launch();
  EXPECT_EQ(value(), 12);
  ops.fill(factor, 0.5F);
  graph->launch();
  graph->launch();
  EXPECT_EQ(value(), 3);
}

TEST(CudaDevice, FailedCapturesLeaveTheDeviceUnchanged) {
  device::Device& device = tested_device();
  device::MemoryLedger ledger(device);
  const device::Buffer memory(ledger, device::Use::workspace, sizeof(float));
  const Tensor y = memory.view(DType::f32, {1});
  device::GraphSequence graph(device);
  EXPECT_THROW(graph.capture([&] {
    tested_ops().fill(y, 5);
    device.synchronize();
  }),
               Error);
  float read = 1;
  device::read(device, &read, y);
  EXPECT_EQ(read, 0);
  graph.capture([&] {});
  graph.launch();
  EXPECT_EQ(graph.graphs(), 0U);
  graph.capture([&] { tested_ops().fill(y, 5); });
  graph.launch();
  device::read(device, &read, y);
  EXPECT_EQ(read, 5);
}

TEST(CudaDevice, RefusesInvalidIndices) {
  EXPECT_THROW(device::make_cuda_device(-1), Error);
  EXPECT_THROW(device::make_cuda_device(10000), Error);
}

/// One product on two backends.
std::vector<float> product(Ops& ops, DType type) {
  constexpr std::int64_t m = 384, n = 512, k = 4096;
  device::Device& device = tested_device();
  device::MemoryLedger ledger(device);
  const auto buffer = [&](std::int64_t elements) {
    return device::Buffer(ledger, device::Use::workspace, static_cast<std::size_t>(elements) * 4);
  };
  const device::Buffer a = buffer(m * k), b = buffer(k * n), c = buffer(m * n);
  const device::Buffer narrow_a = buffer(m * k), narrow_b = buffer(k * n);
  std::vector<float> values(static_cast<std::size_t>(std::max(m, n) * k));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i % 10007));
  }
  device.copy(a.data(), values.data(), a.bytes());
  device.copy(b.data(), values.data(), b.bytes());
  ops.copy(narrow_a.view(type, {m, k}), a.view(DType::f32, {m, k}));
  ops.copy(narrow_b.view(type, {k, n}), b.view(DType::f32, {k, n}));
  ops.matmul(c.view(DType::f32, {m, n}), narrow_a.view(type, {m, k}), narrow_b.view(type, {k, n}),
             {});
  std::vector<float> result(static_cast<std::size_t>(m * n));
  device.copy(result.data(), c.data(), c.bytes());
  device.synchronize();
  return result;
}

AlgorithmChoices& choosing(Ops& ops) { return dynamic_cast<AlgorithmChoices&>(ops); }

TEST(Libraries, AlgorithmsAreTransferred) {
  const std::unique_ptr<Ops> first = make_tested_ops({.time_algorithms = true});
  const std::vector<float> expected = product(*first, DType::bf16);
  const std::vector<std::byte> algorithms = choosing(*first).choices();
  EXPECT_GT(algorithms.size(), 100U);
  const std::unique_ptr<Ops> second = make_tested_ops({});
  choosing(*second).use_choices(algorithms);
  EXPECT_EQ(choosing(*second).choices(), algorithms);
  EXPECT_EQ(product(*second, DType::bf16), expected);
  EXPECT_EQ(choosing(*second).choices(), algorithms);
  EXPECT_THROW(choosing(*second).use_choices(std::span(algorithms).first(30)), Error);
}

TEST(Libraries, ReproducibleBackendsAgree) {
  const std::unique_ptr<Ops> first = make_tested_ops({.reproducible = true});
  const std::unique_ptr<Ops> second = make_tested_ops({.reproducible = true});
  EXPECT_EQ(product(*first, DType::f32), product(*second, DType::f32));
  EXPECT_EQ(product(*first, DType::f16), product(*second, DType::f16));
}

TEST(Libraries, WorkSpaceIsInTheLedger) {
  device::MemoryLedger ledger(tested_device());
  {
    const std::unique_ptr<Ops> ops = make_tested_ops({.ledger = &ledger});
    product(*ops, DType::bf16);
    EXPECT_GE(ledger.held(device::Use::workspace), std::int64_t{32} << 20);
  }
  EXPECT_EQ(ledger.held(device::Use::workspace), 0);
}

}  // namespace
}  // namespace trireme::ops
