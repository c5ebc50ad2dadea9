// Assigns simulated devices of a node to its ranks.
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/train/compute_device.hpp"

#include "support/simulated_device.hpp"

namespace trireme::train {
namespace {

using testing_support::SimulatedDevice;

/// The devices this process sees, and the calls it received.
struct Machine {
  int devices = 0;
  int counted = 0;
  std::vector<int> made{};
  DeviceSource source() {
    return {.count = [this] { return ++counted, devices; },
            .make =
                [this](int index) {
                  made.push_back(index);
                  return std::make_unique<SimulatedDevice>(1, fmt::format("number {}", index));
                }};
  }
};

device::DeviceConfig type(const char* name) {
  device::DeviceConfig config;
  config.type = name;
  return config;
}

// The ranks of a launch share one node.
TEST(Devices, GoToWorkersInOrderAndNotToServers) {
  comm::Session session(MPI_COMM_WORLD);
  const int size = session.size(), rank = session.rank();
  for (const char* asked : {"cuda", "auto"}) {
    for (int servers = 0; servers < size; ++servers) {
      const int workers = size - servers;
      Machine machine{.devices = rank < workers ? 2 : 0};  // none where servers run
      ComputeDevice computes(type(asked), session, servers, machine.source());
      EXPECT_FALSE(computes.on_host());
      EXPECT_EQ(computes.name(), "simulated");
      EXPECT_TRUE(computes.computes_in(DType::f16));
      EXPECT_EQ(computes.warning().empty(), workers <= 2) << computes.warning();
      if (rank < workers) {
        EXPECT_EQ(machine.made, std::vector<int>{rank % 2});
        EXPECT_FALSE(computes.device().is_host());
      } else {
        EXPECT_EQ(machine.counted, 0) << "a server asked for devices";
        EXPECT_TRUE(machine.made.empty());
        EXPECT_TRUE(computes.device().is_host());
        EXPECT_FALSE(computes.make_ops());
      }
      // The compute type is the same for all workers, with or without servers.
      device::MemoryLedger ledger;
      const auto world = comm::make_mpi_communicator(session.world(), ledger);
      parallel::PrecisionConfig precision;
      precision.compute = "fp16";
      EXPECT_NO_THROW(computes.settle_precision(precision, *world));
      EXPECT_EQ(precision.compute, "fp16");
    }
  }
}

TEST(Devices, AWorkerWithoutOneIsRefused) {
  comm::Session session(MPI_COMM_WORLD);
  const int last = session.size() - 1;
  const int servers = last > 0 ? 1 : 0;
  const int poor = last - servers;  // the last worker
  Machine machine{.devices = session.rank() == poor ? 0 : 1};
  try {
    const ComputeDevice computes(type("cuda"), session, servers, machine.source());
    ADD_FAILURE() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(fmt::format("rank {} sees no device", poor)));
    EXPECT_THAT(error.what(), testing::HasSubstr(servers > 0 ? "every worker" : "every rank"));
  }
  const ComputeDevice computes(type("auto"), session, servers, machine.source());
  EXPECT_TRUE(computes.on_host());
  EXPECT_EQ(computes.name(), "cpu");
  EXPECT_TRUE(computes.device().is_host());
}

}  // namespace
}  // namespace trireme::train
