// Graphs of steps on the simulated device, without a model: the effects of a failed capture.
#include <thread>

#include <gtest/gtest.h>

#include "trireme/parallel/engine.hpp"

#include "support/simulated_device.hpp"

namespace trireme::parallel {
namespace {

/// One number on a device, incremented by each step.
struct Counter {
  explicit Counter(unsigned seed) : device(seed) {
    const std::int64_t zero = 0;
    device.copy(number.data(), &zero, sizeof(zero));
  }
  void add() {
    device.compute([this] { ++*device.real(number.as<std::int64_t>()); });
  }
  std::int64_t value() {
    std::int64_t result = 0;
    device.copy(&result, number.data(), sizeof(result));
    return result;
  }
  void step(const std::function<void()>& work) {
    step([&](device::GraphSequence*) { work(); });
  }
  void step(const StepGraphs::Work& work) {
    graphs.begin_step({0});
    graphs.queue(0, work);
  }

  testing_support::SimulatedDevice device;
  device::MemoryLedger ledger{device};
  device::Buffer memory{ledger, device::Use::batch, sizeof(std::int64_t)};
  device::Buffer spare{ledger, device::Use::batch, 8};
  Tensor number = memory.view(DType::i64, {1});
  StepGraphs graphs{ledger, true};
};

/// Doubles the number when it is polled.
class Doubling final : public device::Operation {
 public:
  Doubling(Counter& counter, device::Queue& queue) : counter_(counter), queue_(queue) {}
  void start() override {
    std::int64_t value = 0;
    queue_.copy(&value, counter_.number.data(), sizeof(value));
    value *= 2;
    queue_.copy(counter_.number.data(), &value, sizeof(value));
    queue_.synchronize();
  }
  bool test() override { return true; }

 private:
  Counter& counter_;
  device::Queue& queue_;
};

/// One more, doubled, one more: as a tensor rank computes, sums over ranks, and computes.
TEST(StepGraphs, OperationsOfStreamsAreDoneInEveryLaunch) {
  Counter own(9);
  device::Stream stream(own.device);
  int calls = 0, doubled = 0;
  const StepGraphs::Work work = [&](device::GraphSequence* capture) {
    const auto start = [&] {
      ++doubled;
      return stream.enqueue(std::make_unique<Doubling>(own, stream.queue()));
    };
    ++calls;
    own.add();
    const device::Event done = capture != nullptr ? capture->start(start) : start();
    done.wait();
    own.add();
  };
  std::int64_t expected = 0;
  for (int step = 1; step <= 4; ++step) {
    own.step(work);
    expected = 2 * (expected + 1) + 1;
    EXPECT_EQ(own.value(), expected) << "step " << step;
    EXPECT_EQ(doubled, step);
  }
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(own.graphs.captured(), 2U);
  EXPECT_EQ(own.graphs.launched(), 6U);
}

/// What was captured before a forbidden operation is not done twice.
TEST(StepGraphs, ARefusedPieceLeavesNothingDone) {
  Counter own(10);
  device::Stream stream(own.device);
  int calls = 0;
  const StepGraphs::Work work = [&](device::GraphSequence* capture) {
    const auto start = [&] {
      return stream.enqueue(std::make_unique<Doubling>(own, stream.queue()));
    };
    own.add();
    (capture != nullptr ? capture->start(start) : start()).wait();
    own.add();
    if (++calls == 2) own.device.synchronize();
  };
  std::int64_t expected = 0;
  for (int step = 1; step <= 4; ++step) {
    own.step(work);
    expected = 2 * (expected + 1) + 1;
    EXPECT_EQ(own.value(), expected) << "step " << step;
  }
  EXPECT_FALSE(own.graphs.active());
  EXPECT_EQ(own.graphs.launched(), 0U);
}

/// Every step counts once, whatever happens to the capture in the second step.
TEST(StepGraphs, AForbiddenOperationEndsTheCaptureAndIsStillDone) {
  using Forbidden = std::function<void(Counter&)>;
  const std::vector<std::pair<const char*, Forbidden>> forbidden = {
      {"nothing", [](Counter&) {}},
      {"memory",
       [](Counter& own) { const device::Buffer buffer(own.ledger, device::Use::batch, 8); }},
      {"memory released", [](Counter& own) { own.spare = device::Buffer(); }},
      {"a wait", [](Counter& own) { own.device.synchronize(); }},
      {"a fence", [](Counter& own) { own.device.fence(); }},
      {"a copy to the host", [](Counter& own) { own.value(); }},
      {"an error", [](Counter&) { throw Error("not here"); }},
  };
  for (const auto& [what, disturb] : forbidden) {
    const std::string name = what;
    const Forbidden& now = disturb;
    Counter own(7);
    int calls = 0;
    const auto work = [&] {
      own.add();
      if (++calls == 2) now(own);
    };
    for (int step = 1; step <= 4; ++step) {
      own.step(work);
      EXPECT_EQ(own.value(), step) << name;
    }
    const bool refused = name != "nothing";
    EXPECT_EQ(!own.graphs.refusal().empty(), refused) << name;
    EXPECT_EQ(own.graphs.active(), !refused) << name;
    EXPECT_EQ(own.graphs.captured(), refused ? 0U : 1U) << name;
    EXPECT_EQ(own.graphs.launched(), refused ? 0U : 3U) << name;
    EXPECT_EQ(calls, refused ? 5 : 2) << name;
  }
}

/// On a GPU it would become part of the capture.
TEST(StepGraphs, NoOtherThreadMayUseTheQueueDuringACapture) {
  Counter own(8);
  bool refused = false;
  int calls = 0;
  for (int step = 0; step < 2; ++step) {
    own.step([&] {
      own.add();
      if (++calls != 2) return;
      std::thread([&] {
        try {
          own.device.fence();
        } catch (const Error&) {
          refused = true;
        }
      }).join();
    });
  }
  EXPECT_TRUE(refused);
  EXPECT_EQ(own.value(), 2);
}

}  // namespace
}  // namespace trireme::parallel
