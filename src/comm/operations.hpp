// The MPI communicator beneath Communicators, and the resumable operations that these enqueue.
#pragma once

#include <chrono>
#include <deque>
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

/// One for each kind of operation, so that ranks which enqueue different ones do not mix their
/// messages.
enum Tag : int { contribution, result, gathered, spread, exchanged, grouped, count };
static_assert(Tag::count <= MpiHandle::tags_per_channel);

/// An operation that counts what it sends and how long it takes.
class WireOperation : public device::Operation {
 public:
  void start() final;
  bool test() final;

 protected:
  WireOperation(const Group& group, const Place& place, OperationKind kind)
      : group_(group), place_(place), kind_(kind) {}
  virtual void begin() = 0;
  virtual bool advance() = 0;  // true once finished
  Wire wire() {
    return {group_.comm, group_.first_tag, &sent_,
            place_.device.is_host() ? nullptr : &group_.messages.address};
  }
  const Group& group_;
  const Place place_;

 private:
  OperationKind kind_;
  std::int64_t sent_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

/// Messages that depend on nothing: all posted at the start.
class ExchangeOperation : public WireOperation {
 public:
  struct Part {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    int peer = 0;
    bool send = false;
  };
  /// `kind`: all_gather, all_to_all or exchange.
  ExchangeOperation(const Group& group, const Place& place, OperationKind kind,
                    std::vector<Part> parts, std::vector<LocalCopy> copies);

 private:
  void begin() override;
  bool advance() override { return requests_.test() && (!copied_ || copied_->reached()); }

  Requests requests_;
  std::shared_ptr<device::Fence> copied_;
  Tag tag_;
  std::vector<Part> parts_;
  std::vector<LocalCopy> copies_;
};

/// A binomial tree; pieces travel down it as they arrive, a few at once.
class BroadcastOperation : public WireOperation {
 public:
  BroadcastOperation(const Group& group, const Place& place, const Tensor& data, int root);
  std::uint64_t steps() const override { return steps_; }

 private:
  void begin() override {}
  bool advance() override;
  bool step();
  std::byte* at(std::int64_t piece) const;
  std::size_t piece_bytes(std::int64_t piece) const;

  std::byte* data_;
  std::size_t bytes_;
  int parent_ = -1;  // −1 at the root
  std::vector<int> children_;
  // Pieces whose arrival is expected, and those that are on their way to the children.
  std::int64_t pieces_ = 0, posted_ = 0, forwarded_ = 0;
  std::deque<Requests> arriving_, leaving_;  // one per piece; arriving_ from piece forwarded_ on
  std::uint64_t steps_ = 0;
};

/// Reduce-scatter by direct exchange, followed by an all-gather of the slices where `gather`.
/// Rank r reduces slice r: everyone's contribution to it goes to r's scratch memory, piece by
/// piece, and is added in tree order; a few pieces are under way at once.
class ReduceOperation : public WireOperation {
 public:
  ReduceOperation(const Group& group, const Place& place, SliceReduction job);
  std::uint64_t steps() const override { return steps_; }

 private:
  void begin() override;
  bool advance() override;
  struct Slot {
    Requests contributions, sends;
  };
  Stretch stretch(int rank, std::int64_t piece) const {
    return job_.stretch(rank, piece, piece_elements_);
  }
  std::byte* scratch(int rank, std::int64_t piece) const;
  Slot& slot(std::int64_t piece) { return slots_[static_cast<std::size_t>(piece) % slots_.size()]; }
  template <class Visit>
  void for_each_peer(std::int64_t piece, const Visit& visit) const;
  void post(std::int64_t piece);
  void reduce(std::int64_t piece);
  void publish(std::int64_t piece);
  void open(std::int64_t piece);
  bool step();

  SliceReduction job_;
  std::int64_t piece_elements_ = 1, pieces_ = 0;
  std::byte* scratch_ = nullptr;
  std::vector<Slot> slots_;
  std::deque<Requests> results_;
  std::deque<std::shared_ptr<device::Fence>> adding_;  // from piece added_ on
  // Pieces whose contributions are under way; are being added; are added; whose sends are over, so
  // that results may arrive in their place. Each is passed in order.
  std::int64_t posted_ = 0, reduced_ = 0, added_ = 0, opened_ = 0;
  std::uint64_t steps_ = 0;
};

/// Bytes of one piece of one contribution, and of all scratch that a reduction whose longest slice
/// has `slice` bytes takes.
std::size_t reduce_piece_bytes(int size);
std::size_t reduce_scratch_bytes(int size, std::size_t slice);

}  // namespace trireme::comm
