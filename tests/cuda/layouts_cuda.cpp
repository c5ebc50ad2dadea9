// Whole models in the layouts of the matrix on GPUs, shared by several ranks if there are fewer:
// against the CPU, and against one rank. Skipped without a device.
#include <cmath>

#include "trireme/device/cuda.hpp"
#include "trireme/ops/cuda_ops.hpp"

#include "parallel/fast_bounds.hpp"
#include "parallel/matrix_runs.hpp"

namespace trireme::parallel::test {
namespace {

TestDevice make_cuda(int rank) {
  TestDevice made{device::make_cuda_device(rank % device::cuda_device_count()), {}};
  device::Device& own = *made.device;
  made.make_ops = [&own](device::MemoryLedger& ledger, int /*threads*/, bool reproducible) {
    return ops::make_cuda_ops(own, {.ledger = &ledger, .reproducible = reproducible});
  };
  return made;
}

class CudaLayouts : public testing::Test {
 protected:
  void SetUp() override {
    int count = device::cuda_device_count();
    MPI_Allreduce(MPI_IN_PLACE, &count, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (count == 0) GTEST_SKIP() << "no CUDA device: " << device::cuda_description();
  }
};

/// Losses of `other` are within `tolerance` of those of `one`, relatively.
void compare_losses(const std::vector<RunResult>& one, const std::vector<RunResult>& other,
                    double tolerance) {
  for (std::size_t model = 0; model < one.size(); ++model) {
    ASSERT_EQ(one[model].losses.size(), other[model].losses.size());
    for (std::size_t step = 0; step < one[model].losses.size(); ++step) {
      EXPECT_NEAR(other[model].losses[step], one[model].losses[step],
                  tolerance * one[model].losses[step])
          << matrix_models()[model].name << " step " << step;
    }
  }
}

TEST_F(CudaLayouts, LossesOfTwentyStepsMatchTheCpu) {
  MatrixRuns runs{.reproducible = false, .steps = 20};
  const std::vector<RunResult> cpu = references(runs);
  runs.make_device = make_cuda;
  compare_losses(cpu, references(runs), 1e-5);
}

TEST_F(CudaLayouts, LossesInBf16AreWithinOnePercent) {
  MatrixRuns runs{.reproducible = false, .steps = 20};
  const std::vector<RunResult> cpu = references(runs);
  runs.make_device = make_cuda;
  runs.compute = DType::bf16;
  compare_losses(cpu, references(runs), 1e-2);
}

TEST_F(CudaLayouts, ReproducibleEqualsOneRankBitForBit) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const MatrixRuns runs{.steps = 3, .make_device = make_cuda, .compute = compute};
    compare_bits(cases_of(committed_rows()), runs, references(runs));
  }
}

TEST_F(CudaLayouts, GraphsEqualOneRankBitForBit) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    MatrixRuns runs{.steps = 4, .make_device = make_cuda, .compute = compute};
    const std::vector<RunResult> one = references(runs);
    runs.graphs = true;
    compare_bits(cases_of(committed_rows()), runs, one);
  }
}

/// The CPU's update and the device's round alike by design.
TEST_F(CudaLayouts, OffloadedEqualsOneRankBitForBit) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    MatrixRuns runs{.steps = 3, .make_device = make_cuda, .compute = compute};
    const std::vector<RunResult> one = references(runs);
    runs.offload = true;
    compare_bits(cases_of(committed_rows()), runs, one);
  }
}

TEST_F(CudaLayouts, FastStaysWithinItsBounds) {
  const MatrixRuns fast{.reproducible = false, .steps = 5, .make_device = make_cuda};
  const std::vector<RunResult> one = references(fast);
  BoundUse use;
  run_cases(cases_of(committed_rows()), fast,
            [&](const MatrixCase& each, const RunResult& result, const std::string& what) {
              const auto model = static_cast<std::size_t>(each.model);
              const model::ModelConfig& config = matrix_models()[model].config;
              EXPECT_EQ(
                  out_of_bounds(config, matrix_batch * config.sequence, one[model], result, use),
                  "")
                  << what;
            });
}

}  // namespace
}  // namespace trireme::parallel::test
