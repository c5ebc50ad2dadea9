// How kernels cut their work, as plain functions of shapes: for kernels, for those who size their
// work space, and for tests without a device.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace trireme::ops {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Sums over rows: rows are cut into chunks, whose sums are then joined. Enough chunks to fill a
/// device, few enough to join quickly; the same for a shape on every device.
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

/// Attention: blocks of 64 queries (of keys, for their gradients) meet tiles of keys (of queries).
inline constexpr int own_rows = 64;
/// Head sizes are rounded up to 64, 128 or 256, filled with zeros.
constexpr int padded_head(std::int64_t size) { return size <= 64 ? 64 : size <= 128 ? 128 : 256; }
constexpr int tile_rows(int padded) { return padded == 64 ? 64 : 32; }
/// Elements from one row in shared memory to the next: 16 bytes more than a row has, so that eight
/// rows' equal columns lie in different banks.
constexpr int row_elements(int padded, int element_bytes) { return padded + 16 / element_bytes; }

/// Whether some or all keys of a block are seen by queries of another.
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
