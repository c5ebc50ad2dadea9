// What a block of queries sees of a block of keys in attention, for all backends. This header
// includes none that nvcc cannot read.
#pragma once

#include <cstdint>

namespace trireme::ops {

/// Least and greatest position and document of a block of queries or keys.
struct Extent {
  std::int32_t first_position, last_position, first_document, last_document;
};

/// Whether a block of queries sees none, some or all keys of another.
enum class Seen : std::uint8_t { none, some, all };
constexpr Seen seen(const Extent& q, const Extent& k, bool causal) {
  if ((causal && k.first_position > q.last_position) || k.first_document > q.last_document ||
      k.last_document < q.first_document) {
    return Seen::none;
  }
  const bool all = (!causal || k.last_position <= q.first_position) &&
                   k.first_document == k.last_document && q.first_document == q.last_document &&
                   k.first_document == q.first_document;
  return all ? Seen::all : Seen::some;
}

}  // namespace trireme::ops
