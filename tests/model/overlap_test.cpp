// Communication between tensor ranks overlaps with computation: units on the first rank of a
// simulated group of two, whose operations finish only when they are polled often.
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "trireme/ops/forwarding.hpp"

#include "../../src/comm/common.hpp"
#include "unit_run.hpp"

namespace trireme::model::test {
namespace {

/// An operation whose tensor is NaN from its start until the `polls`-th poll.
class SlowOperation final : public device::Operation {
 public:
  SlowOperation(const Tensor& output, std::function<void()> work, int polls,
                std::atomic<int>& in_flight)
      : output_(output), work_(std::move(work)), left_(polls), in_flight_(in_flight) {}
  void start() override {}
  bool test() override {
    if (--left_ > 0) return false;
    work_();
    --in_flight_;
    return true;
  }

 private:
  Tensor output_;
  std::function<void()> work_;
  int left_;
  std::atomic<int>& in_flight_;
};

/// Rank 0 of two, of which the other one contributes twice as much to sums and gathers halves.
class SlowGroup final : public comm::Communicator {
 public:
  explicit SlowGroup(int polls) : polls_(polls) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  int in_flight() const { return in_flight_; }

 protected:
  device::Event start_reduction(comm::SliceReduction job, device::Stream& stream) override {
    const Tensor to = job.gather ? job.data : job.output;
    std::vector<float> sum(job.data.as<float>(), job.data.as<float>() + to.elements());
    const bool adds = job.reduction == device::Reduction::sum;
    for (float& value : sum) value = adds ? 3 * value : value;
    return enqueue(to, std::move(sum), stream);
  }
  device::Event start_gather(const Tensor& output, const Tensor& input,
                             const std::vector<std::int64_t>& begins,
                             device::Stream& stream) override {
    std::vector<float> all(static_cast<std::size_t>(output.elements()), 0.5F);
    std::copy_n(input.as<float>(), input.elements(), all.begin() + begins[0]);
    return enqueue(output, std::move(all), stream);
  }
  device::Event start_broadcast(const Tensor&, int, device::Stream&) override { return {}; }
  device::Event start_exchange(comm::OperationKind, std::vector<Message>,
                               device::Stream&) override {
    return {};
  }

 private:
  device::Event enqueue(const Tensor& to, std::vector<float> values, device::Stream& stream) {
    const auto work = [to, values = std::move(values)] {
      std::copy(values.begin(), values.end(), to.as<float>());
    };
    if (polls_ == 0) {
      work();
      return {};
    }
    std::fill_n(to.as<float>(), to.elements(), std::numeric_limits<float>::quiet_NaN());
    ++in_flight_;
    return stream.enqueue(std::make_unique<SlowOperation>(to, work, polls_, in_flight_));
  }
  int polls_;
  std::atomic<int> in_flight_{0};
};

/// Calls `before(name, result)` before each operation of the CPU.
class WatchedOps final : public ops::ForwardingOps<WatchedOps> {
 public:
  std::function<void(const std::string& name, const Tensor& result)> before = [](auto&&...) {};
  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    before(name, first(arguments...));
    ((*inner_).*operation)(arguments...);
  }

 private:
  template <class... Rest>
  static const Tensor& first(const Tensor& result, const Rest&...) {
    return result;
  }
  static Tensor first(const ops::RoundedCopy&, const Tensor& result) { return result; }
  std::unique_ptr<ops::Ops> inner_ = ops::make_cpu_ops(1);
};

constexpr std::int64_t width = 16, hidden = 56, sequence = 300;
constexpr int ranks = 2, block_unit = 1, head_unit = 2;

ModelConfig model_of(const std::string& activation, std::int64_t vocabulary) {
  ModelConfig config;
  config.layers = 1;
  config.heads = config.kv_heads = 4;
  config.width = width;
  config.hidden = hidden;
  config.vocabulary = vocabulary;
  config.sequence = sequence;
  config.activation = activation;
  config.dropout = 0.1;
  config.resolve();
  return config;
}

std::vector<float> numbers(std::size_t count, std::uint32_t stream) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(2 * uniform({3, Purpose::initialization, stream}, i) - 1);
  }
  return values;
}

/// A unit on rank 0 of two.
class Overlap {
 public:
  Overlap(int unit, const Options& options, int polls, const std::string& activation = "gelu",
          std::int64_t vocabulary = 41)
      : group(polls), model_(model_of(activation, vocabulary)), unit_(unit), options_(options) {
    tokens_ = {.sequences = 2, .length = sequence};
    for (std::int64_t r = 0; r < tokens_.rows(); ++r) {
      tokens_.inputs.push_back(static_cast<std::int32_t>(r % vocabulary));
      tokens_.targets.push_back(static_cast<std::int32_t>(r * 7 % vocabulary));
      tokens_.positions.push_back(static_cast<std::int32_t>(r % sequence));
      tokens_.weights.push_back(1);
    }
    tokens_.samples = {0, 1};
    std::uint32_t stream = 0;
    for (const params::Parameter& row : model_.table().rows()) {
      for (float value : numbers(static_cast<std::size_t>(row.shape.elements()), ++stream)) {
        parameters_[row.name].push_back(value / 4);
      }
    }
    options_.group = &group;
    options_.ops = &ops;
  }
  Outcome run() {
    const auto size = static_cast<std::size_t>(
        (options_.sequence_parallel ? tokens_.rows() / ranks : tokens_.rows()) * width);
    return UnitRun(model_, unit_, parameters_, tokens_, options_)
        .run(numbers(size, 98), numbers(size, 99));
  }
  SlowGroup group;
  WatchedOps ops;

 private:
  Transformer model_;
  int unit_;
  Options options_;
  Tokens tokens_;
  Parameters parameters_;
};

/// Whether `result` is the gradient of a block's column-parallel weight.
bool is_input_weight(const std::string& name, const Tensor& result) {
  if (name != "matmul" || result.extent(1) != width) return false;
  return result.extent(0) == 3 * width / ranks || result.extent(0) == hidden / ranks;
}

void expect_equal(const Outcome& found, const Outcome& expected, const std::string& what) {
  EXPECT_EQ(found.y, expected.y) << what;
  EXPECT_EQ(found.dx, expected.dx) << what;
  EXPECT_EQ(found.loss, expected.loss) << what;
  EXPECT_EQ(found.gradients, expected.gradients) << what;
  for (const float value : found.dx) ASSERT_TRUE(std::isfinite(value)) << what;
}

// What an operation in flight writes is NaN until it ends, so a result that is read before the wait
// differs.
TEST(Overlap, EveryResultIsWaitedFor) {
  for (const int unit : {block_unit, head_unit}) {
    for (const Recompute recompute :
         {Recompute::none, Recompute::cheap, Recompute::selective, Recompute::full}) {
      for (const bool sequence_parallel : {false, true}) {
        for (const bool split : {false, true}) {
          for (const char* activation : {"gelu", "swiglu"}) {
            const Options options{
                .recompute = recompute, .split = split, .sequence_parallel = sequence_parallel};
            Overlap slow(unit, options, 3, activation), immediate(unit, options, 0, activation);
            expect_equal(
                slow.run(), immediate.run(),
                fmt::format("unit {} recompute {} sequence {} split {} {}", unit,
                            static_cast<int>(recompute), sequence_parallel, split, activation));
          }
        }
      }
    }
  }
}

TEST(Overlap, EveryResultIsWaitedForInReproducibleMode) {
  for (const Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::full}) {
    for (const bool sequence_parallel : {false, true}) {
      const Options options{
          .recompute = recompute, .tiles = 2, .sequence_parallel = sequence_parallel};
      Overlap slow(block_unit, options, 3), immediate(block_unit, options, 0);
      expect_equal(
          slow.run(), immediate.run(),
          fmt::format("recompute {} sequence {}", static_cast<int>(recompute), sequence_parallel));
    }
  }
}

TEST(Overlap, InputWeightsAreMultipliedWhileTheInputsGradientIsSummed) {
  for (const bool sequence_parallel : {false, true}) {
    for (const Recompute recompute : {Recompute::none, Recompute::cheap}) {
      Overlap overlap(block_unit, {.recompute = recompute, .sequence_parallel = sequence_parallel},
                      3);
      int products = 0;
      overlap.ops.before = [&](const std::string& name, const Tensor& result) {
        if (!is_input_weight(name, result)) return;
        ++products;
        EXPECT_EQ(overlap.group.in_flight(), 1) << result.shape().to_string();
      };
      overlap.run();
      EXPECT_EQ(products, 2) << "attention's and the MLP's";
    }
  }
}

TEST(Overlap, AThreadAdvancesTheSumDuringTheProduct) {
  Overlap overlap(block_unit, {.progress = true}, 3);
  overlap.ops.before = [&](const std::string& name, const Tensor& result) {
    if (!is_input_weight(name, result)) return;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (overlap.group.in_flight() > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    EXPECT_EQ(overlap.group.in_flight(), 0);
  };
  overlap.run();
}

// 600 rows are two chunks. Reproducible mode has one.
TEST(Overlap, RowsOfAProductAreSummedWhileTheNextOnesAreMultiplied) {
  for (const int tiles : {1, 2}) {
    Overlap overlap(block_unit, {.tiles = tiles}, 3);
    int during_sums = 0;
    overlap.ops.before = [&](const std::string& name, const Tensor& result) {
      const bool projects = name == "matmul" && result.extent(1) == width &&
                            result.extent(0) == sequence && overlap.group.in_flight() == 1;
      if (projects) ++during_sums;
    };
    overlap.run();
    EXPECT_EQ(during_sums, tiles == 1 ? 2 : 0) << "attention's and the MLP's, " << tiles;
  }
}

// So many logits that the head has several blocks of rows.
TEST(Overlap, TheHeadsBlocksAreSummedWhileTheNextOnesAreMultiplied) {
  constexpr std::int64_t vocabulary = 60001;
  Overlap overlap(head_unit, {}, 3, "gelu", vocabulary);
  int blocks = 0, during_sums = 0;
  overlap.ops.before = [&](const std::string& name, const Tensor& result) {
    if (name != "matmul" || result.extent(1) != vocabulary / ranks) return;
    ++blocks;
    during_sums += overlap.group.in_flight();
  };
  overlap.run();
  EXPECT_GT(blocks, 1);
  EXPECT_EQ(during_sums, blocks - 1);
}

TEST(Overlap, NormsAreGatheredWhileAttentionIsRecomputed) {
  Overlap overlap(block_unit, {.recompute = Recompute::selective, .sequence_parallel = true}, 3);
  int attentions = 0, most = 0;
  overlap.ops.before = [&](const std::string& name, const Tensor&) {
    if (name != "attention") return;
    ++attentions;
    most = overlap.group.in_flight();  // of the recomputation, the second
  };
  overlap.run();
  EXPECT_EQ(attentions, 2);
  EXPECT_EQ(most, 2) << "both norms";
}

TEST(Overlap, ActivationsAreRecomputedWhileTheOutputsGradientIsGathered) {
  Overlap overlap(block_unit, {.recompute = Recompute::cheap, .sequence_parallel = true}, 3,
                  "swiglu");
  int in_flight = 0;
  overlap.ops.before = [&](const std::string& name, const Tensor&) {
    if (name == "swiglu") in_flight = overlap.group.in_flight();  // the last: in backward
  };
  overlap.run();
  EXPECT_EQ(in_flight, 1);
}

}  // namespace
}  // namespace trireme::model::test
