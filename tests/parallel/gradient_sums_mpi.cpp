// Gradients that are sent in bf16: what is rounded and how often, and errors.
#include <algorithm>
#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "trireme/core/half.hpp"
#include "trireme/parallel/gradient_sums.hpp"

#include "../../src/comm/common.hpp"
#include "matrix_runs.hpp"

namespace trireme::parallel::test {
namespace {

/// Numbers of a rank that need more than the eight bits of bf16's significand.
float contribution(int rank, std::int64_t i) {
  return static_cast<float>((i * 37 + rank * 101) % 4001 - 2000);
}
float rounded(float x) { return bf16_to_float(float_to_bf16(x)); }
/// Sums of whole numbers below 2²⁴ are exact in fp32, in any order.
float expected_sum(int ranks, std::int64_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += rounded(contribution(r, i));
  return rounded(sum);
}

/// fp32 numbers on a device.
class Values {
 public:
  Values(device::MemoryLedger& ledger, std::int64_t count)
      : device_(ledger.device()),
        buffer_(ledger, device::Use::workspace, static_cast<std::size_t>(count) * sizeof(float)),
        tensor_(buffer_.view(DType::f32, {count})) {}
  const Tensor& tensor() const { return tensor_; }
  void write(const std::vector<float>& values) { device::write(device_, tensor_, values.data()); }
  std::vector<float> read() const {
    std::vector<float> values(static_cast<std::size_t>(tensor_.elements()));
    device::read(device_, values.data(), tensor_);
    return values;
  }

 private:
  device::Device& device_;
  device::Buffer buffer_;
  Tensor tensor_;
};

void check_sums(device::Device& device) {
  device::MemoryLedger ledger(device);
  const comm::Session session(MPI_COMM_WORLD);
  const auto group = comm::make_mpi_communicator(MPI_COMM_WORLD, ledger);
  const int ranks = group->size(), rank = group->rank();
  constexpr std::int64_t most = 600'001;  // more than the host converts in one step
  const device::Buffer memory(ledger, device::Use::workspace, most * 2);
  const GradientSums sums(*group, memory.view(DType::bf16, {most}));
  const auto own = [&](std::int64_t count) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(contribution(rank, i));
    return values;
  };
  const auto expected = [&](std::int64_t first, std::int64_t count) {
    std::vector<float> values;
    for (std::int64_t i = first; i < first + count; ++i) {
      values.push_back(ranks == 1 ? contribution(0, i) : expected_sum(ranks, i));
    }
    return values;
  };
  device::Stream stream(device);
  // Several under way, which share the memory of messages.
  Values large(ledger, most), small(ledger, 7), scattered(ledger, 5000 * ranks);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), 5000);
  counts.front() = 3001;
  counts.back() += 5000 * ranks - std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const std::int64_t first =
      std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  const std::int64_t share = counts[static_cast<std::size_t>(rank)];
  Values part(ledger, share);
  large.write(own(most));
  small.write(own(7));
  scattered.write(own(5000 * ranks));
  const device::Event events[] = {
      sums.all_reduce(large.tensor(), stream),
      sums.reduce_scatter_v(part.tensor(), scattered.tensor(), counts, stream),
      sums.all_reduce(small.tensor(), stream)};
  for (const device::Event& event : events) event.wait();
  EXPECT_EQ(large.read(), expected(0, most));
  EXPECT_EQ(part.read(), expected(first, share));
  EXPECT_EQ(small.read(), expected(0, 7));
}

TEST(GradientSums, RoundContributionsAndSums) {
  check_sums(device::host_device());
  testing_support::SimulatedDevice device(static_cast<unsigned>(world_rank()));
  check_sums(device);
}

/// Two ranks whose reductions fail.
class Failing final : public comm::Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }

 protected:
  class Failure final : public device::Operation {
   public:
    void start() override {}
    bool test() override { throw Error("communication: lost"); }
  };
  device::Event start_reduction(comm::SliceReduction /*job*/, device::Stream& stream) override {
    return stream.enqueue(std::make_unique<Failure>());
  }
  device::Event start_gather(const Tensor& /*output*/, const Tensor& /*input*/,
                             const std::vector<std::int64_t>& /*begins*/,
                             device::Stream& /*stream*/) override {
    return {};
  }
  device::Event start_broadcast(const Tensor& /*data*/, int /*root*/,
                                device::Stream& /*stream*/) override {
    return {};
  }
  device::Event start_exchange(comm::OperationKind /*kind*/, std::vector<Message> /*messages*/,
                               device::Stream& /*stream*/) override {
    return {};
  }
};

TEST(GradientSums, AFailedSumReachesWhoeverWaits) {
  std::vector<float> values(10, 1.0F);
  std::vector<std::uint16_t> narrow(10);
  Failing group;
  const GradientSums sums(group, Tensor(narrow.data(), DType::bf16, {10}));
  device::Stream stream;
  EXPECT_THROW(sums.all_reduce(Tensor(values.data(), {10}), stream).wait(), Error);
}

double norm_of(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  return std::sqrt(squares);
}

/// All gradients of data ranks are rounded, once each, whatever ZeRO shards; the rest is as ever.
TEST(GradientSums, EveryLayoutRoundsAllOfItsGradients) {
  const int ranks = world_size();
  std::vector<LayoutCase> layouts;
  for (const int zero : {0, 1, 2, 3}) {
    layouts.push_back({.data = ranks, .zero = zero, .micro_batch = matrix_batch / ranks});
    if (ranks < 4) continue;
    layouts.push_back({.data = 4, .shard = 2, .zero = zero, .micro_batch = 2});
    layouts.push_back({.pipeline = 2, .data = 2, .zero = zero, .micro_batch = 2});
    layouts.push_back({.tensor = 2, .data = 2, .zero = zero, .micro_batch = matrix_batch / 2});
  }
  for (const LayoutCase& layout : layouts) {
    if (layout.shard == 2 && layout.zero == 0) continue;
    for (const bool offload : {false, true}) {
      RunSettings settings = settings_of(0, {.reproducible = false,
                                             .steps = 3,
                                             .make_device = make_simulated_device,
                                             .offload = offload});
      if (!offload) settings.make_device = {};
      const auto run = [&](DType sent) {
        settings.sent_gradients = sent;
        return run_layout(matrix_models().front().config, layout, settings, MPI_COMM_WORLD);
      };
      const RunResult wide = run(DType::f32), narrow = run(DType::bf16);
      const std::string what = layout.to_string() + (offload ? " offloaded" : "");
      EXPECT_EQ(wide.fault + narrow.fault, "") << what;
      if (ranks == 1) {
        EXPECT_EQ(narrow.losses, wide.losses) << "nothing is sent";
        EXPECT_EQ(narrow.tensors, wide.tensors);
        continue;
      }
      // One micro-batch: what ZeRO 2 and 3 keep is the sum as it was sent. Tied weights have more
      // than one sum.
      const bool as_sent = layout.pipeline == 1;
      for (std::size_t t = 0; t < wide.gradients.size(); ++t) {
        const std::vector<float>&x = wide.gradients[t], &y = narrow.gradients[t];
        std::vector<float> differences;
        for (std::size_t i = 0; i < x.size(); ++i) {
          differences.push_back(x[i] - y[i]);
          if (as_sent) {
            ASSERT_EQ(y[i], rounded(y[i])) << what << " " << wide.names[t];
          }
        }
        // Each rounding is within 2⁻⁹ of its number; contributions of either sign add up to less
        // than they are.
        EXPECT_LE(norm_of(differences), 0x1p-6 * norm_of(x)) << what << " " << wide.names[t];
        if (norm_of(x) > 0) {
          EXPECT_GT(norm_of(differences), 0) << what << " " << wide.names[t];
        }
      }
      for (std::size_t step = 0; step < wide.losses.size(); ++step) {
        EXPECT_NEAR(narrow.losses[step], wide.losses[step], 1e-2 * wide.losses[step]) << what;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::parallel::test
