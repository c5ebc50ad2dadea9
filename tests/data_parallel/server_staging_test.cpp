// Transfers between a worker's device and host memory, and every wait between the two, with the
// device's computation delayed.
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "trireme/core/half.hpp"
#include "trireme/data_parallel/server_link.hpp"

#include "data_parallel/served.hpp"
#include "support/gate.hpp"
#include "support/simulated_ops.hpp"

namespace trireme::data_parallel::test {
namespace {

using testing_support::Gate;
using testing_support::SimulatedDevice;
using testing_support::SimulatedOps;

constexpr std::chrono::milliseconds held{50};

/// A worker's state on a device, and its staging for two servers.
class Worker {
 public:
  explicit Worker(DType gradients = DType::f32, DType compute = DType::f32)
      : model_(served_model(true)),
        stage_(model_, options(compute)),
        ledger_(device_),
        ops_(device_, ops::make_cpu_ops(1)),
        state_(stage_.layout(), stage_.shards(), stage_.state_options(), ledger_),
        before_(ledger_.held(device::Use::communication)),
        staging_(state_, ops_, gradients, ledger_),
        parts_(server_parts(stage_.layout(), 2)) {}

  params::Range all() const { return {0, stage_.layout().elements()}; }
  /// Queues new gradients; returns them.
  std::vector<float> compute_gradients() {
    std::mt19937 random(++seed_);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(stage_.layout().elements()));
    for (float& value : values) value = normal(random);
    device::write(device_, state_.gradients(), values.data());
    return values;
  }
  /// Receives a model whose bytes are all `byte`.
  void receive(int byte) {
    staging_.begin_receiving();
    for (const ServerPart& part : parts_) {
      const Tensor slot = staging_.incoming(part);
      std::memset(slot.data(), byte, slot.bytes());
    }
    for (const ServerPart& part : parts_) staging_.deliver(part);
  }
  /// Whether units read that model.
  bool reads(int byte) {
    for (const ServerPart& part : parts_) {
      const Tensor values = values_of(state_, part);
      std::vector<std::uint8_t> found(values.bytes());
      device::read(device_, found.data(), values);
      const std::vector<std::uint8_t> expected(values.bytes(), static_cast<std::uint8_t>(byte));
      if (found != expected) return false;
    }
    return true;
  }
  /// The bytes to be sent.
  std::vector<float> outgoing() const {
    const Tensor sent = staging_.outgoing(all());
    std::vector<float> values;
    for (std::int64_t i = 0; i < sent.elements(); ++i) {
      values.push_back(sent.type() == DType::f32
                           ? sent.as<float>()[i]
                           : bf16_to_float(static_cast<const std::uint16_t*>(sent.data())[i]));
    }
    return values;
  }
  std::int64_t staged_bytes() const { return ledger_.held(device::Use::communication) - before_; }
  SimulatedDevice& device() { return device_; }
  ServerStaging& staging() { return staging_; }
  const parallel::Stage& stage() const { return stage_; }

 private:
  static parallel::StageOptions options(DType compute) {
    parallel::StageOptions options = served_options(1, 8, true);
    options.compute = compute;
    return options;
  }
  model::Transformer model_;
  parallel::Stage stage_;
  SimulatedDevice device_{1};
  device::MemoryLedger ledger_;
  SimulatedOps ops_;
  state::ModelState state_;
  std::int64_t before_;
  ServerStaging staging_;
  std::vector<ServerPart> parts_;
  unsigned seed_ = 0;
};

TEST(ServerStaging, GradientsAreSentOnceTheyAreInHostMemory) {
  for (const DType type : {DType::f32, DType::bf16}) {
    Worker worker(type);
    Gate gate;
    worker.device().repeat(worker.device().native(), gate.check());
    std::vector<float> expected = worker.compute_gradients();  // queued after it
    std::vector<float> sent;
    Push::Futures futures;
    Push push(worker.staging().take(worker.all()), futures, [&] { sent = worker.outgoing(); });
    push.start();
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(push.test());
    EXPECT_TRUE(sent.empty()) << "sent before it is in host memory";
    gate.open_after(held);
    while (!push.test()) std::this_thread::yield();
    if (type == DType::bf16) {
      for (float& value : expected) value = bf16_to_float(float_to_bf16(value));
    }
    EXPECT_EQ(sent, expected) << name_of(type);
  }
}

TEST(ServerStaging, TheModelIsReadBeforeGradientsOverwriteIt) {
  Worker worker;
  const std::vector<float> gradients = worker.compute_gradients();
  worker.device().synchronize();
  Gate gate;
  worker.device().repeat(worker.device().native(), gate.check());
  worker.receive(0x41);
  const auto taken = worker.staging().take(worker.all());
  std::this_thread::sleep_for(held);
  EXPECT_FALSE(taken->reached());
  gate.open();
  while (!taken->reached()) std::this_thread::yield();
  EXPECT_EQ(worker.outgoing(), gradients);
  EXPECT_TRUE(worker.reads(0x41));
}

TEST(ServerStaging, AModelIsReadBeforeTheNextOverwritesIt) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    Worker worker(DType::f32, compute);
    Gate gate;
    worker.device().repeat(worker.device().native(), gate.check());
    worker.receive(0x41);  // without a wait
    EXPECT_FALSE(gate.is_open());
    gate.open_after(held);
    worker.receive(0x42);
    EXPECT_TRUE(gate.is_open()) << "the next model overwrote one that was still read";
    EXPECT_TRUE(worker.reads(0x42));
  }
}

TEST(ServerStaging, HoldsTheReportedBytes) {
  struct Case {
    DType gradients, compute;
    std::int64_t bytes;  // for each element: rounded gradients on the device, and staging
  };
  for (const Case& each :
       {Case{DType::f32, DType::f32, 4}, Case{DType::bf16, DType::f32, 2 + 4},
        Case{DType::f32, DType::bf16, 4}, Case{DType::bf16, DType::bf16, 2 + 2}}) {
    const Worker worker(each.gradients, each.compute);
    const params::Layout& layout = worker.stage().layout();
    EXPECT_EQ(worker.staged_bytes(), each.bytes * layout.elements());
    const auto predicted = [&](bool host) {
      return ServerStaging::bytes(worker.stage().state_options(), layout, each.gradients, host);
    };
    EXPECT_EQ(predicted(false), worker.staged_bytes());
    EXPECT_EQ(predicted(true), each.gradients == DType::f32 ? 0 : 2 * layout.elements());
  }
}

}  // namespace
}  // namespace trireme::data_parallel::test
