// What a rank does with its own part of a collective: copies.
#pragma once

#include <utility>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

struct LocalCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;

  void run(device::Queue& queue) const {
    if (bytes > 0 && to != from) queue.copy(to, from, bytes);
  }
};

/// The messages of `rank` to itself, sends and receives paired in order; they are taken out of
/// `messages`.
std::vector<LocalCopy> take_own_messages(std::vector<Communicator::Message>& messages, int rank);

}  // namespace trireme::comm
