// Turning one rank's failure into everybody's.
#pragma once

#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm {

/// Runs `work` on this rank; collective. When it threw an Error on any rank, every rank throws an
/// AgreedError with the words of the lowest such rank. `work` itself must not communicate over
/// `world`.
template <class Work>
void agree(Communicator& world, Work&& work) {
  std::string message;
  try {
    work();
  } catch (const Error& error) {
    message = error.what();
    if (message.empty()) message = "unnamed error";
  }
  if (world.all_agree(message.empty())) return;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(message.data());
  for (const auto& text : world.all_gather_bytes({bytes, message.size()})) {
    if (!text.empty()) throw AgreedError(std::string(text.begin(), text.end()));
  }
}

/// The text that `work` returns on rank 0, on every rank: what ranks might see differently (the
/// newest checkpoint, a file of which nodes have copies) is looked at once. Collective; an Error is
/// everybody's, as by agree.
template <class Work>
std::string of_rank_zero(Communicator& world, Work&& work) {
  std::string text;
  agree(world, [&] {
    if (world.rank() == 0) text = work();
  });
  std::vector<std::uint8_t> bytes(text.begin(), text.end());
  world.broadcast_bytes(bytes, 0);
  return {bytes.begin(), bytes.end()};
}

}  // namespace trireme::comm
