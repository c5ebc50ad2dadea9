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
      {.micro_batch = 2, .recompute = model::Recompute::cheap},
      {.micro_batch = 2, .recompute = model::Recompute::selective, .exact_gelu = false},
      {.recompute = model::Recompute::full, .exact_gelu = false},
      {.micro_batch = 2, .recompute = model::Recompute::selective},
      {.micro_batch = 2, .recompute = model::Recompute::full},
      {.schedule = "gpipe"},
      {.schedule = "zero-bubble"},
      {.schedule = "zero-bubble", .recompute = model::Recompute::cheap},
      // Schedule files may split the backward of some micro-batches and not of others.
      {.schedule = "file:mixed", .schedule_text = "0F0,0B0,0F1,0I1,0W1", .micro_batch = 4},
      {.pipeline = 2,
       .schedule = "file:mixed",
       .schedule_text = "0F0,0F1,0B0,0I1,0W1\n1F0,1I0,1W0,1F1,1B1",
       .micro_batch = 4},
      {.tensor = 2,
       .sequence_parallel = true,
       .schedule = "file:mixed",
       .schedule_text = "0F0,0B0,0F1,0I1,0W1",
       .micro_batch = 4,
       .recompute = model::Recompute::cheap},
      {.tensor = 2},
      {.tensor = 2, .sequence_parallel = true, .micro_batch = 2},
      {.tensor = 2, .sequence_parallel = true, .recompute = model::Recompute::selective},
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
      {.data = 4, .zero = 3, .reshard = false, .recompute = model::Recompute::cheap},
      {.data = 4, .shard = 2, .zero = 2},
      {.tensor = 2, .pipeline = 2, .zero = 1, .sequence_parallel = true},
      {.tensor = 2, .data = 2, .zero = 3},
      {.pipeline = 2,
       .data = 2,
       .zero = 3,
       .schedule = "zero-bubble",
       .recompute = model::Recompute::cheap},
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

// Three sequences to a set of gradients, and micro-batches that begin and end inside sets, whose
// sequences add to different sets at once, or have several sets whole.
TEST(Layouts, MicroBatchesCutSets) {
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const bool llama : {false, true}) {
    const model::ModelConfig config = quick_model(llama);
    for (const DType compute : {DType::f32, DType::bf16}) {
      const RunSettings settings{.steps = 2, .global_batch = 24, .compute = compute};
      const RunResult one = run_layout(config, {}, settings, MPI_COMM_SELF);
      for (LayoutCase layout : {LayoutCase{.micro_batch = 2}, LayoutCase{.micro_batch = 4},
                                LayoutCase{.micro_batch = 6}, LayoutCase{.micro_batch = 12},
                                LayoutCase{.micro_batch = 24}, LayoutCase{.tensor = 2},
                                LayoutCase{.data = 2, .zero = 3, .micro_batch = 4},
                                LayoutCase{.schedule = "zero-bubble", .micro_batch = 12},
                                LayoutCase{.pipeline = 2, .data = 2, .micro_batch = 6}}) {
        if (layout.ranks() > size) continue;
        if (layout.tensor == 2) layout.micro_batch = 12;
        MPI_Comm sub = MPI_COMM_NULL;
        MPI_Comm_split(MPI_COMM_WORLD, rank < layout.ranks() ? 0 : MPI_UNDEFINED, rank, &sub);
        if (sub == MPI_COMM_NULL) continue;
        for (layout.threads = 1; layout.threads <= 4; layout.threads += 3) {
          const RunResult found = run_layout(config, layout, settings, sub);
          EXPECT_EQ(first_difference(one, found), "") << name_of(compute) << layout.to_string();
          EXPECT_EQ(found.fault, "") << name_of(compute) << layout.to_string();
        }
        MPI_Comm_free(&sub);
      }
    }
  }
}

// So many blocks of queries that attention's backward divides each head's into parts, whose sum
// must not depend on the number of sequences in a call.
TEST(Layouts, LongSequences) {
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const bool llama : {false, true}) {
    model::ModelConfig config = testing_support::odd_model(llama);
    config.sequence = 600;
    config.resolve();
    for (const DType compute : {DType::f32, DType::bf16}) {
      const RunSettings settings{
          .steps = 1, .global_batch = 4, .virtual_data = 2, .compute = compute};
      const RunResult one = run_layout(config, {}, settings, MPI_COMM_SELF);
      for (const LayoutCase& layout :
           {LayoutCase{.micro_batch = 2}, LayoutCase{.micro_batch = 4},
            LayoutCase{.micro_batch = 4, .threads = 2},
            LayoutCase{.micro_batch = 2, .recompute = model::Recompute::full},
            LayoutCase{.data = 2, .micro_batch = 2}, LayoutCase{.tensor = 2, .micro_batch = 4},
            LayoutCase{.tensor = 2, .sequence_parallel = true, .micro_batch = 2}}) {
        if (layout.ranks() > size) continue;
        MPI_Comm sub = MPI_COMM_NULL;
        MPI_Comm_split(MPI_COMM_WORLD, rank < layout.ranks() ? 0 : MPI_UNDEFINED, rank, &sub);
        if (sub == MPI_COMM_NULL) continue;
        const RunResult found = run_layout(config, layout, settings, sub);
        EXPECT_EQ(first_difference(one, found), "") << name_of(compute) << layout.to_string();
        EXPECT_EQ(found.fault, "") << name_of(compute) << layout.to_string();
        MPI_Comm_free(&sub);
      }
    }
  }
}

// With one group of sequences per data rank, the activations of the only micro-batch alias
// gradients; with several micro-batches or groups they do not.
TEST(Layouts, AliasedGradientsChangeNoBit) {
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const bool llama : {false, true}) {
    const model::ModelConfig config = quick_model(llama);
    for (const int groups : {1, 2}) {
      RunSettings settings{.steps = 3, .virtual_data = groups};
      const RunResult one = run_layout(config, {}, settings, MPI_COMM_SELF);
      for (LayoutCase layout :
           {LayoutCase{.micro_batch = 8 / groups},
            LayoutCase{.micro_batch = 8 / groups, .recompute = model::Recompute::cheap},
            LayoutCase{.schedule = "zero-bubble", .micro_batch = 8 / groups},
            LayoutCase{.tensor = 2, .sequence_parallel = true, .micro_batch = 8 / groups},
            LayoutCase{.pipeline = 2, .micro_batch = 8 / groups},
            LayoutCase{.zero = 1, .micro_batch = 8 / groups}}) {
        layout.data = groups;
        if (layout.ranks() > size) continue;
        for (const bool simulated : {false, true}) {
          if (simulated && (llama || layout.recompute == model::Recompute::none)) continue;
          settings.make_device = simulated ? make_simulated_device : MakeTestDevice();
          MPI_Comm sub = MPI_COMM_NULL;
          MPI_Comm_split(MPI_COMM_WORLD, rank < layout.ranks() ? 0 : MPI_UNDEFINED, rank, &sub);
          if (sub == MPI_COMM_NULL) continue;
          StageOptions options = stage_options(layout, settings);
          options.place.tensor = layout.tensor;
          options.place.pipeline = layout.pipeline;
          options.place.data = layout.data;
          const model::Transformer model(config);
          const std::vector<bool> aliased = Stage(model, options).memory().aliased();
          EXPECT_NE(std::count(aliased.begin(), aliased.end(), true), 0) << layout.to_string();
          const RunResult found = run_layout(config, layout, settings, sub);
          EXPECT_EQ(first_difference(one, found), "") << layout.to_string();
          EXPECT_EQ(found.fault, "") << layout.to_string();
          MPI_Comm_free(&sub);
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::parallel::test
