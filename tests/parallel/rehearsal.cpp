// Rehearsals of a large run: 64 ranks, tensor 4 × pipeline 4 × data 4 with ZeRO 1, and tensor 2 ×
// context 4 × pipeline 2 × data 4, bit for bit the results of one rank.
#include <chrono>
#include <thread>

#include <gtest/gtest.h>
#include <mpi.h>

#include "layouts.hpp"

namespace trireme::parallel::test {
namespace {

/// Waits for all ranks without using a core.
void wait_for_all() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; done == 0;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void rehearse(const model::ModelConfig& config, const LayoutCase& layout,
              const RunSettings& settings = {.steps = 3, .global_batch = 16}) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  ASSERT_EQ(size, layout.ranks());
  RunResult one;
  if (rank == 0) one = run_layout(config, {.micro_batch = 4}, settings, MPI_COMM_SELF);
  wait_for_all();
  const auto begin = std::chrono::steady_clock::now();
  const RunResult found = run_layout(config, layout, settings, MPI_COMM_WORLD);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(found.fault, "");
  wait_for_all();
  if (rank != 0) return;
  EXPECT_EQ(first_difference(one, found), "");
  fmt::print("{} ranks: {} steps, evaluation and comparison in {:.1f} s\n", size, settings.steps,
             spent.count());
}

TEST(Rehearsal, Gpt2) {
  model::ModelConfig config;
  config.layers = 7;
  config.width = 48;
  config.heads = 6;
  config.vocabulary = 101;
  config.sequence = 16;
  config.dropout = config.attention_dropout = 0.1;
  config.resolve();
  rehearse(config, {.tensor = 4, .pipeline = 4, .data = 4, .zero = 1});
}

model::ModelConfig llama() {
  model::ModelConfig config;
  config.layers = 7;
  config.width = 48;
  config.heads = 6;
  config.kv_heads = 2;
  config.hidden = 70;
  config.vocabulary = 101;
  config.sequence = 16;
  config.norm = "rmsnorm";
  config.position = "rotary";
  config.activation = "swiglu";
  config.bias = false;
  config.tied = false;
  config.resolve();
  return config;
}

TEST(Rehearsal, Llama) {
  rehearse(llama(), {.tensor = 4,
                     .pipeline = 4,
                     .data = 4,
                     .zero = 1,
                     .sequence_parallel = true,
                     .schedule = "interleaved",
                     .virtual_stages = 2,
                     .micro_batch = 1});
}

TEST(Rehearsal, Context) {
  rehearse(
      llama(),
      {.tensor = 2, .pipeline = 2, .data = 4, .zero = 1, .sequence_parallel = true, .context = 4},
      {.steps = 3, .global_batch = 16, .virtual_context = 4, .documents = true});
}

}  // namespace
}  // namespace trireme::parallel::test
