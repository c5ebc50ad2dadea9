// The MPI communicator beneath one or several Communicators of the same ranks.
#pragma once

#include <memory>

#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"

namespace trireme::comm {

/// An MPI communicator that is ours alone. Each user takes a channel, a range of tags: MPI matches
/// messages of different tags independently, so channels are as separate as communicators would be,
/// and making one costs no communication.
class MpiHandle {
 public:
  static constexpr int tags_per_channel = 8;

  /// Takes `comm` over.
  explicit MpiHandle(MPI_Comm comm);
  MpiHandle(const MpiHandle&) = delete;
  MpiHandle& operator=(const MpiHandle&) = delete;
  ~MpiHandle();
  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// First tag of a range nobody else has; all ranks ask in the same order.
  int take_channel();

 private:
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1, channels_ = 0;
};

/// A communicator with two channels of `handle`: for streams and for agreement.
std::unique_ptr<Communicator> make_mpi_communicator(const std::shared_ptr<MpiHandle>& handle,
                                                    device::MemoryLedger& ledger,
                                                    const DeviceMessages& messages = {});

}  // namespace trireme::comm
