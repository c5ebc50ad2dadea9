// What carries a group's messages, and how device memory gets to MPI: decided once, before any
// group is made, from the configuration and from what the machine has.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/config.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/shape.hpp"

namespace trireme::comm {

enum class Backend : std::uint8_t { mpi, nccl, shared };
using Backends = ByKind<Backend>;
std::string_view name_of(Backend backend);  // as the configuration has it

/// What the machine has; the same on all ranks.
struct BackendFacts {
  std::string device = "cpu";  // Device::name()
  bool is_host = true;
  bool nccl = false;           // built in
  std::vector<int> node_of{};  // as Session::nodes(); empty: all ranks share memory
  /// By world rank, where `nccl`: the first rank with the same device; −1: it has no identity.
  std::vector<int> device_of{};
  std::string no_space{};  // why there can be no shared memory; empty: nothing is known against it
};

/// "comm.data": the configuration's key for groups of `kind`.
std::string backend_key(GroupKind kind);

/// The backend of each kind of group; pure. For auto it is MPI where tensors do not pass: world,
/// stage and model groups, and pipelines. Throws ConfigError that names comm.tensor, comm.data,
/// comm.pipeline or comm.world where a backend cannot be used.
Backends choose_backends(const CommConfig& config, const GridShape& shape,
                         const BackendFacts& facts);

/// Whether every rank of the world has a device of its own, where `facts.nccl`.
bool devices_differ(const BackendFacts& facts);

/// Whether the MPI library reports support of CUDA memory at run time (MPIX_Query_cuda_support of
/// Open MPI and MPICH, MPIX_GPU_query_support of MPICH); nothing where it has neither. Call after
/// MPI_Init.
std::optional<bool> mpi_reads_cuda();

/// Whether device memory is passed to MPI directly, by comm.staging and what the library reports.
/// Where it reports nothing, auto stages: a library that cannot read device memory crashes. Throws
/// ConfigError.
bool choose_direct(const std::string& staging, std::optional<bool> library);

/// Passes messages from the memory of `device` around the ring of `ranks`, collective over them: a
/// short one, and one that libraries pass by other means (CUDA IPC between processes of a node).
/// Whether this rank's arrived unchanged. A library that wrongly reports support of that memory may
/// crash here, before any work is lost.
bool messages_arrive(device::Device& device, const DeviceMessages& messages, MPI_Comm ranks);

/// As text, for `trireme info`.
std::string describe_direct(std::optional<bool> library);

}  // namespace trireme::comm
