// Steps by NCCL's stand-in, on ranks with a device each: the memory of a replica's state is
// registered with the groups that move it, and stages exchange messages.
#include <gtest/gtest.h>

#include "layouts.hpp"
#include "support/nccl_double.hpp"

namespace trireme::parallel::test {
namespace {

using testing_support::NcclDouble;
using testing_support::SimulatedDevice;

/// The losses and norms of two steps. `steps` 0: a replica for evaluation is made, and nothing
/// else.
std::vector<StepSums> train(const LayoutCase& layout, bool reproducible, bool recent, int expected,
                            int steps = 2) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  SimulatedDevice device(static_cast<unsigned>(rank), fmt::format("device-{}", rank));
  NcclDouble nccl(device, true, recent);
  const RunSettings settings{.reproducible = reproducible, .make_device = make_simulated_device};
  const model::ModelConfig config = testing_support::odd_model(true);
  std::vector<StepSums> sums;
  {
    device::MemoryLedger ledger(device);
    const comm::Session session(nullptr, nullptr);
    StageOptions stage = stage_options(layout, settings);
    stage.train = steps > 0;
    comm::Grid grid(session, shape_of(config, layout, stage, size), ledger,
                    {.reproducible = reproducible, .nccl_api = &nccl});
    const model::Transformer model(config);
    Recorder recorder;
    ReplicaOptions options{.stage = stage};
    options.make_ops = [&](device::MemoryLedger& own, int threads, bool same_bits) {
      return std::make_unique<testing_support::SimulatedOps>(
          device, ops::make_cpu_ops(threads, &own, same_bits));
    };
    Replica replica(model, options, grid, recorder, ledger);
    EXPECT_EQ(nccl.calls("register_memory"), expected) << layout.to_string();
    replica.initialize();
    for (int step = 0; step < steps; ++step) {
      sums.push_back(replica.backward(make_batches(
          config, layout, grid.coordinate(comm::Axis::data), step, settings.global_batch)));
      replica.update(1e-3, step, 1);
    }
    replica.wait();
    EXPECT_EQ(grid.warnings(), std::vector<std::string>());
  }
  // All that was registered, scratch too, was deregistered before it was freed.
  EXPECT_EQ(nccl.calls("deregister_memory"), nccl.calls("register_memory")) << layout.to_string();
  return sums;
}

TEST(NcclRegistration, StateIsRegisteredOnceWithEachGroupThatMovesIt) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const bool reproducible : {false, true}) {
    for (const int zero : {0, 1, 2, 3}) {
      LayoutCase layout;
      layout.data = size;
      layout.zero = zero;
      // Parameters and gradients; collected gradients; gathered parameters.
      const int memory = 2 + (zero >= 2 && !reproducible ? 1 : 0) + (zero == 3 ? 1 : 0);
      if (size == 4 && zero == 3) layout.shard = 2;  // then replicas move it too
      const int groups = size == 1 ? 0 : (layout.shard == 2 ? 2 : 1);
      const std::vector<StepSums> with = train(layout, reproducible, true, groups * memory);
      const std::vector<StepSums> without = train(layout, reproducible, false, 0);
      for (std::size_t step = 0; step < with.size(); ++step) {
        EXPECT_EQ(with[step].loss.loss, without[step].loss.loss) << layout.to_string();
      }
    }
  }
}

/// Those of three steps of a pipeline; messages between stages by `backend` from the second on.
std::vector<StepSums> train_stages(const LayoutCase& layout, const std::string& backend,
                                   bool ordered) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  SimulatedDevice device(static_cast<unsigned>(rank), fmt::format("device-{}", rank));
  NcclDouble nccl(device, ordered);
  const RunSettings settings{.make_device = make_simulated_device};
  const model::ModelConfig config = testing_support::odd_model(true);
  std::vector<StepSums> sums;
  {
    device::MemoryLedger ledger(device);
    const comm::Session session(nullptr, nullptr);
    const StageOptions stage = stage_options(layout, settings);
    comm::CommConfig comm;
    comm.pipeline = backend;
    comm::Grid grid(session, shape_of(config, layout, stage, size), ledger,
                    {.comm = comm, .nccl_api = &nccl});
    const model::Transformer model(config);
    Recorder recorder;
    ReplicaOptions options{.stage = stage};
    options.make_ops = [&](device::MemoryLedger& own, int threads, bool same_bits) {
      return std::make_unique<testing_support::SimulatedOps>(
          device, ops::make_cpu_ops(threads, &own, same_bits));
    };
    Replica replica(model, options, grid, recorder, ledger);
    replica.initialize();
    for (int step = 0; step < 3; ++step) {
      sums.push_back(replica.backward(make_batches(
          config, layout, grid.coordinate(comm::Axis::data), step, settings.global_batch)));
      replica.update(1e-3, step, 1);
      if (step == 0 && layout.data == 1) {
        EXPECT_EQ(nccl.calls("receive"), 0) << layout.to_string();
      }
      if (step == 0) replica.connect_stages();
    }
    replica.wait();
    if (backend == "nccl") {
      EXPECT_GT(nccl.calls("receive"), 0) << layout.to_string();
      EXPECT_GT(nccl.calls("send"), 0) << layout.to_string();
    }
    std::map<std::string, comm::TrafficByKind> traffic;
    for (const auto& [name, each] : grid.traffic()) traffic[name] = each;
    EXPECT_GT(traffic["activations"].total().bytes + traffic["gradients"].total().bytes, 0);
  }
  EXPECT_EQ(nccl.alive(), 0);
  return sums;
}

// Every stage has receives queued before the sends that they depend on: with one communicator for
// all, and gpipe alone, two stages would wait for each other.
TEST(NcclStages, StepsHaveTheBitsOfThoseByMpi) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) return;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero-bubble"}) {
    for (const int data : {1, 2}) {
      LayoutCase layout{.pipeline = size / data, .data = data, .schedule = schedule};
      if (layout.pipeline == 1) continue;
      if (layout.schedule == "interleaved") layout.virtual_stages = 2;
      if (layout.pipeline * layout.virtual_stages > 4) continue;  // the model's units
      const std::vector<StepSums> by_mpi = train_stages(layout, "mpi", true);
      for (const bool ordered : {true, false}) {
        const std::vector<StepSums> by_nccl = train_stages(layout, "nccl", ordered);
        for (std::size_t step = 0; step < by_mpi.size(); ++step) {
          EXPECT_EQ(by_nccl[step].loss.loss, by_mpi[step].loss.loss) << layout.to_string();
          EXPECT_EQ(by_nccl[step].gradient_norm, by_mpi[step].gradient_norm) << layout.to_string();
        }
      }
    }
  }
}

// One rank may fail to make such a replica while the others succeed.
TEST(NcclRegistration, AReplicaForEvaluationAsksNoOtherRank) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  train({.data = size, .zero = 3}, false, true, 0, 0);
}

}  // namespace
}  // namespace trireme::parallel::test
