// The MPI implementation of Communicator. Point-to-point and local addition only: a group of n
// ranks exchanges slices directly and adds them in tree order, 2(n−1)/n·S bytes per rank for an
// all-reduce of S.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <mpi.h>

#include "trireme/comm/communicator.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::comm {

/// The address that MPI gets for one in a device's memory: simulated devices of tests have theirs
/// in host memory.
using MessageAddress = std::function<void*(void*)>;

/// How tensors of a device other than the host get to MPI.
struct DeviceMessages {
  /// MPI reads and writes the device's memory itself, and sums are added on the device; otherwise
  /// the host works on copies in staging memory. Ranks may differ in this: the messages are equal.
  bool direct = false;
  MessageAddress address{};  // where direct; empty: as it is
};

/// Duplicates `parent` (so that our traffic is ours alone); collective over it. Scratch memory is
/// entered in `ledger` as communication. A communicator of size 1 is the self communicator.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, device::MemoryLedger& ledger,
                                                    const DeviceMessages& messages = {});

/// Bytes that such a communicator of `size` ranks enters in the ledger once it has reduced tensors
/// of at most `largest` bytes (all_reduce's data, reduce_scatter's input; for reduce_scatter_v,
/// `size` times the largest count's bytes). Nothing else takes scratch.
std::size_t scratch_bytes(int size, std::size_t largest);

}  // namespace trireme::comm
