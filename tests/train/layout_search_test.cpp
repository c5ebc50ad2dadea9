// The search for a layout against trying all of them.
#include "trireme/train/layout_search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/plan/step_time.hpp"

#include "plan/machines.hpp"

namespace trireme::train::test {
namespace {

RunConfig small_run() {
  RunConfig config;
  config.model.layers = 4;
  config.model.width = 256;
  config.model.heads = 4;
  config.model.vocabulary = 512;
  config.model.sequence = 128;
  config.train.batch = 32;
  config.numerics.reproducible = false;
  config.precision.compute = "bf16";
  config.device.type = "cuda";
  return config;
}

LayoutFacts facts_of(int world) {
  return {.world = world, .schedule_text = {}, .host = false, .planned = true};
}

/// As the search predicts it; nothing where the layout cannot be.
std::optional<double> seconds_of(RunConfig config, const LayoutFacts& facts,
                                 const plan::Machine& machine) {
  try {
    validate_layout(config, facts);
    const comm::GridShape shape = grid_shape(config, facts);
    return plan::predict_step(model::Transformer(config.model),
                              replica_options(config, stage_options(config, shape, facts), 1),
                              shape, machine)
        .seconds;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

constexpr std::int64_t plenty = std::int64_t{1} << 40;

TEST(LayoutSearch, FindsTheBestOfAllLayouts) {
  for (const double network : {50.0, 0.5}) {
    plan::Machine machine = plan::test::gpu_machine();
    machine.ranks_per_node = 2;
    machine.network.gb_per_s = network;
    const LayoutFacts facts = facts_of(4);
    double best = 1e9;
    int tried = 0;
    for (const int tensor : {1, 2, 4}) {
      for (const int pipeline : {1, 2, 4}) {
        if (tensor * pipeline > 4) continue;
        for (const int micro : {1, 2, 4, 8, 16, 32}) {
          for (const int zero : {0, 1, 2, 3}) {
            for (const char* schedule : {"1f1b", "zero-bubble", "interleaved"}) {
              for (const bool sequence : {false, true}) {
                RunConfig config = small_run();
                config.parallel.tensor = tensor;
                config.parallel.pipeline = pipeline;
                config.parallel.zero = zero;
                config.parallel.schedule = schedule;
                config.parallel.virtual_stages = config.parallel.schedule == "interleaved" ? 2 : 1;
                config.parallel.sequence = sequence;
                config.parallel.recompute = "none";
                config.train.micro_batch = micro;
                const auto seconds = seconds_of(config, facts, machine);
                if (!seconds) continue;
                ++tried;
                best = std::min(best, *seconds);
              }
            }
          }
        }
      }
    }
    EXPECT_GT(tried, 100);
    const LayoutSearch found = search_layouts(small_run(), facts, machine, plenty, [](int) {});
    ASSERT_FALSE(found.fitting.empty());
    EXPECT_LE(found.fitting.front().times.seconds, 1.0001 * best) << network;
    EXPECT_LT(found.simulated, tried);
    for (std::size_t i = 1; i < found.fitting.size(); ++i) {
      EXPECT_LE(found.fitting[i - 1].times.seconds, found.fitting[i].times.seconds);
    }
  }
}

TEST(LayoutSearch, KeepsToTheMemoryAndNamesTheNearest) {
  const plan::Machine machine = plan::test::gpu_machine();
  const LayoutFacts facts = facts_of(4);
  const LayoutSearch all = search_layouts(small_run(), facts, machine, plenty, [](int) {});
  const std::int64_t limit = all.fitting.front().memory / 2;
  const LayoutSearch less = search_layouts(small_run(), facts, machine, limit, [](int) {});
  ASSERT_FALSE(less.fitting.empty());
  for (const FoundLayout& each : less.fitting) EXPECT_LE(each.memory, limit);
  EXPECT_GE(less.fitting.front().times.seconds, all.fitting.front().times.seconds);
  const LayoutSearch none = search_layouts(small_run(), facts, machine, 1000, [](int) {});
  EXPECT_TRUE(none.fitting.empty());
  EXPECT_GT(none.nearest.memory, 1000);
}

// A context degree is kept: the other axes share what it leaves.
TEST(LayoutSearch, KeepsTheContextDegree) {
  RunConfig config = small_run();
  config.parallel.context = 4;
  config.train.batch = 2;
  const LayoutSearch found =
      search_layouts(config, facts_of(8), plan::test::gpu_machine(), plenty, [](int) {});
  ASSERT_FALSE(found.fitting.empty());
  for (const FoundLayout& each : found.fitting) {
    EXPECT_EQ(each.shape.of(comm::Axis::context), 4);
    EXPECT_EQ(each.shape.size(), 8);
  }
  EXPECT_EQ(layout_keys(found.fitting.front().config)["parallel"]["context"], 4);
}

TEST(LayoutSearch, RefusesABatchThatNoLayoutDivides) {
  RunConfig config = small_run();
  config.train.batch = 1;
  config.model.heads = 3;
  config.model.width = 96;
  config.model.layers = 2;
  EXPECT_THROW(search_layouts(config, facts_of(5), plan::test::gpu_machine(), plenty, [](int) {}),
               AgreedError);
}

}  // namespace
}  // namespace trireme::train::test
