// Times of repeated work on all ranks, and the place where it is done.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/train/compute_device.hpp"

namespace trireme::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// How often work is repeated: first without being timed, then timed.
struct Rounds {
  std::int64_t warmup = 5, iterations = 20;
};

/// Of all iterations of all ranks, in seconds. `p99`: the least time that 99 of 100 do not exceed
/// (nearest rank).
struct Times {
  double minimum = 0, average = 0, maximum = 0, p99 = 0;
};
/// At least one value.
Times times_of(std::vector<double> seconds);
/// The same over every rank's values; collective, the same on every rank.
Times times_over_ranks(comm::Communicator& world, const std::vector<double>& own);

/// Where benchmarks run. Ranks do everything at once, as in training.
struct Place {
  comm::Session& session;
  comm::Communicator& world;
  const train::ComputeDevice& computes;
  int threads = 1;
  device::Device& device() const { return computes.device(); }
};

/// Waits until the device has done what was queued on it.
inline void settle(device::Device& device) {
  if (!device.is_host()) device::wait_for(device);
}

/// Times of `work`, one by one, over all ranks; collective. The ranks begin together and are not
/// brought together again between iterations: where `work` communicates, one's wait for another is
/// part of it, and where it does not, nothing is. A rank that does not take part only looks on.
template <class Work>
Times time_rounds(const Place& place, const Rounds& rounds, Work&& work, bool takes_part = true) {
  const auto whole = [&] {
    work();
    settle(place.device());
  };
  for (std::int64_t i = 0; takes_part && i < rounds.warmup; ++i) whole();
  place.world.barrier();
  std::vector<double> seconds;
  for (std::int64_t i = 0; takes_part && i < rounds.iterations; ++i) {
    const auto begin = Clock::now();
    whole();
    seconds.push_back(seconds_since(begin));
  }
  return times_over_ranks(place.world, seconds);
}

}  // namespace trireme::bench
