// Memory of communication, predicted to the byte on CPUs: gradients in fp32 and in bf16.
#include <gtest/gtest.h>

#include "trireme/plan/memory.hpp"

#include "parallel/matrix_runs.hpp"

namespace trireme::plan::test {
namespace {

using namespace parallel::test;  // NOLINT(google-build-using-namespace): the runs are theirs

TEST(CommunicationMemory, MatchesThePlanOnCpus) {
  const int ranks = world_size();
  for (const DType sent : {DType::f32, DType::bf16}) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const int shard : {0, 2}) {
        if (shard == 2 && (ranks < 4 || zero == 0)) continue;
        const LayoutCase layout{.data = ranks, .shard = shard, .zero = zero, .micro_batch = 2};
        RunSettings settings = settings_of(0, {.reproducible = false});
        settings.sent_gradients = sent;
        const model::ModelConfig& config = matrix_models().front().config;
        LayoutRun run(config, layout, parallel::test::stage_options(layout, settings),
                      MPI_COMM_WORLD);
        run.replica.initialize();
        run.replica.backward(
            make_batches(config, layout, run.grid.coordinate(comm::Axis::data), 0, matrix_batch));
        run.replica.update(1e-3, 0, 1);
        const auto predicted =
            predict_memory(run.replica.stage(), {.optim = {},
                                                 .threads = layout.threads,
                                                 .shape = run.shape,
                                                 .rank = run.session.rank(),
                                                 .backends = run.grid.backends(),
                                                 .bucket_elements = LayoutRun::bucket_elements});
        EXPECT_EQ(run.ledger.held(device::Use::communication),
                  predicted.at(device::Use::communication))
            << layout.to_string() << " " << name_of(sent);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::plan::test
