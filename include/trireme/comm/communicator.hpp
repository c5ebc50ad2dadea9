// Collectives over a group of ranks. Every operation is enqueued on a stream and returns an event;
// the buffers must stay as they are until it is done. A group of one rank is a communicator like
// any other whose operations only copy, so that call sites never branch on size.
//
// Libraries only move contributions; they are added locally as a balanced binary tree over ranks
// (device/reduce_tree.cpp) in fp32 (fp64 and int64 in their own type) and rounded once. The
// exception is NCCL with NcclOptions::library_sums, which reproducible mode never sets. So the bits
// depend on the group's size alone, and all ranks get the same. A maximum is NaN where any
// contribution is.
//
// All ranks use a communicator in the same order, with one stream at a time. Exchanges by MPI need
// no scratch and may be on several streams; NCCL runs its own one after another. A communicator
// outlives what is enqueued. The blocking conveniences may be called at the same time, from one
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/interface.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/device/device.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::comm {

using device::Reduction;

struct SliceReduction;  // src/comm/common.hpp

enum class OperationKind : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  exchange,
  count
};
constexpr std::size_t operation_kinds = static_cast<std::size_t>(OperationKind::count);
std::string_view name_of(OperationKind kind);

/// `bytes` are those that this rank sent to others: 2(n−1)/n·S for an all-reduce of S bytes over n
/// ranks, (n−1)/n·S for a reduce-scatter or all-gather, where slices are even. `seconds` run from
/// an operation's start to the poll that found it finished, with the wait for other ranks.
/// Operations of NCCL count when they are queued: their seconds are the host's for that, and their
/// bytes those of the algorithm above, whichever NCCL uses.
struct Traffic {
  std::int64_t bytes = 0, operations = 0;
  double seconds = 0;
  Traffic& operator+=(const Traffic& other);
};

struct TrafficByKind {
  std::array<Traffic, operation_kinds> kinds{};
  const Traffic& operator[](OperationKind kind) const {
    return kinds[static_cast<std::size_t>(kind)];
  }
  Traffic total() const;
  TrafficByKind& operator+=(const TrafficByKind& other);
};

/// Finished operations of one communicator. Thread-safe: the thread that polls adds, any other
/// reads.
class TrafficCounter {
 public:
  void add(OperationKind kind, const Traffic& traffic);
  TrafficByKind read() const;
  void reset();

 private:
  mutable std::mutex mutex_;
  TrafficByKind traffic_;
};

/// Memory that is registered with a communicator until this is destroyed.
class Registration : public Interface {};

class Communicator : public Interface {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// In place, contiguous; fp32, bf16, fp16, fp64 or int64.
  device::Event all_reduce(const Tensor& data, Reduction reduction, device::Stream& stream);
  /// `input` [size·n], `output` [n]: rank r gets the reduction of every rank's r-th n elements.
  /// `output` may be the rank's own part of `input`.
  device::Event reduce_scatter(const Tensor& output, const Tensor& input, Reduction reduction,
                               device::Stream& stream);
  /// The same with counts[r] elements for rank r, in rank order; counts may be 0.
  device::Event reduce_scatter_v(const Tensor& output, const Tensor& input,
                                 std::span<const std::int64_t> counts, Reduction reduction,
                                 device::Stream& stream);
  /// `output` [size·n] gets the ranks' `input` [n] in rank order; any type. `input` may be its own
  /// place in `output`.
  device::Event all_gather(const Tensor& output, const Tensor& input, device::Stream& stream);
  /// The same with counts[r] elements from rank r.
  device::Event all_gather_v(const Tensor& output, const Tensor& input,
                             std::span<const std::int64_t> counts, device::Stream& stream);
  device::Event broadcast(const Tensor& data, int root, device::Stream& stream);
  /// `input` and `output` [size·n]: block r goes to rank r and comes from rank r.
  device::Event all_to_all(const Tensor& output, const Tensor& input, device::Stream& stream);

  /// One message of a grouped exchange.
  struct Message {
    Tensor data;
    int peer = 0;
    bool send = false;
  };
  /// All messages progress together; between two ranks (or within one) they match in order and must
  /// agree in length. `kind`: what it counts as.
  device::Event exchange(std::vector<Message> messages, device::Stream& stream,
                         OperationKind kind = OperationKind::exchange);

  /// Tells the library that operations use contiguous `memory` of the device again and again, so
  /// that it may move it without copies through its own buffers. Collective: the ranks pass the
  /// same memory to the same operations. Null where nothing is gained, or a rank's library refuses.
  /// The result ends before the memory and the communicator, and after what was enqueued.
  virtual std::unique_ptr<Registration> register_memory(const Tensor& memory) {
    static_cast<void>(memory);
    return nullptr;
  }

  /// What this rank has sent by operations that were enqueued on streams and have finished, since
  /// the start or the last reset; the conveniences below are not counted. A group of one rank
  /// counts nothing.
  virtual TrafficByKind traffic() const { return counter_.read(); }
  virtual void reset_traffic() { counter_.reset(); }

  /// Calls visit(peer) for every other rank, this rank's successor first, so that no rank is
  /// everyone's first target.
  template <class Visit>
  void for_each_peer(const Visit& visit) const {
    for (int step = 1; step < size(); ++step) visit((rank() + step) % size());
  }

  // Blocking conveniences for agreement outside the step; they use a stream of their own. The
  // messages of a rank grow with log2(size).
  void barrier();
  double all_reduce(double value, Reduction reduction);
  std::int64_t all_reduce(std::int64_t value, Reduction reduction);
  void broadcast_bytes(std::vector<std::uint8_t>& bytes, int root);  // resizes on the others
  /// Every rank's bytes, or text, in rank order, on every rank.
  std::vector<std::vector<std::uint8_t>> all_gather_bytes(std::span<const std::uint8_t> bytes);
  std::vector<std::string> all_gather_texts(const std::string& text);
  /// Every rank's bytes on rank `root`, and nothing on the others.
  std::vector<std::vector<std::uint8_t>> gather_bytes(std::span<const std::uint8_t> bytes,
                                                      int root);
  /// True on every rank if `value` is true on all.
  bool all_agree(bool value) {
    return all_reduce(std::int64_t{value ? 0 : 1}, Reduction::max) == 0;
  }

 protected:
  // What a backend implements. Arguments have been checked.
  virtual device::Event start_reduction(SliceReduction reduction, device::Stream& stream) = 0;
  /// Rank r's part of `output` is elements [begins[r], begins[r + 1]).
  virtual device::Event start_gather(const Tensor& output, const Tensor& input,
                                     const std::vector<std::int64_t>& begins,
                                     device::Stream& stream) = 0;
  virtual device::Event start_broadcast(const Tensor& data, int root, device::Stream& stream) = 0;
  virtual device::Event start_exchange(OperationKind kind, std::vector<Message> messages,
                                       device::Stream& stream) = 0;
  /// The group of the same ranks that takes tensors of the stream's device.
  virtual Communicator& carrier(const device::Stream&) { return *this; }
  /// The group that the conveniences use: other traffic than that of the streams.
  virtual Communicator& agreement() { return *this; }
  static Communicator& agreement_of(Communicator& group) { return group.agreement(); }
  TrafficCounter counter_;
};

/// A group of this rank alone.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace trireme::comm
