// Offloaded optimizers: skipped steps, and checks of replicas in host memory.
#include <cmath>

#include <gtest/gtest.h>

#include "trireme/parallel/replica.hpp"

#include "matrix_runs.hpp"

namespace trireme::parallel::test {
namespace {

std::unique_ptr<LayoutRun> make_run(const LayoutCase& layout, DType compute, bool offload) {
  const RunSettings settings = settings_of(
      0, {.make_device = make_simulated_device, .compute = compute, .offload = offload});
  auto run = std::make_unique<LayoutRun>(matrix_models().front().config, layout,
                                         stage_options(layout, settings), MPI_COMM_WORLD,
                                         settings.make_device);
  run->replica.initialize();
  return run;
}

/// Trains in fp16 with a step in between whose gradients overflow and which is skipped.
std::vector<std::vector<float>> train_with_overflow(const LayoutCase& layout, bool offload) {
  const auto run = make_run(layout, DType::f16, offload);
  Replica& replica = run->replica;
  for (int step = 0; step < 3; ++step) {
    const double scale = step == 1 ? 1e30 : 256;
    replica.engine().set_loss_scale(scale);
    const StepSums sums =
        replica.backward(make_batches(matrix_models().front().config, layout,
                                      run->grid.coordinate(comm::Axis::data), step, matrix_batch));
    const double norm = sums.gradient_norm / scale;
    EXPECT_EQ(std::isfinite(norm), step != 1);
    if (step != 1) replica.update(3e-3, step, optim::clip_factor(norm, 1.0) / scale);
  }
  auto tensors =
      gather_logical(replica, replica.state().optimizer_device(), replica.state().parameters(),
                     replica.state().parameters_sharded(), MPI_COMM_WORLD);
  for (const auto& state : replica.optimizer().states()) {
    for (auto& tensor : gather_logical(replica, replica.state().optimizer_device(), state.flat,
                                       layout.zero > 0, MPI_COMM_WORLD)) {
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

TEST(Offload, StepsThatOverflowAreSkippedInFp16) {
  for (const int zero : {0, 1, 3}) {
    const LayoutCase layout{.data = world_size(), .zero = zero, .micro_batch = 2};
    const auto own = train_with_overflow(layout, false), other = train_with_overflow(layout, true);
    ASSERT_EQ(own.size(), other.size());
    for (std::size_t t = 0; t < own.size(); ++t) {
      EXPECT_EQ(hash_of(own[t]), hash_of(other[t])) << layout.to_string() << " tensor " << t;
      EXPECT_TRUE(
          std::all_of(own[t].begin(), own[t].end(), [](float x) { return std::isfinite(x); }));
    }
  }
}

TEST(Offload, ReplicasInHostMemoryAreCompared) {
  const auto run = make_run({.data = world_size(), .micro_batch = 2}, DType::bf16, true);
  check_replicas(run->replica, run->grid, 1);
  if (world_size() == 1) return;
  Flip flip;
  if (world_rank() == 0) flip = flip_bit(run->replica, 5, 1);
  EXPECT_THROW(check_replicas(run->replica, run->grid, 2), AgreedError);
  if (world_rank() == 0) flip.apply();
  check_replicas(run->replica, run->grid, 3);
}

}  // namespace
}  // namespace trireme::parallel::test
