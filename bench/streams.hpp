// Loops that read, write and update as many tensors as an operation does, and do nothing
// else: the memory bandwidth for that number of streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace trireme::bench {

/// Tensors of one size: read; written, past the caches; read and written in place. `halves`: one
/// more is written, of half that size.
struct Streams {
  int reads = 0, writes = 0, updates = 0;
  bool halves = false;
  bool operator==(const Streams&) const = default;
};

/// "2 r, 1 w", "1 r, 3 u".
std::string name_of(const Streams& streams);

/// The loop that `streams` names over `elements` elements of 16 bits of each tensor, on all
/// threads; tensors in the order of the members of Streams. Each begins at a cache line. What is
/// written are values that were there: tensors of bf16 and of fp32 stay finite. Throws where no
/// operation has such streams.
void run_streams(const Streams& streams, std::span<std::uint16_t* const> tensors,
                 std::size_t elements);

}  // namespace trireme::bench
