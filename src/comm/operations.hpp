// The MPI communicator beneath Communicators, and the resumable operations that these enqueue.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <mpi.h>

#include "trireme/comm/communicator.hpp"

#include "common.hpp"
#include "requests.hpp"

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

/// The device of an operation's tensors, and the queue of its own work on them.
struct Place {
  device::Device& device;
  device::Queue& queue;
};

/// What the operations of a communicator share: they run one after another, so also the scratch of
/// a device, which grows when it must.
struct Group {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  int first_tag = 0;
  TrafficCounter* traffic = nullptr;
  std::function<std::byte*(device::Device&, std::size_t)> scratch;
  DeviceMessages messages;
};

/// Messages that depend on nothing, all posted at the start, beside copies within this rank's
/// memory. `kind`: all_gather, all_to_all or exchange.
std::unique_ptr<device::Operation> make_exchange(const Group& group, const Place& place,
                                                 OperationKind kind, std::vector<Part> parts,
                                                 std::vector<LocalCopy> copies);
/// A binomial tree; pieces travel down it as they arrive, a few at once.
std::unique_ptr<device::Operation> make_broadcast(const Group& group, const Place& place,
                                                  const Tensor& data, int root);
/// Reduce-scatter by direct exchange, followed by an all-gather of the slices where `gather`.
/// Rank r reduces slice r: everyone's contribution to it goes to r's scratch memory, piece by
/// piece, and is added in tree order; a few pieces are under way at once.
/// An all-reduce of few bytes of many ranks passes along a tree instead.
std::unique_ptr<device::Operation> make_reduction(const Group& group, const Place& place,
                                                  SliceReduction job);
/// Bytes of all scratch that a reduction whose longest slice has `slice` bytes takes.
std::size_t reduce_scratch_bytes(int size, std::size_t slice);

}  // namespace trireme::comm
