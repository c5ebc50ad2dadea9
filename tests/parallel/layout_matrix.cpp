// The layout matrix: a covering array of layouts, and some drawn anew in every run, against one
// rank. Eight ranks; layouts of n ranks run 8/n at a time.
#include "fast_bounds.hpp"
#include "matrix_runs.hpp"

namespace trireme::parallel::test {
namespace {

void compare_with_one_rank(const std::vector<MatrixCase>& cases, const MatrixRuns& runs) {
  compare_bits(cases, runs, references(runs));
}

TEST(LayoutMatrix, ReproducibleEqualsOneRankBitForBit) {
  ASSERT_EQ(world_size(), 8);
  compare_with_one_rank(cases_of(committed_rows()), {});
}

/// The CPU's own bf16, and the memory it is planned to take.
TEST(LayoutMatrix, ReproducibleInBf16EqualsOneRankBitForBit) {
  compare_with_one_rank(cases_of(committed_rows()), {.steps = 2, .compute = DType::bf16});
}

TEST(LayoutMatrix, ReproducibleDrawn) { compare_with_one_rank(cases_of(drawn_rows()), {}); }

/// What is computed later, in memory that the host cannot touch, is the same: every wait is there.
TEST(LayoutMatrix, DeviceEqualsHostBitForBit) {
  compare_bits(cases_of(committed_rows()), {.steps = 2, .make_device = make_imaginary_device},
               references({.steps = 2}));
}

TEST(LayoutMatrix, DeviceInBf16EqualsOneRankBitForBit) {
  compare_with_one_rank(cases_of(committed_rows()),
                        {.steps = 2, .make_device = make_imaginary_device, .compute = DType::bf16});
}

TEST(LayoutMatrix, FastStaysWithinItsBounds) {
  const MatrixRuns fast{.reproducible = false, .steps = 20};
  const std::vector<RunResult> one = references(fast);
  std::vector<MatrixCase> cases = cases_of(committed_rows());
  for (MatrixCase& each : cases_of(drawn_rows())) cases.push_back(std::move(each));
  BoundUse use;
  run_cases(
      cases, fast, [&](const MatrixCase& each, const RunResult& result, const std::string& what) {
        const auto model = static_cast<std::size_t>(each.model);
        const model::ModelConfig& config = matrix_models()[model].config;
        EXPECT_EQ(out_of_bounds(config, matrix_batch * config.sequence, one[model], result, use),
                  "")
            << what;
      });
  use.reduce(MPI_COMM_WORLD);
  if (world_rank() == 0) fmt::print("{}\n", use.to_string());
  EXPECT_TRUE(use.tight()) << "a bound is more than 100 times what was observed";
}

}  // namespace
}  // namespace trireme::parallel::test
