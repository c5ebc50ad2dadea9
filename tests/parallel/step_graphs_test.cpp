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
