// The ranks that a plan looks at against all ranks, one by one.
#include "trireme/plan/ranks.hpp"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/model/block.hpp"
#include "trireme/plan/memory.hpp"

namespace trireme::plan::test {
namespace {

model::ModelConfig small_model(bool llama) {
  model::ModelConfig config;
  config.layers = 3;
  config.width = 120;
  config.heads = 6;
  config.vocabulary = 997;
  config.sequence = 35;
  config.tied = !llama;
  if (llama) {
    config.kv_heads = 2;
    config.norm = "rmsnorm";
    config.activation = "swiglu";
    config.position = "rotary";
    config.bias = false;
  }
  config.resolve();
  return config;
}

struct RanksCase {
  bool llama;
  int tensor, data, shard, zero;
  bool snapshots, reproducible;
};

comm::GridShape grid_of(const RanksCase& layout) {
  comm::GridShape shape{{layout.tensor, 1, layout.data, 1}, layout.shard};
  const int tiles = layout.reproducible ? parallel::StageOptions().virtual_tensor : layout.tensor;
  shape.kv = model::Attention::kv_ranks(small_model(layout.llama), layout.tensor, tiles,
                                        layout.reproducible);
  return shape;
}

std::int64_t bytes_of(const parallel::Stage& stage, const RanksCase& layout, int rank) {
  MemoryQuestion question;
  question.shape = grid_of(layout);
  question.rank = rank;
  question.snapshots = layout.snapshots;
  const auto memory = predict_memory(stage, question);
  return std::accumulate(memory.begin(), memory.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& use) { return sum + use.second; });
}

parallel::StageOptions stage_options_of(const RanksCase& layout, int rank) {
  const comm::GridShape shape = grid_of(layout);
  parallel::StageOptions options{.micro_batches = 8 / layout.data,
                                 .zero = layout.zero,
                                 .sequence_parallel = layout.tensor % 2 == 1,
                                 .reproducible = layout.reproducible};
  options.place = parallel::place_of(shape, rank, false);
  return options;
}

void expect_fullest(const RanksCase& layout) {
  SCOPED_TRACE(
      fmt::format("llama {} tensor {} data {} shard {} zero {} snapshots {} reproducible {}",
                  layout.llama, layout.tensor, layout.data, layout.shard, layout.zero,
                  layout.snapshots, layout.reproducible));
  const model::Transformer model(small_model(layout.llama));
  const comm::GridShape shape = grid_of(layout);
  std::int64_t most = 0;
  for (int rank = 0; rank < shape.size(); ++rank) {
    most = std::max(most, bytes_of({model, stage_options_of(layout, rank)}, layout, rank));
  }
  std::int64_t found = 0;
  const parallel::Pipeline pipeline(model, stage_options_of(layout, 0));
  for (const int tensor : distinct_tensor_ranks(model, stage_options_of(layout, 0))) {
    parallel::Stage stage(model, stage_options_of(layout, tensor), pipeline);
    for (const int data : fullest_data_ranks(stage, layout.data, layout.snapshots)) {
      stage.move_to(data);
      found = std::max(found, bytes_of(stage, layout, shape.rank({tensor, 0, data, 0})));
    }
  }
  EXPECT_EQ(found, most);
}

TEST(PlannedRanks, HoldTheMost) {
  for (const bool llama : {false, true}) {
    for (const int tensor : {1, 3, 4}) {
      for (const int zero : {0, 1, 2, 3}) {
        expect_fullest({llama, tensor, 8, 8, zero, true, false});
        expect_fullest({llama, tensor, 8, 4, zero, false, false});
        if (tensor != 3) expect_fullest({llama, tensor, 4, 2, zero, true, true});
      }
    }
  }
}

TEST(PlannedRanks, AreFewOfMany) {
  model::ModelConfig config = small_model(true);
  config.width = 4096;
  config.heads = 32;
  config.kv_heads = 8;
  config.hidden = 14336;
  config.layers = 32;
  const model::Transformer model(config);
  const RanksCase layout{true, 64, 100'000, 100'000, 3, true, false};
  parallel::StageOptions options = stage_options_of(layout, 0);
  options.micro_batches = 1;
  EXPECT_LE(distinct_tensor_ranks(model, options).size(), 16);  // 35 tokens and 997 ids on 64
  EXPECT_LE(fullest_data_ranks({model, options}, layout.data, true).size(), 20);
}

// Shares of all ranks at once, against each rank's.
TEST(PlannedRanks, WriteWhatEachRankWrites) {
  const model::Transformer model(small_model(true));
  for (const int rank : {0, 1, 2}) {
    const parallel::Stage stage(model, stage_options_of({true, 3, 8, 8, 3, true, false}, rank));
    const auto whole = checkpoint::piece_elements(stage.layout(), {stage.layout(), 8, 0});
    const auto shards = checkpoint::piece_elements(stage.layout(), stage.shards());
    for (int data = 0; data < 8; ++data) {
      const checkpoint::Writers writers{data, 8};
      const auto d = static_cast<std::size_t>(data);
      EXPECT_EQ(whole[d],
                checkpoint::piece_elements(stage.layout(), stage.shards(), false, writers));
      EXPECT_EQ(shards[d], checkpoint::piece_elements(stage.layout(), stage.shards().of_rank(data),
                                                      true, writers));
    }
  }
}

}  // namespace
}  // namespace trireme::plan::test
