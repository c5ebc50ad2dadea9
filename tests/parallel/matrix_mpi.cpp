// Layouts against one rank.
#include <cstring>

#include <gtest/gtest.h>
#include <mpi.h>

#include "layouts.hpp"

namespace trireme::parallel::test {
namespace {

model::ModelConfig matrix_model(bool llama) {
  model::ModelConfig config = testing_support::odd_model(llama);
  config.layers = 3;
  config.dropout = llama ? 0 : 0.1;
  config.attention_dropout = llama ? 0 : 0.1;
  config.resolve();
  return config;
}

std::string difference(const RunResult& a, const RunResult& b) {
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    if (a.losses[i] != b.losses[i]) {
      return fmt::format("loss of step {}: {:.17g} and {:.17g}", i, a.losses[i], b.losses[i]);
    }
    if (i == 0) {
      for (std::size_t t = 0; t < a.gradients.size(); ++t) {
        for (std::size_t e = 0; e < a.gradients[t].size(); ++e) {
          if (std::memcmp(&a.gradients[t][e], &b.gradients[t][e], 4) != 0) {
            return fmt::format("gradient {}[{}]: {:.9g} and {:.9g}", a.names[t], e,
                               a.gradients[t][e], b.gradients[t][e]);
          }
        }
      }
    }
    if (a.norms[i] != b.norms[i]) {
      return fmt::format("gradient norm of step {}: {:.17g} and {:.17g}", i, a.norms[i],
                         b.norms[i]);
    }
  }
  for (std::size_t t = 0; t < a.tensors.size(); ++t) {
    for (std::size_t e = 0; e < a.tensors[t].size(); ++e) {
      if (std::memcmp(&a.tensors[t][e], &b.tensors[t][e], 4) != 0) {
        return fmt::format("{}[{}]: {:.9g} and {:.9g}", a.names[t], e, a.tensors[t][e],
                           b.tensors[t][e]);
      }
    }
  }
  return {};
}

TEST(Matrix, Quick) {
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
    const model::ModelConfig config = matrix_model(llama);
    const RunSettings settings{.steps = 3};
    const RunResult one = run_layout(config, {}, settings, MPI_COMM_SELF);
    for (const LayoutCase& layout : cases) {
      if (layout.ranks() > size) continue;
      MPI_Comm sub = MPI_COMM_NULL;
      MPI_Comm_split(MPI_COMM_WORLD, rank < layout.ranks() ? 0 : MPI_UNDEFINED, rank, &sub);
      if (sub == MPI_COMM_NULL) continue;
      const RunResult found = run_layout(config, layout, settings, sub);
      const std::string wrong = difference(one, found);
      if (rank == 0) {
        EXPECT_EQ(wrong, "") << (llama ? "llama: " : "gpt2: ") << layout.to_string();
      }
      MPI_Comm_free(&sub);
    }
  }
}

}  // namespace
}  // namespace trireme::parallel::test
