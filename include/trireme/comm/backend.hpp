// What carries a group's messages, and how device memory gets to MPI: decided once, before any
// group is made, from the configuration and from what is there.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "trireme/comm/config.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/shape.hpp"

namespace trireme::comm {

enum class Backend : std::uint8_t { mpi, nccl, shared };
using Backends = std::array<Backend, group_kinds>;  // by GroupKind

/// What there is; the same on all ranks.
struct BackendFacts {
  std::string device = "cpu";  // Device::name()
  bool is_host = true;
  bool nccl = false;  // built in
  /// Two ranks of one group of this kind that share a device, or have one that cannot be told
  /// from others: their names; empty where there are none. Asked for kinds of more than one rank.
  std::string crowded;
  /// Two ranks of one group of this kind that do not share memory; empty where there are none.
  std::string apart;
  /// Why there is no shared memory to be had; empty: as far as is known there is.
  std::string no_room;
};

/// "comm.data": the configuration's key for groups of `kind`.
std::string backend_key(GroupKind kind);

/// The backend of the groups of `kind`; by auto MPI where tensors do not pass (pipeline, whose
/// channels are MPI's; world, stage and model groups). Throws ConfigError that names comm.tensor,
/// comm.data, comm.pipeline or comm.world where what is asked for cannot be.
Backend choose_backend(const CommConfig& config, GroupKind kind, const BackendFacts& facts);

/// Of all kinds, where the host computes; pure. `node_of` as Session::nodes(); empty: one node.
Backends choose_host_backends(const CommConfig& config, const GridShape& shape, int shard,
                              std::span<const int> node_of, const std::string& no_room = {});

/// The first two ranks of a group of `kind` that are on different nodes: "ranks 0 and 2 are on
/// different nodes"; else empty.
std::string scattered_ranks(const GridShape& shape, GroupKind kind, int shard,
                            std::span<const int> node_of);

/// The first two ranks of `members` whose devices (Device::identity(), by world rank) are the same
/// one, or a rank whose device has no identity: "ranks 0 and 2 share GPU-4f…"; else empty.
std::string crowded_device(std::span<const int> members, std::span<const std::string> devices);

/// What the MPI library says at run time of messages in CUDA memory (MPIX_Query_cuda_support of
/// Open MPI and MPICH, MPIX_GPU_query_support of MPICH); nothing where it cannot be asked. Call
/// after MPI_Init.
std::optional<bool> mpi_reads_cuda();

/// Whether device memory is given to MPI as it is, by comm.staging and what the library says. Where
/// it cannot be asked, auto stages: a library that cannot read device memory dies of it. Throws
/// ConfigError.
bool choose_direct(const std::string& staging, std::optional<bool> library);

/// A message of this rank to itself in the memory of `device`: whether what arrives is what was
/// sent. A library that only believes it can read that memory may end the process here, before
/// anything is lost.
bool message_arrives(device::Device& device, const DeviceMessages& messages);

/// In words, for `trireme info`: "staged through host memory (Open MPI says no)".
std::string describe_direct(std::optional<bool> library);

}  // namespace trireme::comm
