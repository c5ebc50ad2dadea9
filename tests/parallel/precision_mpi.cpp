// Training in narrow types against fp32, on a simulated device that rounds like a real one, and on
// the host.
#include <gtest/gtest.h>

#include "matrix_runs.hpp"

namespace trireme::parallel::test {
namespace {

RunResult run_alone(int model, DType compute, const MakeTestDevice& make_device) {
  const MatrixRuns runs{
      .reproducible = false, .steps = 20, .make_device = make_device, .compute = compute};
  return run_layout(matrix_models()[static_cast<std::size_t>(model)].config, {.micro_batch = 4},
                    settings_of(model, runs), MPI_COMM_SELF);
}

void compare_losses(const MakeTestDevice& make_device) {
  const int models = static_cast<int>(matrix_models().size());
  for (int model = world_rank(); model < models; model += world_size()) {
    const RunResult wide = run_alone(model, DType::f32, make_device);
    const RunResult narrow = run_alone(model, DType::bf16, make_device);
    EXPECT_EQ(narrow.fault, "");
    for (std::size_t step = 0; step < wide.losses.size(); ++step) {
      EXPECT_NEAR(narrow.losses[step], wide.losses[step], 1e-2 * wide.losses[step])
          << matrix_models()[static_cast<std::size_t>(model)].name << " step " << step;
    }
    EXPECT_NE(narrow.losses.front(), wide.losses.front()) << "nothing was rounded";
  }
}

TEST(Precision, LossesInBf16StayWithinOnePercent) { compare_losses(make_simulated_device); }

TEST(Precision, LossesInBf16OnTheHostStayWithinOnePercent) { compare_losses({}); }

/// Rounded by the bits of seed, step and element: every layout reads the same weights.
TEST(Precision, StochasticRoundingIsTheSameInEveryLayout) {
  const int ranks = world_size();
  std::vector<LayoutCase> layouts{{.data = ranks, .zero = 0, .micro_batch = 2},
                                  {.data = ranks, .zero = 3, .micro_batch = 2},
                                  {.tensor = ranks, .micro_batch = 4},
                                  {.pipeline = std::min(ranks, 2), .data = (ranks + 1) / 2}};
  for (const int model : {0, 3}) {
    const auto run = [&](const LayoutCase& layout, MPI_Comm comm, bool stochastic,
                         const MakeTestDevice& make_device, bool offload) {
      RunSettings settings = settings_of(
          model,
          {.steps = 3, .make_device = make_device, .compute = DType::bf16, .offload = offload});
      settings.stochastic = stochastic;
      return run_layout(matrix_models()[static_cast<std::size_t>(model)].config, layout, settings,
                        comm);
    };
    const LayoutCase alone{.micro_batch = 4};
    for (const bool simulated : {false, true}) {
      const MakeTestDevice make = simulated ? make_simulated_device : MakeTestDevice();
      const RunResult one = run(alone, MPI_COMM_SELF, true, make, false);
      const RunResult nearest = run(alone, MPI_COMM_SELF, false, make, false);
      EXPECT_NE(one.losses, nearest.losses);
      for (std::size_t step = 0; step < one.losses.size(); ++step) {
        EXPECT_NEAR(one.losses[step], nearest.losses[step], 1e-2 * nearest.losses[step]);
      }
      for (const LayoutCase& layout : layouts) {
        for (const bool offload : {false, true}) {
          if (offload && !simulated) continue;
          EXPECT_EQ(first_difference(one, run(layout, MPI_COMM_WORLD, true, make, offload)), "")
              << layout.to_string() << " simulated " << simulated << " offload " << offload;
        }
      }
    }
  }
}

/// A bf16 copy of the weights, and masters that operations round as they read them: the same bits.
TEST(Precision, MastersReadDirectlyMatchARoundedCopyBitForBit) {
  const int models = static_cast<int>(matrix_models().size());
  for (int model = world_rank(); model < models; model += world_size()) {
    for (const bool reproducible : {false, true}) {
      const auto recompute = reproducible ? model::Recompute::none : model::Recompute::cheap;
      const auto run = [&](bool copies) {
        RunSettings settings =
            settings_of(model, {.reproducible = reproducible, .steps = 3, .compute = DType::bf16});
        settings.copies = copies;
        return run_layout(matrix_models()[static_cast<std::size_t>(model)].config,
                          {.micro_batch = 2, .threads = 2, .recompute = recompute}, settings,
                          MPI_COMM_SELF);
      };
      const RunResult copied = run(true), direct = run(false);
      EXPECT_EQ(copied.fault + direct.fault, "");
      const std::string& name = matrix_models()[static_cast<std::size_t>(model)].name;
      EXPECT_EQ(copied.losses, direct.losses) << name;
      EXPECT_EQ(copied.tensors, direct.tensors) << name;
      if (reproducible) {
        EXPECT_EQ(first_difference(copied, direct), "") << name;
      }
    }
  }
}

/// With masters a run follows the fp32 one even if updates are too small for the narrow type.
TEST(Precision, SmallUpdatesAreKeptInMasters) {
  const MatrixModel& model = matrix_models().front();
  const RunSettings settings = settings_of(
      0, {.reproducible = false, .make_device = make_simulated_device, .compute = DType::bf16});
  LayoutRun run(model.config, {.micro_batch = 4}, stage_options({.micro_batch = 4}, settings),
                MPI_COMM_SELF, settings.make_device);
  run.replica.initialize();
  const state::ModelState& state = run.replica.state();
  const auto read = [&](const Tensor& tensor) {
    std::vector<std::byte> bytes(tensor.bytes());
    device::read(*run.device.device, bytes.data(), tensor);
    return bytes;
  };
  const auto masters = read(state.parameters()), values = read(state.own_values(0));
  ASSERT_EQ(state.parameters().type(), DType::f32);
  ASSERT_EQ(state.own_values(0).type(), DType::bf16);
  run.replica.backward(make_batches(model.config, {.micro_batch = 4}, 0, 0, matrix_batch));
  run.replica.update(1e-9, 0, 1);
  EXPECT_NE(read(state.parameters()), masters);
  EXPECT_EQ(read(state.own_values(0)), values);
}

}  // namespace
}  // namespace trireme::parallel::test
