// Turning one rank's failure into everybody's.
#pragma once

#include <string>

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

}  // namespace trireme::comm
