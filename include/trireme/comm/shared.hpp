// Groups whose ranks share memory: collectives on tensors of the host pass through a window
// (MPI_Win_allocate_shared) instead of messages. Every rank has a ring of slots that it alone fills
// and the others read. A reduction reads all contributions in place and adds them in the tree of
// device/reduce_tree.cpp, so the bits are those of messages. No call waits: operations look at
// counters in the window when they are polled, and continue from there.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include "trireme/comm/communicator.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::comm {

/// Memory of which each rank of a node has a segment that all of them see.
class SharedWindow {
 public:
  /// Collective over `node`, whose ranks share memory; `bytes` (a multiple of 64, possibly 0) of
  /// this rank's, zeroed, entered in `ledger` as communication. Null on all ranks where there is
  /// less memory, with the reason in `why`: "/dev/shm has 64.0 MiB free, …". `space`: bytes that
  /// tests take to be free, instead of those of /dev/shm, where MPI libraries keep windows.
  static std::unique_ptr<SharedWindow> make(MPI_Comm node, std::size_t bytes,
                                            device::MemoryLedger& ledger, std::string& why,
                                            std::optional<std::size_t> space = {});
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;
  /// Collective, except while an exception is handled: then the window stays until the process ends
  /// (its file has no name any more).
  ~SharedWindow();
  /// Of a rank of `node`, aligned to 64 bytes.
  std::byte* segment(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }

 private:
  SharedWindow(MPI_Comm node, std::size_t bytes, device::MemoryLedger& ledger);
  bool populate();

  device::MemoryLedger& ledger_;
  std::size_t bytes_;
  MPI_Win window_ = MPI_WIN_NULL;
  std::byte* own_ = nullptr;
  std::vector<std::byte*> segments_;
};

/// Bytes of shared memory that each rank of a group of `size` takes; 0 for one rank.
std::size_t shared_area_bytes(int size);

/// A communicator of the ranks of `mpi`. `areas`: by rank of the group, the address of its zeroed
/// area of shared_area_bytes in a window. `mpi` does all-to-all, exchanges, agreement and tensors
/// of other devices. Traffic is counted as if messages carried it. Ranks that disagree on an
/// operation or its size get an Error.
std::unique_ptr<Communicator> make_shared_communicator(std::unique_ptr<Communicator> mpi,
                                                       std::span<std::byte* const> areas);

}  // namespace trireme::comm
