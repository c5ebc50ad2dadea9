// Traced steps against real ones: the bytes of every group, in layouts of the matrix.
#include <gtest/gtest.h>

#include "trireme/plan/trace.hpp"

#include "parallel/matrix_runs.hpp"
#include "unfolded.hpp"

namespace trireme::plan::test {
namespace {

using namespace parallel::test;  // NOLINT(google-build-using-namespace): the runs are theirs

std::map<std::string, std::int64_t> sent_by(const comm::Grid& grid) {
  std::map<std::string, std::int64_t> sums;
  for (const auto& [name, traffic] : grid.traffic()) {
    if (traffic.total().bytes > 0) sums[name] = traffic.total().bytes;
  }
  return sums;
}

parallel::ReplicaOptions options_of(const LayoutCase& layout, const RunSettings& settings) {
  parallel::ReplicaOptions options = LayoutRun::replica_options(
      layout, parallel::test::stage_options(layout, settings), {}, false, {}, false, false);
  return options;
}

void expect_equal_bytes(const MatrixCase& each, const RunSettings& settings, MPI_Comm comm) {
  const model::ModelConfig& config = matrix_models()[static_cast<std::size_t>(each.model)].config;
  const LayoutCase& layout = each.layout;
  LayoutRun run(config, layout, parallel::test::stage_options(layout, settings), comm,
                settings.make_device);
  run.replica.initialize();
  run.grid.reset_traffic();
  run.replica.backward(make_batches(config, layout, run.grid.coordinate(comm::Axis::data), 0,
                                    settings.global_batch));
  run.replica.update(1e-3, 0, 1);
  run.replica.wait();
  const Trace trace = trace_step(run.model, options_of(layout, settings), run.shape,
                                 run.session.rank(), !settings.make_device);
  EXPECT_EQ(trace.sent(), sent_by(run.grid)) << each.to_string();

  const parallel::ReplicaOptions options = options_of(layout, settings);
  const Trace computed =
      trace_step(run.model, options, run.shape, run.session.rank(), !settings.make_device,
                 parallel::blank_batches(options.stage.micro_batches, options.stage.sequences,
                                         config.sequence, false),
                 false);
  const Trace repeated = unfolded(trace);
  EXPECT_FALSE(trace.sections.empty());
  EXPECT_EQ(computed.works, repeated.works) << each.to_string();
  EXPECT_EQ(computed.operations, repeated.operations) << each.to_string();
  EXPECT_EQ(computed.instructions, repeated.instructions) << each.to_string();
  EXPECT_EQ(computed.memory, repeated.memory) << each.to_string();
}

TEST(Traces, SendTheBytesOfRuns) {
  const int ranks = world_size();
  int number = 0;
  for (const MatrixCase& each : cases_of(matrix_rows())) {
    if (each.layout.ranks() != ranks) continue;
    // Each case in one of these, in turn.
    RunSettings settings = settings_of(each.model, {.reproducible = number % 2 == 0});
    if (number % 3 == 1) settings.make_device = make_simulated_device;
    if (number % 4 == 1) settings.sent_gradients = DType::bf16;
    if (number % 5 == 1) settings.compute = DType::bf16;
    ++number;
    expect_equal_bytes(each, settings, MPI_COMM_WORLD);
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(number, 1);
}

}  // namespace
}  // namespace trireme::plan::test
