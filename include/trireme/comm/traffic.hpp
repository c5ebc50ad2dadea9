// What a rank has sent: bytes, operations and seconds, by kind of operation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace trireme::comm {

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

/// `bytes` are those that this rank handed to MPI for other ranks (copies to itself cost nothing);
/// an all-reduce of S bytes over n ranks sends 2(n−1)/n·S in all, a reduce-scatter or all-gather
/// (n−1)/n·S, where slices are even. `seconds` run from an operation's start to the poll that found
/// it finished: waiting for other ranks is part of it, and so is compute where nobody polled
/// meanwhile. Operations that are queued on a device (NCCL) count when they are queued: their
/// seconds are the host's for that, and their bytes those of the algorithm above, whichever NCCL
/// uses.
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

}  // namespace trireme::comm
