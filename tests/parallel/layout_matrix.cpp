// The layout matrix: a covering array of layouts, and random ones in every run, against one rank.
// Eight ranks; layouts of n ranks run 8/n at a time.
#include <map>

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

/// The CPU's own bf16, and its planned memory.
TEST(LayoutMatrix, ReproducibleInBf16EqualsOneRankBitForBit) {
  compare_with_one_rank(cases_of(committed_rows()), {.steps = 2, .compute = DType::bf16});
}

TEST(LayoutMatrix, ReproducibleDrawn) { compare_with_one_rank(cases_of(drawn_rows()), {}); }

/// Delayed computation in memory that the host cannot touch gives the same: no wait is missing.
TEST(LayoutMatrix, DeviceEqualsHostBitForBit) {
  compare_bits(cases_of(committed_rows()), {.steps = 2, .make_device = make_simulated_device},
               references({.steps = 2}));
}

TEST(LayoutMatrix, DeviceInBf16EqualsOneRankBitForBit) {
  compare_with_one_rank(cases_of(committed_rows()),
                        {.steps = 2, .make_device = make_simulated_device, .compute = DType::bf16});
}

/// Graphs are captured in the second step; they read the next batches, and accumulate with work
/// queued between them.
TEST(LayoutMatrix, DeviceWithGraphsEqualsHostBitForBit) {
  compare_bits(cases_of(committed_rows()),
               {.steps = 4, .make_device = make_simulated_device, .graphs = true},
               references({.steps = 4}));
}

/// Every update of these runs clips.
constexpr double low_clip = 0.1;
void expect_clipping(const std::vector<RunResult>& one) {
  for (const RunResult& result : one) {
    for (const double norm : result.norms) EXPECT_GT(norm, low_clip);
  }
}

TEST(LayoutMatrix, OffloadedEqualsHostBitForBit) {
  const std::vector<RunResult> one = references({.steps = 2, .clip = low_clip});
  expect_clipping(one);
  compare_bits(
      cases_of(committed_rows()),
      {.steps = 2, .make_device = make_simulated_device, .offload = true, .clip = low_clip}, one);
}

TEST(LayoutMatrix, OffloadedInBf16EqualsOneRankBitForBit) {
  MatrixRuns runs{
      .steps = 2, .make_device = make_simulated_device, .compute = DType::bf16, .clip = low_clip};
  const std::vector<RunResult> one = references(runs);
  expect_clipping(one);
  runs.offload = runs.graphs = true;
  compare_bits(cases_of(committed_rows()), runs, one);
}

/// Without reproducible mode gradients are sharded too and final at other times: against the same
/// layout without offloading and graphs.
TEST(LayoutMatrix, OffloadedShardsOfGradientsBitForBit) {
  std::vector<MatrixCase> cases;
  for (MatrixCase& each : cases_of(committed_rows())) {
    if (each.layout.zero >= 2) cases.push_back(std::move(each));
  }
  MatrixRuns runs{
      .reproducible = false, .steps = 3, .make_device = make_simulated_device, .clip = low_clip};
  std::map<std::string, RunResult> here;
  run_cases(cases, runs, [&](const MatrixCase&, const RunResult& result, const std::string& what) {
    here[what] = result;
  });
  runs.offload = runs.graphs = true;
  run_cases(cases, runs, [&](const MatrixCase&, const RunResult& result, const std::string& what) {
    const RunResult& other = here.at(what);
    EXPECT_EQ(result.losses, other.losses) << what;
    EXPECT_EQ(result.norms, other.norms) << what;
    for (std::size_t t = 0; t < other.tensors.size(); ++t) {
      EXPECT_EQ(hash_of(result.tensors[t]), hash_of(other.tensors[t]))
          << what << ": " << other.names[t];
    }
  });
  EXPECT_FALSE(here.empty());
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
