// Operations queued on a device, and host operations of the same Stream, on a simulated device that
// works later in random order.
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/core/half.hpp"
#include "trireme/core/random.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"

#include "support/simulated_device.hpp"

namespace trireme::device {
namespace {

using testing_support::SimulatedDevice;
using namespace std::chrono_literals;

/// Adds 1 to a number on the device `times` times, on a queue.
class Queued : public Operation {
 public:
  Queued(Queue& queue, std::function<void()> body, int tests = 1)
      : queue_(queue), body_(std::move(body)), tests_(tests) {}
  bool queued() const override { return true; }
  void come_after(Fence& fence) override { queue_.follow(fence); }
  void start() override {
    if (tests_ == 0) throw std::runtime_error("refused");
  }
  bool test() override {
    if (--tests_ > 0) return false;
    body_();
    return true;
  }
  std::shared_ptr<Fence> end() override { return queue_.fence(); }

 private:
  Queue& queue_;
  std::function<void()> body_;
  int tests_;
};

/// Work on the host.
class OfHost : public Operation {
 public:
  explicit OfHost(std::function<void()> body) : body_(std::move(body)) {}
  void start() override { body_(); }
  bool test() override { return true; }

 private:
  std::function<void()> body_;
};

class QueuedWork : public ::testing::TestWithParam<unsigned> {
 protected:
  QueuedWork() : stream_(device_) {}
  /// Logs `number` when the device executes it, on the stream's queue.
  std::unique_ptr<Operation> noting(int number, int tests = 1) {
    return std::make_unique<Queued>(
        stream_.queue(), [this, number] { device_.repeat(stream_.queue().native(), note(number)); },
        tests);
  }
  std::function<bool()> note(int number) {
    return [this, number] {
      log_.push_back(number);  // by the device's one thread
      return true;
    };
  }
  std::function<bool()> gate() {
    return [this] { return open_.load(); };
  }

  SimulatedDevice device_{GetParam()};
  Stream stream_;
  std::vector<int> log_;
  std::atomic<bool> open_ = false;
};

INSTANTIATE_TEST_SUITE_P(Seeds, QueuedWork, ::testing::Range(1U, 9U));

TEST_P(QueuedWork, IsOrderedAfterEarlierComputationAndBeforeComputationAfterAWait) {
  device_.repeat(device_.native(), gate());
  device_.compute([this] { log_.push_back(1); });
  const Event event = stream_.enqueue(noting(2));
  EXPECT_TRUE(stream_.idle());  // queued
  EXPECT_FALSE(event.done());   // but not done
  event.wait();                 // without blocking the host
  EXPECT_FALSE(event.done());
  device_.compute([this] { log_.push_back(3); });
  open_ = true;
  device_.synchronize();
  EXPECT_TRUE(event.done());
  EXPECT_EQ(log_, (std::vector<int>{1, 2, 3}));
}

// Without a wait, later computation is not ordered after queued work: streams overlap.
TEST_P(QueuedWork, OverlapsComputation) {
  device_.repeat(stream_.queue().native(), gate());
  const Event event = stream_.enqueue(noting(1));
  device_.compute([this] { log_.push_back(2); });
  device_.synchronize();
  EXPECT_FALSE(event.done());
  open_ = true;
  event.wait();
  device_.synchronize();
  EXPECT_EQ(log_, (std::vector<int>{2, 1}));
}

TEST_P(QueuedWork, IsInOrderWithTheHostsOperations) {
  device_.repeat(stream_.queue().native(), gate());
  const Event first = stream_.enqueue(noting(1));
  bool seen = false;
  const Event second = stream_.enqueue(std::make_unique<OfHost>([&] {
    EXPECT_EQ(log_, std::vector<int>{1});
    seen = true;
  }));
  const Event third = stream_.enqueue(noting(2));
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(stream_.poll());
  EXPECT_FALSE(seen);
  open_ = true;
  second.wait();
  EXPECT_TRUE(seen);
  EXPECT_TRUE(first.done());
  third.wait();
  device_.synchronize();
  EXPECT_EQ(log_, (std::vector<int>{1, 2}));
}

TEST_P(QueuedWork, MayTakeSeveralPollsToQueue) {
  const Event slow = stream_.enqueue(noting(1, 5));
  const Event next = stream_.enqueue(noting(2));
  EXPECT_FALSE(stream_.idle());
  next.wait();
  device_.synchronize();
  EXPECT_TRUE(slow.done());
  EXPECT_EQ(log_, (std::vector<int>{1, 2}));
}

TEST_P(QueuedWork, ErrorsReachTheirWaiterAndTheNextContinues) {
  const Event refused = stream_.enqueue(noting(1, 0));
  const Event next = stream_.enqueue(noting(2));
  EXPECT_THROW(refused.wait(), std::runtime_error);
  next.wait();
  device_.synchronize();
  EXPECT_EQ(log_, std::vector<int>{2});
}

/// Throws when its end is queried.
class WithoutEnd : public Queued {
 public:
  using Queued::Queued;
  std::shared_ptr<Fence> end() override { throw std::runtime_error("no end"); }
};

TEST_P(QueuedWork, AFailingEndFailsItsWaiter) {
  const Event event = stream_.enqueue(std::make_unique<WithoutEnd>(stream_.queue(), [] {}));
  EXPECT_THROW(event.wait(), std::runtime_error);
  EXPECT_TRUE(stream_.idle());
}

TEST_P(QueuedWork, DestroyingTheStreamKeepsTheDeviceRunning) {
  Event event;
  {
    Stream other(device_);
    device_.repeat(device_.native(), gate());
    void* const native = other.queue().native();
    event = other.enqueue(
        std::make_unique<Queued>(other.queue(), [&] { device_.repeat(native, note(1)); }));
    open_ = true;
  }
  EXPECT_EQ(log_, std::vector<int>{1});  // a queue ends when its work is done
  device_.synchronize();
}

// Results must not be used after the communicator detects an error.
TEST_P(QueuedWork, AFailureOfTheDeviceReachesEveryWaiter) {
  MemoryLedger ledger(device_);
  const Buffer buffer(ledger, Use::workspace, 8);
  const Event event = stream_.enqueue(noting(1));
  std::int64_t value = 0;
  const Tensor tensor = buffer.view(DType::i64, {1});
  EXPECT_NO_THROW(read(device_, &value, tensor));
  std::thread([this] {
    device_.fail(std::make_exception_ptr(Error("the link broke")));
    device_.fail(std::make_exception_ptr(Error("and then something else")));
  }).join();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(device_.synchronize(), Error);
    EXPECT_THROW(event.wait(), Error);
    try {
      read(device_, &value, tensor);
      ADD_FAILURE() << "read";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "the link broke");
    }
  }
}

TEST(Readback, ReportsARemedyIfNothingCanBePinned) {
  SimulatedDevice device(1);
  device.refuse_staging();
  MemoryLedger ledger(device);
  float value = 0;
  try {
    const Readback read(ledger, Use::batch, Tensor(&value, {1}));
    ADD_FAILURE() << "made";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "memory: 4 bytes for batch: the system has not that much that can be "
                 "pinned; start fewer ranks on a node, or use a smaller batch");
  }
}

TEST(Readback, IsInTheLedgerIfItIsACopy) {
  SimulatedDevice device(1);
  MemoryLedger there(device), here;
  {
    const Buffer source(there, Use::batch, 12);
    const Readback copy(there, Use::batch, source.view(DType::f32, {3}));
    EXPECT_EQ(there.held(Use::batch), 24);
    float values[3] = {};
    const Readback itself(here, Use::batch, Tensor(values, {3}));
    EXPECT_EQ(here.held(Use::batch), 0);
    EXPECT_EQ(itself.values().data(), values);
  }
  EXPECT_EQ(there.held(Use::batch), 0);
}

TEST(QueueReduce, MatchesTheHostsTree) {
  SimulatedDevice device(5);
  MemoryLedger ledger(device);
  constexpr std::int64_t n = 3001;
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64}) {
    for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
      for (std::size_t ranks = 1; ranks <= 7; ++ranks) {
        const std::size_t bytes = static_cast<std::size_t>(n) * size_of(type);
        std::vector<std::vector<std::byte>> values(ranks, std::vector<std::byte>(bytes));
        std::vector<Buffer> buffers;
        std::vector<const std::byte*> here, there;
        for (std::size_t r = 0; r < ranks; ++r) {
          for (std::size_t i = 0; i < bytes; ++i) {
            // Few high bytes, hence no NaN: its bits are not specified.
            const auto bits = random_bits({4, Purpose::dropout, static_cast<std::uint32_t>(r)}, i);
            values[r][i] = static_cast<std::byte>(i % size_of(type) + 1 == size_of(type)
                                                      ? 0x3a + bits % 8 + bits / 8 % 2 * 128
                                                      : bits % 256);
          }
          buffers.emplace_back(ledger, Use::workspace, bytes);
          device.copy(buffers.back().data(), values[r].data(), bytes);
          here.push_back(values[r].data());
          there.push_back(buffers.back().data());
        }
        const std::size_t own = ranks / 2;  // in place
        device.reduce(type, reduction, there, buffers[own].data(), n);
        std::vector<std::byte> result(bytes), expected(bytes);
        device.copy(result.data(), buffers[own].data(), bytes);
        device.synchronize();
        reduce_tree(type, reduction, here, expected.data(), n);
        EXPECT_EQ(result, expected) << name_of(type) << " " << ranks;
      }
    }
  }
}

TEST(QueueConvert, RoundsAsTheHostDoes) {
  SimulatedDevice device(5);
  MemoryLedger ledger(device);
  constexpr std::int64_t n = 3001;
  std::vector<float> values;
  for (std::int64_t i = 0; i < n; ++i) {
    values.push_back(static_cast<float>(normal({4, Purpose::dropout, 1}, std::uint64_t(i))));
  }
  values[0] = std::numeric_limits<float>::infinity();
  values[1] = std::numeric_limits<float>::max();  // rounds to infinity
  const Buffer wide(ledger, Use::workspace, n * sizeof(float));
  const Buffer narrow(ledger, Use::workspace, n * sizeof(std::uint16_t));
  device.copy(wide.data(), values.data(), wide.bytes());
  device.convert(DType::bf16, narrow.data(), wide.data(), n);
  device.convert(DType::f32, wide.data(), narrow.data(), n);
  std::vector<float> result(n);
  device.copy(result.data(), wide.data(), wide.bytes());
  device.synchronize();
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(result[i], bf16_to_float(float_to_bf16(values[i]))) << values[i];
  }
}

}  // namespace
}  // namespace trireme::device
