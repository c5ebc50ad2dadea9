// Offloaded runs: memory as predicted, and checkpoints exchanged with other runs.
#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/plan/memory.hpp"

#include "parallel/matrix_runs.hpp"

namespace trireme::plan::test {
namespace {

using namespace parallel::test;  // NOLINT(google-build-using-namespace): the runs are theirs
namespace fs = std::filesystem;

std::vector<LayoutCase> layouts_here() {
  const int ranks = world_size();
  std::vector<LayoutCase> layouts;
  for (const int zero : {0, 1, 2, 3}) {
    layouts.push_back({.data = ranks, .zero = zero, .micro_batch = 2});
    if (ranks > 1) layouts.push_back({.tensor = 2, .data = ranks / 2, .zero = zero});
    if (ranks > 1) layouts.push_back({.pipeline = 2, .data = ranks / 2, .zero = zero});
    if (ranks > 2 && zero > 0) layouts.push_back({.data = ranks, .shard = 2, .zero = zero});
  }
  return layouts;
}

TEST(OffloadedMemory, MatchesTheTable) {
  for (const LayoutCase& layout : layouts_here()) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      const RunSettings settings = settings_of(0, {.reproducible = false,
                                                   .make_device = make_simulated_device,
                                                   .compute = compute,
                                                   .offload = true});
      LayoutRun run(matrix_models().front().config, layout,
                    parallel::test::stage_options(layout, settings), MPI_COMM_WORLD,
                    settings.make_device);
      const auto predicted =
          predict_memory(run.replica.stage(), {.optim = {},
                                               .threads = layout.threads,
                                               .host = false,
                                               .shape = run.shape,
                                               .rank = run.session.rank(),
                                               .bucket_elements = LayoutRun::bucket_elements});
      using device::Use;
      EXPECT_FALSE(predicted.contains(Use::optimizer));
      EXPECT_EQ(run.ledger.held(Use::optimizer), 0);
      for (const Use use :
           {Use::parameters, Use::gradients, Use::offloaded, Use::gathered, Use::batch}) {
        EXPECT_TRUE(predicts_all(use, false));
        EXPECT_EQ(run.ledger.held(use), predicted.at(use))
            << device::name_of(use) << ": " << layout.to_string();
        EXPECT_EQ(device::in_host_memory(use), use == Use::offloaded);
      }
      for (const Use use : {Use::workspace, Use::communication}) {
        EXPECT_FALSE(predicts_all(use, false));
        EXPECT_TRUE(predicts_all(use, true));
      }
    }
  }
}

/// A run in some layout, and where it keeps its state.
struct Kind {
  LayoutCase layout;
  bool offload = false;
  MakeTestDevice make_device;  // absent: the host
  bool stochastic = false;     // rounding
};

class Training {
 public:
  Training(const Kind& kind, DType compute)
      : settings_(settings_of(
            0, {.make_device = kind.make_device, .compute = compute, .offload = kind.offload})),
        run_(matrix_models().front().config, kind.layout,
             parallel::test::stage_options(kind.layout, settings_), MPI_COMM_WORLD,
             kind.make_device, false, {}, kind.stochastic) {
    run_.replica.initialize();
  }
  void steps(int first, int last) {
    for (int step = first; step < last; ++step) {
      parallel::Replica& replica = run_.replica;
      const parallel::StepSums sums = replica.backward(
          make_batches(matrix_models().front().config, run_.layout,
                       run_.grid.coordinate(comm::Axis::data), step, matrix_batch));
      replica.update(3e-3, step, optim::clip_factor(sums.gradient_norm, 1.0));
    }
  }
  fs::path save(const fs::path& root) {
    const parallel::Replica& replica = run_.replica;
    const checkpoint::Writers writers{run_.grid.coordinate(comm::Axis::data), run_.layout.data};
    std::vector<checkpoint::Piece> pieces;
    checkpoint::append_pieces(pieces, "parameters", replica.state(), replica.state().parameters(),
                              replica.state().parameters_sharded(), writers);
    for (const auto& state : replica.optimizer().states()) {
      checkpoint::append_pieces(pieces, state.name, replica.state(), state.flat,
                                run_.layout.zero > 0, writers);
    }
    checkpoint::Save save(root, {.step = 1}, pieces, replica.state().optimizer_device(),
                          run_.grid.world(), run_.ledger);
    return save.finish();
  }
  /// `updates`: those in the checkpoint.
  void load(const fs::path& folder, std::int64_t updates) {
    const checkpoint::Reader reader(folder);
    const state::ModelState& state = run_.replica.state();
    checkpoint::load_pieces(reader, "parameters", state, state.parameters(),
                            state.parameters_sharded());
    for (const auto& kept : run_.replica.optimizer().states()) {
      checkpoint::load_pieces(reader, kept.name, state, kept.flat, run_.layout.zero > 0);
    }
    run_.replica.refresh(updates);
  }
  /// Hashes of parameters and optimizer state.
  std::vector<std::uint64_t> tensors() {
    const parallel::Replica& replica = run_.replica;
    std::vector<std::uint64_t> hashes;
    const auto add = [&](const Tensor& flat, bool sharded) {
      for (const auto& each : gather_logical(replica, replica.state().optimizer_device(), flat,
                                             sharded, MPI_COMM_WORLD)) {
        hashes.push_back(hash_of(each));
      }
    };
    add(replica.state().parameters(), replica.state().parameters_sharded());
    for (const auto& state : replica.optimizer().states()) add(state.flat, run_.layout.zero > 0);
    return hashes;
  }

 private:
  RunSettings settings_;
  LayoutRun run_;
};

TEST(OffloadedCheckpoint, MovesToOtherRunsAndBack) {
  const int ranks = world_size();
  int number = ::getpid();
  MPI_Bcast(&number, 1, MPI_INT, 0, MPI_COMM_WORLD);
  const fs::path root = fs::path(testing::TempDir()) / fmt::format("trireme_offload_{}", number);
  const LayoutCase shards{.data = ranks, .zero = 3, .micro_batch = 2};
  const LayoutCase tiles{.tensor = ranks, .micro_batch = 4};
  struct How {
    DType compute;
    bool stochastic;
  };
  for (const auto& [compute, stochastic] :
       {How{DType::f32, false}, How{DType::bf16, false}, How{DType::bf16, true}}) {
    const Kind offloaded{shards, true, make_simulated_device, stochastic};
    // fp32 moves to a run without a device.
    const Kind other{
        tiles, false,
        compute == DType::f32 ? MakeTestDevice() : MakeTestDevice(make_simulated_device),
        stochastic};
    Training straight(other, compute);
    straight.steps(0, 4);
    const auto expected = straight.tensors();
    for (const auto& [from, to] : {std::pair(offloaded, other), std::pair(other, offloaded)}) {
      Training first(from, compute);
      first.steps(0, 2);
      const fs::path folder = first.save(root);
      Training second(to, compute);
      second.load(folder, 2);
      EXPECT_EQ(second.tensors(), first.tensors());
      second.steps(2, 4);
      EXPECT_EQ(second.tensors(), expected)
          << name_of(compute) << (stochastic ? ", stochastic," : "")
          << (from.offload ? " from" : " to") << " an offloaded run";
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  std::error_code ignored;
  if (world_rank() == 0) fs::remove_all(root, ignored);
}

}  // namespace
}  // namespace trireme::plan::test
