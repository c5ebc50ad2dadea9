// Replicas held to their word: what several ranks hold as equal is compared by hash.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/grid.hpp"
#include "trireme/parallel/replica.hpp"

namespace trireme::parallel {

/// What the ranks of the data axis hold alike: all state, or, where workers keep optimizer states
/// of their own, the parameters.
enum class Alike : std::uint8_t { state, parameters };

/// Compares every parameter, and every state of the optimizer, that ranks hold as replicas: over
/// the data axis (or a replica group of shards), rows that are not split and shared key/value heads
/// over the tensor axis, tied weights between first and last stage. What is sharded is compared
/// with its replicas alone: tensor ranks cut shards in different places. Collective over the grid.
/// Throws AgreedError, the same on every rank, that names tensor, axis, two ranks of the world and
/// `step`; where one rank differs from two or more that agree, which one it is.
void check_replicas(const Replica& replica, comm::Grid& grid, std::int64_t step,
                    Alike alike = Alike::state);

/// A bit changed on purpose in what this rank holds of parameters and optimizer state.
struct Flip {
  std::string tensor;        // "" where the rank holds nothing; else as check_replicas names it
  std::int64_t element = 0;  // of the rank's part of the tensor
  int bit = 0;               // 0: the last of the fraction
  Tensor word;               // fp32 [1], where it lies
  device::Device* device = nullptr;
  /// Changes it; a second time, back.
  void apply() const;
  std::string to_string() const;
};
/// Changes one: tensor, element and bit are functions of (seed, number) and of what this rank
/// holds; every tensor (or tile of one) is as likely as any other. Not collective.
Flip flip_bit(const Replica& replica, std::uint64_t seed, std::uint64_t number);

}  // namespace trireme::parallel
