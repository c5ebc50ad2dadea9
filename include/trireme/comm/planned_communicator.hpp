// A group that moves nothing: what it is asked to do goes to whoever plans.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// One operation of a group.
struct PlannedOperation {
  OperationKind kind = OperationKind::exchange;
  bool agreement = false;  // of a blocking convenience, which Traffic leaves out
  /// Of all slices together: the tensor that is reduced, gathered or broadcast; 0 for an exchange.
  std::int64_t bytes = 0;
  /// That this rank sends, as Traffic counts them.
  std::int64_t sent = 0;
  struct Message {
    int peer = 0;  // in the group
    std::int64_t bytes = 0;
    bool send = false;
    bool operator==(const Message&) const = default;
  };
  std::vector<Message> messages;  // of an exchange, without those of the rank to itself
  bool operator==(const PlannedOperation&) const = default;
};

/// Rank `rank` of `size`, at least 2. `start` gets each operation where it is enqueued, with its
/// stream, and makes what is enqueued there.
using StartPlanned = std::function<std::unique_ptr<device::Operation>(
    const PlannedOperation& operation, device::Stream& stream)>;
std::unique_ptr<Communicator> make_planned_communicator(int rank, int size, StartPlanned start);

}  // namespace trireme::comm
