// Makes one rank's failure, or a difference between ranks, an error on every rank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm {

/// Runs `work` on this rank; collective. When it threw an Error on any rank, every rank throws an
/// AgreedError with the message of the lowest such rank. `work` itself must not communicate over
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
  for (const std::string& text : world.all_gather_texts(message)) {
    if (!text.empty()) throw AgreedError(text);
  }
}

/// The text that `work` returns on rank 0, on every rank: for what ranks might see differently (the
/// newest checkpoint, a file of which nodes have copies). Collective; an Error is thrown on every
/// rank, as by agree.
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

/// Ranks must compute alike, with the same instructions and libraries: throws an AgreedError that
/// names a rank whose `value` is not that of rank 0, and both values. Collective.
inline void require_alike(Communicator& world, std::string_view what, const std::string& value,
                          std::string_view remedy) {
  const std::string first = of_rank_zero(world, [&] { return value; });
  agree(world, [&] {
    if (value == first) return;
    throw Error(
        "environment: rank {} of {} has {} {}, rank 0 has {}: all ranks must compute alike; {}",
        world.rank(), world.size(), what, value, first, remedy);
  });
}

}  // namespace trireme::comm
