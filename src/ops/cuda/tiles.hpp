// How kernels divide their work, as functions of shapes: for kernels, for the size of their
// workspace, and for tests without a device.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace trireme::ops {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Sums over rows: rows are divided into chunks, whose sums are then added. The number of chunks
/// depends on the shape alone, not on the device.
constexpr std::int64_t sum_chunks(std::int64_t rows) {
  const std::int64_t chunks = ceil_div(rows, 64);
  return chunks < 128 ? chunks : 128;
}
constexpr std::int64_t rows_of_chunk(std::int64_t rows) {
  return rows == 0 ? 1 : ceil_div(rows, sum_chunks(rows));
}

/// Bits of keys 0 … largest.
constexpr int key_bits(std::int64_t largest) {
  int bits = 1;
  while (bits < 32 && (largest >> bits) != 0) ++bits;
  return bits;
}

/// Elements of 16 bits before the first multiple of 16 bytes from `address` on.
constexpr int elements_to_boundary(std::uintptr_t address, int size) {
  return static_cast<int>((16 - address % 16) % 16) / size;
}

/// Attention: a block has 64 queries (or keys, for their gradients) and iterates over tiles of keys
/// (or queries).
inline constexpr int own_rows = 64;
/// Head sizes are padded with zeros to 64, 128 or 256.
constexpr int padded_head(std::int64_t size) { return size <= 64 ? 64 : size <= 128 ? 128 : 256; }
constexpr int tile_rows(int padded) { return padded == 64 ? 64 : 32; }
/// Elements from one row in shared memory to the next: padded by 16 bytes, so that equal columns of
/// eight rows are in different banks.
constexpr int row_elements(int padded, int element_bytes) { return padded + 16 / element_bytes; }

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
