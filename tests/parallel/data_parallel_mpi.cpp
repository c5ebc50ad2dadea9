// Data parallelism against one rank that sees the whole batch.
#include <cmath>

#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/engine.hpp"

#include "support/batches.hpp"

namespace trireme {
namespace {

constexpr std::int64_t global_batch = 8;

struct Replica {
  Replica(const model::ModelConfig& config, comm::Communicator& group, std::int64_t micro,
          bool overlap)
      : model(config),
        state(model, true, ledger),
        ops(ops::make_cpu_ops(1)),
        group(group),
        micro_batch(micro),
        engine(model, state, *ops, group, recorder, ledger,
               {.max_rows = micro * config.sequence,
                .bucket_elements = 1000,
                .overlap = overlap,
                .seed = 5}),
        optimizer({.learning_rate = 1e-3}, model.table(), ledger) {
    params::initialise(model.table(), 3, state.parameters());
  }
  std::vector<parallel::HostMicrobatch> batches(std::int64_t step) const {
    const std::int64_t per_rank = global_batch / group.size(), length = model.config().sequence;
    std::vector<parallel::HostMicrobatch> out;
    for (std::int64_t m = 0; m < per_rank; m += micro_batch) {
      const std::int64_t first = step * global_batch + group.rank() * per_rank + m;
      data::Batch batch =
          testing_support::make_test_batch(first, micro_batch, length, model.config().vocabulary);
      // Unequal weights: a mean of the ranks' means would be wrong.
      for (std::size_t i = 0; i < batch.weights.size(); ++i) {
        batch.weights[i] =
            static_cast<float>((first + static_cast<std::int64_t>(i) / length) % 3) + 0.5F;
      }
      out.emplace_back(std::move(batch));
    }
    return out;
  }

  device::MemoryLedger ledger;
  Recorder recorder;
  model::Transformer model;
  state::ModelState state;
  std::unique_ptr<ops::Ops> ops;
  comm::Communicator& group;
  std::int64_t micro_batch;
  parallel::Engine engine;
  optim::Optimizer optimizer;
};

class DataParallel : public testing::TestWithParam<std::tuple<bool, double, bool>> {};

TEST_P(DataParallel, TwentyStepsEqualOneRank) {
  const auto [llama, dropout, overlap] = GetParam();
  model::ModelConfig config = testing_support::odd_model(llama);
  config.dropout = dropout;
  config.attention_dropout = dropout;
  device::MemoryLedger ledger;
  const auto world = comm::make_mpi_communicator(MPI_COMM_WORLD, ledger);
  const auto self = comm::make_self_communicator();
  Replica many(config, *world, 2, overlap), one(config, *self, 4, overlap);
  for (std::int64_t step = 0; step < 20; ++step) {
    double loss[2], norm[2];
    int i = 0;
    for (Replica* run : {&many, &one}) {
      loss[i] = run->engine.step(run->batches(step)).mean();
      norm[i] = optim::global_norm(*run->ops, run->model.table(), run->state.gradients());
      run->optimizer.update(*run->ops, run->state.parameters(), run->state.gradients(), 1e-3, step,
                            optim::clip_factor(norm[i], 1.0));
      ++i;
    }
    ASSERT_NEAR(loss[0], loss[1], 1e-5 * loss[1]) << "step " << step;
    ASSERT_NEAR(norm[0], norm[1], 1e-4 * norm[1]) << "step " << step;
  }
  // All ranks hold the same bits.
  const Tensor& mine = many.state.parameters();
  std::vector<float> first(mine.as<float>(), mine.as<float>() + mine.elements());
  MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), mine.as<float>()));
}

INSTANTIATE_TEST_SUITE_P(Models, DataParallel,
                         testing::Values(std::tuple(false, 0.0, true), std::tuple(true, 0.0, true),
                                         std::tuple(false, 0.2, true),
                                         std::tuple(true, 0.0, false)));

}  // namespace
}  // namespace trireme
