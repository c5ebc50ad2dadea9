// Compares by hash what several ranks hold as replicas.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/grid.hpp"
#include "trireme/parallel/replica.hpp"

namespace trireme::parallel {

/// What is equal on all ranks of the data axis: all state, or only the parameters where workers
/// keep optimizer states of their own.
enum class Alike : std::uint8_t { state, parameters };

/// Compares every parameter and optimizer state that ranks hold as replicas:
/// - over the data axis everything, or shards over their replica group;
/// - over the tensor axis rows that are not split and shared key/value heads, where they are whole
///   (tensor ranks cut shards in different places);
/// - between the first and the last stage tied weights.
/// Collective over the grid. Throws AgreedError, the same on every rank, that names tensor, axis,
/// two ranks of the world and `step`, and the rank that differs where two or more others agree.
void check_replicas(const Replica& replica, comm::Grid& grid, std::int64_t step,
                    Alike alike = Alike::state);

/// A bit changed on purpose in what this rank holds of parameters and optimizer state.
struct Flip {
  std::string tensor;        // "" where the rank holds nothing; else as check_replicas names it
  std::int64_t element = 0;  // of the rank's part of the tensor
  int bit = 0;               // 0: the last of the fraction
  Tensor word;               // fp32 [1], the element itself
  device::Device* device = nullptr;
  /// Flips the bit. A second call restores it.
  void apply() const;
  std::string to_string() const;
};
/// Flips one bit. Tensor, element and bit are functions of (seed, number) and of what this rank
/// holds; every tensor, or tile of one, is equally likely. Not collective.
Flip flip_bit(const Replica& replica, std::uint64_t seed, std::uint64_t number);

}  // namespace trireme::parallel
