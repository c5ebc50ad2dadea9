// Bytes on the wire in one step of the fast mode, counted by the communicators, against published
// formulas: Rajbhandari et al., "ZeRO" (2020), section 7; Narayanan et al. (2021), section 3.2;
// Korthikanti et al. (2022), section 4.2.2.
#include <map>

#include <gtest/gtest.h>
#include <mpi.h>

#include "layouts.hpp"

namespace trireme::parallel::test {
namespace {

constexpr int ranks = 4;
constexpr std::int64_t word = sizeof(float);

/// Many narrow blocks, so that what stays gathered (the last unit between forward and backward, the
/// first between micro-batches) is under 5 % of the parameters.
model::ModelConfig deep_model() {
  model::ModelConfig config;
  config.layers = 32;
  config.width = 16;
  config.heads = 2;
  config.vocabulary = 13;
  config.sequence = 8;
  config.tied = false;
  config.resolve();
  return config;
}

/// A step with `global_batch` sequences; bytes that all ranks together sent, by group.
struct Counted {
  std::map<std::string, double> bytes;
  std::map<std::string, double> most;  // of one rank
  std::int64_t parameters = 0;
  int micro_batches = 0;
};

Counted count(const model::ModelConfig& config, const LayoutCase& layout, int global_batch,
              DType sent_gradients = DType::f32) {
  const RunSettings settings{
      .global_batch = global_batch, .reproducible = false, .sent_gradients = sent_gradients};
  const StageOptions options = stage_options(layout, settings);
  LayoutRun run(config, layout, options, MPI_COMM_WORLD);
  run.replica.initialize();
  Counted counted{.parameters = run.model.table().elements(),
                  .micro_batches = options.micro_batches};
  for (int step = 0; step < 2; ++step) {
    MPI_Barrier(MPI_COMM_WORLD);
    run.grid.reset_traffic();
    const StepSums sums = run.replica.backward(
        make_batches(config, layout, run.grid.coordinate(comm::Axis::data), step, global_batch));
    run.replica.update(1e-3, step, optim::clip_factor(sums.gradient_norm, 1.0));
  }
  for (const auto& [name, traffic] : run.grid.traffic()) {
    auto own = static_cast<double>(traffic.total().bytes);
    MPI_Allreduce(&own, &counted.bytes[name], 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&own, &counted.most[name], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }
  return counted;
}

bool four_ranks() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size == ranks;
}

/// A sum over n ranks of (n−1)/n times `elements` each.
double sent(int n, double elements) { return (n - 1) * elements * static_cast<double>(word); }

void expect_volume(double found, double expected, const std::string& what) {
  EXPECT_NEAR(found, expected, 0.05 * expected) << what;
}

// In units of (n−1)/n·Ψ per rank, with m micro-batches.
TEST(Volume, OfDataParallelState) {
  if (!four_ranks()) GTEST_SKIP() << "for " << ranks << " ranks";
  const model::ModelConfig config = deep_model();
  struct Case {
    int zero;
    bool reshard;
    double per_step, per_micro_batch;
  };
  for (const Case& each : {Case{0, true, 2, 0}, Case{1, true, 2, 0}, Case{2, true, 1, 1},
                           Case{3, true, 0, 3}, Case{3, false, 0, 2}}) {
    for (const int micro_batches : {1, 3}) {
      const LayoutCase layout{.data = ranks, .zero = each.zero, .reshard = each.reshard};
      const Counted counted = count(config, layout, ranks * micro_batches);
      ASSERT_EQ(counted.micro_batches, micro_batches);
      const double factor = each.per_step + each.per_micro_batch * micro_batches;
      const auto parameters = static_cast<double>(counted.parameters);
      const std::string what = layout.to_string() + fmt::format(" m {}", micro_batches);
      const auto& group = each.zero == 0 ? "data" : "shard";
      expect_volume(counted.bytes.at(group), factor * sent(ranks, parameters), what);
      // Nothing else significant goes over the data axis.
      const auto& other = each.zero == 0 ? "shard" : "data";
      EXPECT_EQ(counted.bytes.at(other) + counted.bytes.at("replica"), 0) << what;
      // All-reduces distribute the work evenly.
      if (each.zero == 0) {
        expect_volume(counted.most.at("data"), factor * sent(ranks, parameters) / ranks, what);
      }
    }
  }
}

// Two shard groups of two: gathers and reductions inside, then each shard is summed over its two
// replicas once a step.
TEST(Volume, OfHybridSharding) {
  if (!four_ranks()) GTEST_SKIP() << "for " << ranks << " ranks";
  const LayoutCase layout{.data = ranks, .shard = 2, .zero = 3};
  const Counted counted = count(deep_model(), layout, ranks * 3);
  const auto parameters = static_cast<double>(counted.parameters);
  expect_volume(counted.bytes.at("shard"), 2 * 3 * 3 * sent(2, parameters), "inside");
  expect_volume(counted.bytes.at("replica"), 2 * 2 * sent(2, parameters / 2), "across");
  EXPECT_EQ(counted.bytes.at("data"), 0);
}

// Gradients in bf16 are half of those bytes: with ZeRO 0 all of the traffic, with ZeRO 1 and 3
// beside gathers of fp32 parameters.
TEST(Volume, OfGradientsInBf16) {
  if (!four_ranks()) GTEST_SKIP() << "for " << ranks << " ranks";
  const auto bytes = [](const LayoutCase& layout, const char* group) {
    const Counted counted = count(deep_model(), layout, ranks, DType::bf16);
    return counted.bytes.at(group) / static_cast<double>(counted.parameters);
  };
  expect_volume(bytes({.data = ranks, .zero = 0}, "data"), 0.5 * 2 * sent(ranks, 1), "zero 0");
  expect_volume(bytes({.data = ranks, .zero = 1}, "shard"), 1.5 * sent(ranks, 1), "zero 1");
  expect_volume(bytes({.data = ranks, .zero = 3}, "shard"), 2.5 * sent(ranks, 1), "zero 3");
  const LayoutCase hybrid{.data = ranks, .shard = 2, .zero = 2};
  expect_volume(bytes(hybrid, "replica"), 0.5 * 2 * 2 * sent(2, 0.5), "hybrid");
}

// Four all-reduces of b·s·h per layer and micro-batch, one for the embedding's output and one for
// the head's input gradient; with sequence parallelism as many pairs of reduce-scatter and
// all-gather, which send as much.
TEST(Volume, OfTensorParallelism) {
  if (!four_ranks()) GTEST_SKIP() << "for " << ranks << " ranks";
  model::ModelConfig config = deep_model();
  config.layers = 5;
  config.width = 64;
  config.heads = config.kv_heads = 4;
  config.hidden = 0;
  config.sequence = 48;
  config.resolve();
  for (const bool sequence_parallel : {false, true}) {
    const LayoutCase layout{
        .tensor = ranks, .sequence_parallel = sequence_parallel, .micro_batch = 2};
    const int batch = 4;
    const Counted counted = count(config, layout, batch);
    const double activation = static_cast<double>(batch * config.sequence * config.width);
    const double times = 4.0 * static_cast<double>(config.layers) + 2;
    expect_volume(counted.bytes.at("tensor"), times * 2 * sent(ranks, activation),
                  layout.to_string());
    EXPECT_EQ(counted.bytes.at("data") + counted.bytes.at("shard"), 0);
  }
}

// Where two ranks have the query heads of one key/value head, they alone add up its gradient, once
// a step; nothing more passes between all tensor ranks.
TEST(Volume, OfSharedKeyValueHeads) {
  if (!four_ranks()) GTEST_SKIP() << "for " << ranks << " ranks";
  model::ModelConfig config = deep_model();
  config.width = 64;
  config.heads = 4;
  config.hidden = 0;
  config.resolve();
  const int batch = 4;
  for (const int kv_heads : {1, 2, 4}) {
    config.kv_heads = kv_heads;
    const LayoutCase layout{.tensor = ranks, .micro_batch = 2};
    const Counted counted = count(config, layout, batch);
    const double activation = static_cast<double>(batch * config.sequence * config.width);
    const auto layers = static_cast<double>(config.layers);
    expect_volume(counted.bytes.at("tensor"), (4 * layers + 2) * 2 * sent(ranks, activation),
                  layout.to_string());
    const int holders = ranks / kv_heads;
    const auto key_and_value =
        static_cast<double>(2 * config.head_size() * (config.width + (config.bias ? 1 : 0)));
    EXPECT_EQ(counted.bytes.at("kv"), layers * kv_heads * 2 * sent(holders, key_and_value))
        << kv_heads;
  }
}

// Keys and values of the key/value heads alone come in forward, in backward and where attention is
// recomputed, and their gradients are reduced once, for every layer and micro-batch; nothing else
// crosses a context group.
TEST(Volume, OfContextParallelism) {
  if (!four_ranks()) GTEST_SKIP() << "for " << ranks << " ranks";
  model::ModelConfig config = deep_model();
  config.layers = 5;
  config.width = 64;
  config.heads = 4;
  config.kv_heads = 2;
  config.hidden = 0;
  config.sequence = 48;
  config.resolve();
  const int batch = 4;
  const auto keys =
      static_cast<double>(batch * config.sequence * 2 * config.kv_heads * config.head_size());
  for (const int context : {2, 4}) {
    for (const bool ring : {false, true}) {
      for (const auto& [recompute, times] :
           {std::pair{model::Recompute::none, 3.0}, {model::Recompute::selective, 4.0}}) {
        const LayoutCase layout{.data = ranks / context,
                                .micro_batch = 2,
                                .recompute = recompute,
                                .context = context,
                                .ring = ring};
        const Counted counted = count(config, layout, batch);
        expect_volume(counted.bytes.at("context"),
                      times * static_cast<double>(config.layers) * sent(context, keys),
                      layout.to_string());
        expect_volume(counted.bytes.at("data"),
                      2 * sent(ranks, static_cast<double>(counted.parameters)), layout.to_string());
      }
    }
  }
}

// Each boundary between virtual stages is crossed by one activation and one gradient of b·s·h per
// micro-batch, split by sequence parallelism and tensor ranks as activations are.
TEST(Volume, OfPipelineParallelism) {
  if (!four_ranks()) GTEST_SKIP() << "for " << ranks << " ranks";
  model::ModelConfig config = deep_model();
  config.layers = 8;
  const int batch = 8;
  const double activation =
      static_cast<double>(batch * config.sequence * config.width) * static_cast<double>(word);
  const auto check = [&](const LayoutCase& layout, double boundaries, double copies) {
    const Counted counted = count(config, layout, batch);
    EXPECT_EQ(counted.bytes.at("activations"), boundaries * copies * activation)
        << layout.to_string();
    EXPECT_EQ(counted.bytes.at("gradients"), boundaries * copies * activation)
        << layout.to_string();
  };
  for (const char* schedule : {"gpipe", "1f1b", "zero-bubble"}) {
    check({.pipeline = 4, .schedule = schedule, .micro_batch = 2}, 3, 1);
  }
  check({.pipeline = 4, .schedule = "interleaved", .virtual_stages = 2}, 7, 1);
  check({.tensor = 2, .pipeline = 2}, 1, 2);
  check({.tensor = 2, .pipeline = 2, .sequence_parallel = true}, 1, 1);
}

// A tied weight's gradient is exchanged once a step between the first and the last stage.
TEST(Volume, OfTiedWeights) {
  if (!four_ranks()) GTEST_SKIP() << "for " << ranks << " ranks";
  model::ModelConfig config = deep_model();
  config.tied = true;
  config.resolve();
  const Counted counted = count(config, {.pipeline = 4}, 8);
  EXPECT_EQ(counted.bytes.at("embedding"),
            2 * sent(2, static_cast<double>(config.vocabulary * config.width)));
}

}  // namespace
}  // namespace trireme::parallel::test
