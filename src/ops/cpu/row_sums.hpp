// Sums over rows (bias and norm gradients) in an order that does not depend on threads.
#pragma once

#include <cstdint>

#include "trireme/core/pairwise.hpp"

#include "cpu_ops.hpp"
#include "threads.hpp"

namespace trireme::ops {

/// Elements of one fp64 partial sum of squares; boundaries of sharded state fall on such blocks.
inline constexpr std::int64_t square_block = 4096;
inline std::int64_t square_blocks(std::int64_t elements) {
  return (elements + square_block - 1) / square_block;
}

/// Rows of one leaf of the tree of sums.
inline constexpr std::int64_t row_tile = 64;

/// Leaves of the tree.
inline std::int64_t row_tiles(std::int64_t rows) { return (rows + row_tile - 1) / row_tile; }

/// y[i] += x[i].
void accumulate_range(float* y, const float* x, std::int64_t begin, std::int64_t end);

template <class Kernel>
void CpuOps::sum_row_tiles(std::int64_t rows, std::int64_t columns, float* const* sums, int outputs,
                           const Kernel& kernel) {
  if (rows == 0 || columns == 0) return;
  const std::int64_t tiles = row_tiles(rows);
  const std::int64_t width = outputs * columns;
  float* partial = scratch<float>(static_cast<std::size_t>(tiles * width));  // [tiles, outputs, C]
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (row_tile * columns));
  parallel_ranges(threads_, tiles, grain, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      kernel(tile * row_tile, std::min(rows, (tile + 1) * row_tile), partial + tile * width);
    }
  });
  parallel_ranges(threads_, width, 8192, 16, [&](std::int64_t begin, std::int64_t end) {
    add_pairwise(tiles, [&](std::int64_t to, std::int64_t from) {
      accumulate_range(partial + to * width, partial + from * width, begin, end);
    });
  });
  for (int i = 0; i < outputs; ++i) accumulate_range(sums[i], partial + i * columns, 0, columns);
}

}  // namespace trireme::ops
