// The first product of a step writes a weight's gradient. What the memory held does not matter, and
// nothing is added twice, overwritten or lost.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "parallel/layouts.hpp"

namespace trireme::parallel::test {
namespace {

constexpr int global_batch = 10;

model::ModelConfig small(bool tied) {
  model::ModelConfig config;
  config.layers = 8;
  config.width = 32;
  config.heads = 4;
  config.vocabulary = 67;
  config.sequence = 8;
  config.tied = tied;
  config.resolve();
  return config;
}

using Gradients = std::vector<std::vector<float>>;

/// Of the second of two steps with the initial parameters. `poisoned`: all memory of gradients
/// holds NaN before each.
Gradients gradients_of(const model::ModelConfig& config, const LayoutCase& layout,
                       const StageOptions& options, MPI_Comm ranks, int samples, bool poisoned) {
  LayoutRun run(config, layout, options, ranks);
  run.replica.initialize();
  const state::ModelState& state = run.replica.state();
  for (std::int64_t step = 0; step < 2; ++step) {
    const float held = poisoned ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
    for (int s = 0; s < state.options().sets; ++s) {
      run.replica.ops().fill(state.flat_gradients(s), held);
    }
    run.replica.ops().fill(state.gradients(), held);
    const int data_rank = run.grid.coordinate(comm::Axis::data);
    const StepSums sums =
        run.replica.backward(make_batches(config, layout, data_rank, step, samples));
    EXPECT_TRUE(std::isfinite(sums.gradient_norm)) << layout.to_string();
  }
  return run.gradients();
}

/// Sums in another order differ by some roundings of 6e-8; a micro-batch of ten that is lost or
/// counted twice, by about a tenth.
void expect_near(const Gradients& actual, const Gradients& expected, const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t t = 0; t < expected.size(); ++t) {
    float largest = 0, difference = 0;
    ASSERT_EQ(actual[t].size(), expected[t].size());
    for (std::size_t i = 0; i < expected[t].size(); ++i) {
      largest = std::max(largest, std::abs(expected[t][i]));
      const float own = std::abs(actual[t][i] - expected[t][i]);
      difference =
          std::isnan(own) ? std::numeric_limits<float>::infinity() : std::max(difference, own);
    }
    EXPECT_GT(largest, 0) << where << ", tensor " << t;
    EXPECT_LE(difference, 1e-4F * largest) << where << ", tensor " << t;
  }
}

bool same_bytes(const Gradients& actual, const Gradients& expected) {
  return std::equal(actual.begin(), actual.end(), expected.begin(), expected.end(),
                    [](const std::vector<float>& a, const std::vector<float>& b) {
                      return a.size() == b.size() &&
                             std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
                    });
}

TEST(FirstGradients, AreThoseOfOneMicroBatchOnOneRank) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::vector<LayoutCase> layouts;
  for (int zero = 0; zero < 4; ++zero) {
    if (ranks < 3) layouts.push_back({.data = ranks, .zero = zero});
    for (const char* schedule : {"1f1b", "gpipe"}) {
      layouts.push_back({.pipeline = ranks, .zero = zero, .schedule = schedule});
    }
    if (ranks > 1) layouts.push_back({.pipeline = ranks, .zero = zero, .schedule = "zero-bubble"});
    if (ranks > 1) {
      layouts.push_back(
          {.pipeline = ranks, .zero = zero, .schedule = "interleaved", .virtual_stages = 2});
    }
  }
  if (ranks == 1) layouts.push_back({.micro_batch = 2});  // one in both sets
  layouts.push_back({.tensor = ranks, .sequence_parallel = ranks > 1});
  for (const bool tied : {true, false}) {
    const model::ModelConfig config = small(tied);
    const LayoutCase whole{.micro_batch = global_batch};
    const auto expected = [&](const RunSettings& settings) {
      return gradients_of(config, whole, stage_options(whole, settings), MPI_COMM_SELF,
                          global_batch, false);
    };
    const RunSettings fast{.global_batch = global_batch, .reproducible = false};
    // Two sets of gradients, each of five sequences.
    const RunSettings same_bits{.global_batch = global_batch, .virtual_data = 2};
    // One set, so that activations may alias gradients.
    const RunSettings one_set{.global_batch = global_batch, .virtual_data = 1};
    const Gradients near = expected(fast);
    const Gradients of_two_sets = expected(same_bits), of_one_set = expected(one_set);
    expect_near(of_two_sets, near, "one rank, reproducible");
    expect_near(of_one_set, near, "one rank, reproducible, one set");
    for (const LayoutCase& layout : layouts) {
      for (const RunSettings& settings : {fast, same_bits, one_set}) {
        if (settings.reproducible && settings.virtual_data < layout.data) continue;
        for (const bool poisoned : {false, true}) {
          const Gradients actual = gradients_of(config, layout, stage_options(layout, settings),
                                                MPI_COMM_WORLD, global_batch, poisoned);
          const std::string where =
              layout.to_string() + (tied ? ", tied" : "") + (poisoned ? ", poisoned" : "");
          if (settings.reproducible) {
            const Gradients& equal = settings.virtual_data == 2 ? of_two_sets : of_one_set;
            EXPECT_TRUE(same_bytes(actual, equal)) << where;
          } else {
            expect_near(actual, near, where);
          }
        }
      }
    }
  }
}

// The head's blocks of rows: only the first one writes.
TEST(FirstGradients, OfAHeadInSeveralBlocks) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks > 1) GTEST_SKIP() << "one rank has the whole head";
  model::ModelConfig config = small(false);
  config.layers = 1;
  config.width = 16;
  config.vocabulary = 200'000;
  config.sequence = 160;
  config.resolve();
  const auto rows = [&](bool on_gpu) {
    return model::Head::block_rows(config.sequence, config.width, config.vocabulary, DType::f32,
                                   on_gpu);
  };
  ASSERT_EQ(rows(true), config.sequence);
  ASSERT_LT(2 * rows(false), config.sequence);
  const LayoutCase layout;
  const RunSettings settings{.global_batch = 2, .reproducible = false};
  StageOptions options = stage_options(layout, settings);
  options.products_on_gpu = true;  // as one block
  const Gradients expected = gradients_of(config, layout, options, MPI_COMM_SELF, 2, false);
  options.products_on_gpu = false;
  expect_near(gradients_of(config, layout, options, MPI_COMM_SELF, 2, true), expected, "blocks");
}

}  // namespace
}  // namespace trireme::parallel::test
