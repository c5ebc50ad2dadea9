// One layout of each kind against one rank. tests/parallel/layout_matrix.cpp combines them.
#include <gtest/gtest.h>
#include <mpi.h>

#include "layouts.hpp"

namespace trireme::parallel::test {
namespace {

model::ModelConfig quick_model(bool llama) {
  model::ModelConfig config = testing_support::odd_model(llama);
  config.layers = 3;
  config.dropout = llama ? 0 : 0.1;
  config.attention_dropout = llama ? 0 : 0.1;
  config.resolve();
  return config;
}

TEST(Layouts, EqualOneRankBitForBit) {
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<LayoutCase> cases = {
      {.micro_batch = 2},
      {.micro_batch = 4, .threads = 2},
      {.micro_batch = 2, .recompute = model::Recompute::selective},
      {.micro_batch = 2, .recompute = model::Recompute::full},
      {.schedule = "gpipe"},
      {.schedule = "zero-bubble"},
      // Files may split the backward of some micro-batches and do that of others whole.
      {.schedule = "file:mixed", .schedule_text = "0F0,0B0,0F1,0I1,0W1", .micro_batch = 4},
      {.pipeline = 2,
       .schedule = "file:mixed",
       .schedule_text = "0F0,0F1,0B0,0I1,0W1\n1F0,1I0,1W0,1F1,1B1",
       .micro_batch = 4},
      {.tensor = 2,
       .sequence_parallel = true,
       .schedule = "file:mixed",
       .schedule_text = "0F0,0B0,0F1,0I1,0W1",
       .micro_batch = 4},
      {.tensor = 2},
      {.tensor = 2, .sequence_parallel = true, .micro_batch = 2},
      {.tensor = 4},
      {.tensor = 4, .sequence_parallel = true},
      {.pipeline = 2},
      {.pipeline = 2, .schedule = "gpipe"},
      {.pipeline = 2, .schedule = "zero-bubble"},
      {.pipeline = 2, .schedule = "interleaved", .virtual_stages = 2},
      {.pipeline = 4},
      {.data = 2},
      {.data = 2, .zero = 1},
      {.data = 2, .zero = 2},
      {.data = 2, .zero = 3},
      {.data = 4, .zero = 3, .reshard = false},
      {.data = 4, .shard = 2, .zero = 2},
      {.tensor = 2, .pipeline = 2, .zero = 1, .sequence_parallel = true},
      {.tensor = 2, .data = 2, .zero = 3},
      {.pipeline = 2, .data = 2, .zero = 3, .schedule = "zero-bubble"},
  };
  for (const bool llama : {false, true}) {
    const model::ModelConfig config = quick_model(llama);
    const RunSettings settings{.steps = 3};
    const RunResult one = run_layout(config, {}, settings, MPI_COMM_SELF);
    for (const LayoutCase& layout : cases) {
      if (layout.ranks() > size) continue;
      MPI_Comm sub = MPI_COMM_NULL;
      MPI_Comm_split(MPI_COMM_WORLD, rank < layout.ranks() ? 0 : MPI_UNDEFINED, rank, &sub);
      if (sub == MPI_COMM_NULL) continue;
      const RunResult found = run_layout(config, layout, settings, sub);
      EXPECT_EQ(first_difference(one, found), "")
          << (llama ? "llama: " : "gpt2: ") << layout.to_string();
      EXPECT_EQ(found.fault, "") << layout.to_string();
      MPI_Comm_free(&sub);
    }
  }
}

}  // namespace
}  // namespace trireme::parallel::test
