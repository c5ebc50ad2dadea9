// Complete runs on simulated devices against the same runs on CPUs: every data-parallel method,
// from the first step to a resumed checkpoint.
#include <gtest/gtest.h>

#include "data_parallel/averaging_runs.hpp"
#include "support/simulated_ops.hpp"

namespace trireme::train::test {
namespace {

using testing_support::SimulatedDevice;
using testing_support::SimulatedOps;

/// One device per process, each with a different identity.
DeviceSource simulated_devices() {
  return {.count = [] { return 1; },
          .make =
              [](int /*index*/) {
                const int rank = world_rank();
                return std::make_unique<SimulatedDevice>(static_cast<unsigned>(rank),
                                                         fmt::format("of rank {}", rank));
              },
          .operations =
              [](device::Device& device, const device::DeviceConfig&) {
                return [&own = dynamic_cast<SimulatedDevice&>(device)](
                           device::MemoryLedger& ledger, int threads, bool reproducible) {
                  return std::make_unique<SimulatedOps>(
                      own, ops::make_cpu_ops(threads, &ledger, reproducible));
                };
              }};
}

/// Trains on all ranks, with workers on CPUs or on devices.
void train_all(RunConfig config, bool on_devices) {
  config.device.type = on_devices ? "cuda" : "cpu";
  // NCCL does not support simulated devices. Workers of servers form no group of its kind.
  if (on_devices && config.parallel.servers == 0) {
    config.comm.tensor = config.comm.data = config.comm.pipeline = "mpi";
  }
  train_on(world_size(), std::move(config), on_devices ? simulated_devices() : cuda_devices());
}

RunConfig run_config(const Folder& folder, const std::string& name, const std::string& method) {
  RunConfig config = average_config(folder, name, {.workers = world_size()});
  config.data_parallel.method = method;
  config.train.evaluate_at_end = true;
  return config;
}

/// Half of the ranks are servers; each holds parameters.
RunConfig served_config(const Folder& folder, const std::string& name) {
  RunConfig config = run_config(folder, name, "server");
  config.model.width = 60;
  config.model.heads = config.model.kv_heads = 3;
  config.parallel.servers = world_size() / 2;
  return config;
}

nlohmann::json record_of(const fs::path& run) {
  std::ifstream file(run / "attempts" / "0001" / "run.json");
  return nlohmann::json::parse(file);
}

/// On rank 0, where two runs differ; empty: nowhere.
std::string difference_of(const RunConfig& one, const RunConfig& other) {
  const fs::path a = one.train.output, b = other.train.output;
  if (steps_of(a) != steps_of(b)) return "the record of steps";
  const auto loss = [](const fs::path& run) {
    return summary_of(run).at("validation_loss").dump();
  };
  if (loss(a) != loss(b)) return loss(a) + " and " + loss(b);
  const std::string last = step_folder(one.train.steps);
  return difference(a / last, b / last);
}

/// As memory_fault, but that workers with devices pass averages through staging memory that is not
/// predicted.
std::string memory_fault_on_device(const RunConfig& config) {
  if (config.parallel.servers > 0) return memory_fault(config.train.output);
  std::string fault;
  const nlohmann::json summary = summary_of(config.train.output);
  for (const auto& [use, bytes] : summary.at("memory").items()) {
    if (use == "communication" || bytes.at("predicted") == bytes.at("measured")) continue;
    fault += use + " " + bytes.dump() + " ";
  }
  return fault;
}

/// Trains on CPUs and on devices, and compares.
void expect_equal(const Folder& folder, const std::string& name, RunConfig config) {
  config.train.output = (folder / (name + "-host")).string();
  RunConfig device = config;
  device.train.output = (folder / (name + "-device")).string();
  device.device.graphs = true;
  train_all(config, false);
  train_all(device, true);
  if (world_rank() == 0) {
    EXPECT_EQ(difference_of(config, device), "") << name;
    EXPECT_EQ(record_of(device.train.output).at("device"), "simulated");
    const nlohmann::json summary = summary_of(device.train.output);
    for (const nlohmann::json& rank : summary.at("ranks")) {
      if (rank.contains("server")) continue;
      EXPECT_GT(rank.at("graphs").at("launched"), 0) << name;
    }
    EXPECT_EQ(memory_fault_on_device(device), "") << name;
  }
  quiet_barrier();
}

TEST(DeviceRuns, ServersMatchCpusBitForBit) {
  if (world_size() == 1) GTEST_SKIP() << "for two ranks";
  const Folder folder;
  for (const char* gradients : {"fp32", "bf16"}) {
    RunConfig config = served_config(folder, "");
    config.data_parallel.gradients = gradients;
    config.train.check = "placement";
    expect_equal(folder, gradients, config);
  }
}

// The CPU adds products of bf16 in a different order than the simulated device, and has none of
// fp16: all-reduce on devices is the reference.
TEST(DeviceRuns, ServersHoldTheMastersOfNarrowWeights) {
  if (world_size() == 1) GTEST_SKIP() << "for two ranks";
  const Folder folder;
  for (const std::string compute : {"bf16", "fp16"}) {
    RunConfig served = served_config(folder, compute + "-served");
    served.precision.compute = compute;
    RunConfig reduced = served;
    reduced.train.output = (folder / (compute + "-reduced")).string();
    reduced.data_parallel.method = "allreduce";
    reduced.parallel.servers = 0;
    train_all(served, true);
    train_all(reduced, true);
    if (world_rank() == 0) {
      EXPECT_EQ(difference_of(reduced, served), "") << compute;
      EXPECT_EQ(memory_fault(served.train.output), "") << compute;
    }
    quiet_barrier();
  }
}

TEST(DeviceRuns, ServersResumeFromDevicesOnCpusAndBack) {
  if (world_size() == 1) GTEST_SKIP() << "for two ranks";
  const Folder folder;
  RunConfig straight = served_config(folder, "straight");
  train_all(straight, false);
  for (const bool first : {false, true}) {
    RunConfig config = served_config(folder, first ? "from-devices" : "to-devices");
    config.train.stop_after = 3;
    train_all(config, first);
    train_all(config, !first);
    config.train.stop_after = 0;
    train_all(config, first);
    if (world_rank() == 0) {
      const std::string last = step_folder(config.train.steps);
      EXPECT_EQ(
          difference(straight.train.output / fs::path(last), config.train.output / fs::path(last)),
          "");
    }
    quiet_barrier();
  }
}

TEST(DeviceRuns, AveragesMatchCpusBitForBit) {
  const Folder folder;
  for (const WorkerCase& layout : worker_cases()) {
    for (const char* outer : {"none", "nesterov"}) {
      for (const char* states : {"keep", "average", "reset"}) {
        if (layout.workers < world_size() && states != std::string("keep")) continue;
        RunConfig config = average_config(folder, "", layout);
        config.average.outer = outer;
        config.average.optimizer_state = states;
        config.train.evaluate_at_end = true;
        const std::string name = fmt::format("{}-{}-{}", layout.to_string(), outer, states);
        expect_equal(folder, name, config);
      }
    }
  }
}

TEST(DeviceRuns, AveragesResumeFromDevicesOnCpusAndBack) {
  const Folder folder;
  for (const char* outer : {"none", "nesterov"}) {
    const WorkerCase layout{.workers = world_size()};
    RunConfig straight = average_config(folder, fmt::format("{}-straight", outer), layout);
    straight.average.outer = outer;
    train_all(straight, false);
    RunConfig config = straight;
    config.train.output = (folder / fmt::format("{}-stopped", outer)).string();
    config.train.stop_after = 3;
    train_all(config, true);
    train_all(config, false);
    train_all(config, true);
    if (world_rank() == 0) {
      const std::string last = step_folder(config.train.steps);
      EXPECT_EQ(
          difference(straight.train.output / fs::path(last), config.train.output / fs::path(last)),
          "");
    }
    quiet_barrier();
  }
}

// With one worker the order of updates is fixed and the run matches one on CPUs; with several only
// the final count is.
TEST(DeviceRuns, AsyncServersTrain) {
  if (world_size() == 1) GTEST_SKIP() << "for two ranks";
  const Folder folder;
  for (const std::string gradients : {"fp32", "bf16"}) {
    RunConfig config = served_config(folder, gradients);
    config.data_parallel.method = "async-server";
    config.data_parallel.gradients = gradients;
    config.server.max_staleness = 2;
    config.numerics.reproducible = false;
    if (world_size() == 2) {
      expect_equal(folder, gradients, config);
      continue;
    }
    train_all(config, true);
    if (world_rank() == 0) {
      EXPECT_EQ(steps_of(config.train.output).size(), 8U);
      EXPECT_EQ(memory_fault(config.train.output), "");
      EXPECT_TRUE(fs::exists(config.train.output / fs::path(step_folder(8)) / "manifest.json"));
    }
    quiet_barrier();
  }
}

}  // namespace
}  // namespace trireme::train::test
