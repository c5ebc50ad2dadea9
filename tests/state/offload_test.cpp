// The host update of a device's parameters, against the same values without a device; and every
// wait between the two, with one side delayed.
#include "trireme/state/offload.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "trireme/core/half.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/state/update.hpp"

#include "support/gate.hpp"
#include "support/simulated_device.hpp"

namespace trireme::state {
namespace {

using testing_support::Gate;
using testing_support::SimulatedDevice;

model::ModelConfig small_config() {
  model::ModelConfig config;
  config.layers = 2;
  config.width = 24;
  config.heads = 4;
  config.hidden = 49;
  config.vocabulary = 53;
  config.sequence = 11;
  config.resolve();
  return config;
}

std::vector<float> drawn(std::int64_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (float& value : values) value = normal(random);
  return values;
}

constexpr std::chrono::milliseconds held{50};

/// One rank of two that share the optimizer's state, offloaded; and the same values on the host.
class Sides {
 public:
  Sides(DType compute, std::int64_t chunk)
      : model_(small_config()),
        layout_(model_.table(), {{0, static_cast<std::int64_t>(model_.units().size())}},
                model::Shares().tiles),
        shards_(layout_, 2, 1),
        ledger_(device_),
        state_(layout_, shards_, options(compute, true), ledger_),
        offload_(state_, 2, chunk, ledger_),
        optimizer_({}, shards_.elements(), ledger_, true),
        stream_(device_),
        host_state_(layout_, shards_, options(DType::f32, false), host_ledger_),
        host_optimizer_({}, shards_.elements(), host_ledger_),
        cpu_(ops::make_cpu_ops(1)) {
    // Padding between blocks is zero.
    for (const optim::UpdateRange& range : update_ranges(state_)) {
      const auto values = drawn(range.parameters.elements(), ++seed_);
      std::memcpy(range.parameters.data(), values.data(), range.parameters.bytes());
    }
    for (int g = 0; g < shards_.groups(); ++g) {
      const Tensor from = state_.own_parameters(g), to = host_state_.own_parameters(g);
      if (to) std::memcpy(to.data(), from.data(), to.bytes());
    }
  }
  /// New gradients on both sides.
  void make_gradients() {
    for (int g = 0; g < shards_.groups(); ++g) {
      const Tensor there = host_state_.own_gradient(g);
      const auto values = drawn(there.elements(), ++seed_);
      std::copy(values.begin(), values.end(), static_cast<float*>(there.data()));
      device::write(device_, state_.own_gradient(g), values.data());
    }
  }
  void take() {
    offload_.begin_step();
    for (int g = shards_.groups() - 1; g >= 0; --g) events_.push_back(offload_.take(g, stream_));
  }
  void update(std::int64_t step) {
    for (const device::Event& event : events_) event.wait();
    events_.clear();
    offload_.update(optimizer_, 1e-2, step, 0.5);
    host_optimizer_.update(*cpu_, update_ranges(host_state_), 1e-2, step, 0.5);
  }
  /// Where the sides differ in bits; empty: nowhere.
  std::string difference() {
    for (int g = 0; g < shards_.groups(); ++g) {
      const Tensor ours = state_.own_parameters(g), theirs = host_state_.own_parameters(g);
      if (!same(ours, theirs)) return fmt::format("masters of group {}", g);
      const Tensor values = state_.own_values(g);
      std::vector<std::byte> read(values.bytes()), rounded(values.bytes());
      device::read(device_, read.data(), values);
      cpu_->copy(Tensor(rounded.data(), values.type(), values.shape()), theirs);
      if (read != rounded) return fmt::format("values of group {}", g);
    }
    for (std::size_t i = 0; i < optimizer_.states().size(); ++i) {
      if (!same(optimizer_.states()[i].flat, host_optimizer_.states()[i].flat)) {
        return optimizer_.states()[i].name;
      }
    }
    return {};
  }
  SimulatedDevice& device() { return device_; }
  device::Stream& stream() { return stream_; }
  Offload& offload() { return offload_; }
  void refresh() { offload_.refresh(optimizer_, 0); }
  const ModelState& state() const { return state_; }
  const device::MemoryLedger& ledger() const { return ledger_; }

 private:
  static StateOptions options(DType compute, bool offload) {
    StateOptions options{.zero = 1, .offload = offload};
    options.shares.compute = compute;
    return options;
  }
  static bool same(const Tensor& a, const Tensor& b) {
    return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
  }

  SimulatedDevice device_{3};
  model::Transformer model_;
  params::Layout layout_;
  ShardMap shards_;
  device::MemoryLedger ledger_, host_ledger_;
  ModelState state_;
  Offload offload_;
  optim::Optimizer optimizer_;
  device::Stream stream_;
  ModelState host_state_;
  optim::Optimizer host_optimizer_;
  std::unique_ptr<ops::Ops> cpu_;
  std::vector<device::Event> events_;
  unsigned seed_ = 0;
};

TEST(Offload, UpdatesLikeTheHostForAnyChunkSize) {
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t chunk : {37, 1000, 1 << 20}) {
      Sides sides(compute, chunk);
      sides.refresh();
      EXPECT_EQ(sides.difference(), "") << name_of(compute) << " " << chunk;
      for (int step = 0; step < 3; ++step) {
        sides.make_gradients();
        sides.take();
        sides.update(step);
        EXPECT_EQ(sides.difference(), "") << name_of(compute) << " " << chunk;
      }
    }
  }
}

TEST(Offload, HoldsTheReportedBytes) {
  const Sides sides(DType::bf16, 37);
  const std::int64_t elements = sides.state().shards().elements();
  using device::Use;
  // Masters, two moments and gradients; two chunks, on cache lines of elements.
  EXPECT_EQ(sides.ledger().held(Use::offloaded), 16 * elements + 2 * 64 * 2);
  EXPECT_EQ(sides.ledger().held(Use::optimizer), 0);
  EXPECT_TRUE(sides.state().optimizer_device().is_host());
  EXPECT_FALSE(sides.state().device().is_host());
}

TEST(Offload, UpdateWaitsForGradients) {
  Sides sides(DType::bf16, 1 << 20);
  Gate gate;
  sides.make_gradients();
  sides.device().repeat(sides.stream().queue().native(), gate.check());
  sides.take();
  gate.open_after(held);
  sides.update(0);
  EXPECT_EQ(sides.difference(), "");
}

TEST(Offload, GradientsAreCopiedOnceTheyAreComputed) {
  Sides sides(DType::f32, 1000);
  Gate gate;
  sides.device().repeat(sides.device().native(), gate.check());
  sides.make_gradients();  // queued after it
  sides.take();
  gate.open_after(held);
  sides.update(0);
  EXPECT_EQ(sides.difference(), "");
}

TEST(Offload, ChunksWaitForTheirBuffers) {
  Sides sides(DType::f32, 1000);
  sides.make_gradients();
  sides.take();
  sides.device().synchronize();
  Gate gate;
  sides.device().repeat(sides.device().native(), gate.check());  // nothing is copied back
  gate.open_after(held);
  sides.update(0);
  EXPECT_EQ(sides.difference(), "");
}

TEST(Offload, NextStepWaitsForCopiesOfGradients) {
  Sides sides(DType::f32, 1000);
  Gate gate;
  sides.make_gradients();
  sides.device().synchronize();
  sides.device().repeat(sides.stream().queue().native(), gate.check());
  sides.take();
  sides.offload().begin_step();
  const auto zeroed = sides.device().fence();
  std::this_thread::sleep_for(held);
  EXPECT_FALSE(zeroed->reached()) << "gradients may be overwritten before they are copied";
  gate.open();
  sides.device().synchronize();
  EXPECT_TRUE(zeroed->reached());
}

TEST(Offload, ChangedGradientsAreCopiedAgain) {
  Sides sides(DType::f32, 1000);
  sides.make_gradients();
  sides.take();
  sides.device().synchronize();
  sides.make_gradients();
  sides.offload().retake();
  sides.update(0);
  EXPECT_EQ(sides.difference(), "");
}

}  // namespace
}  // namespace trireme::state
