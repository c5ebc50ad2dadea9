// Sums over rows (bias and norm gradients) in an order that does not depend on the threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/core/pairwise.hpp"

#include "cpu_ops.hpp"
#include "threads.hpp"

namespace trireme::ops {

/// Elements of one fp64 partial sum of squares; sharded state is divided at multiples of it.
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

/// Leaves that one thread adds up before it goes on: a power of two, so that they form a subtree
/// and the order of sums is unchanged. As many as fit a core's second-level cache and leave every
/// thread several groups.
inline std::int64_t tiles_of_group(std::int64_t tiles, std::int64_t width, int threads) {
  constexpr std::int64_t bytes = 256 << 10;
  std::int64_t group = 1;
  while (2 * group * width * std::int64_t{sizeof(float)} <= bytes &&
         tiles >= std::int64_t{8} * threads * group) {
    group *= 2;
  }
  return group;
}

template <class Kernel>
void CpuOps::sum_row_tiles(std::int64_t rows, std::int64_t columns, float* const* sums, int outputs,
                           const Kernel& kernel) {
  if (rows == 0 || columns == 0) return;
  const std::int64_t tiles = row_tiles(rows), width = outputs * columns;
  const std::int64_t group = tiles_of_group(tiles, width, threads_);
  const std::int64_t groups = (tiles + group - 1) / group;
  float* partial = scratch<float>(static_cast<std::size_t>(tiles * width));  // [tiles, outputs, C]
  const auto add_tiles = [&](float* area, std::int64_t count, std::int64_t step, std::int64_t begin,
                             std::int64_t end) {
    add_pairwise(count, [&](std::int64_t to, std::int64_t from) {
      accumulate_range(area + to * step * width, area + from * step * width, begin, end);
    });
  };
  const auto fill = [&](std::int64_t index, float* area) {
    const std::int64_t first = index * group, count = std::min(group, tiles - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = (first + i) * row_tile;
      kernel(begin, std::min(rows, begin + row_tile), area + i * width);
    }
    add_tiles(area, count, 1, 0, width);
  };
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (row_tile * columns * group));
  parallel_ranges(threads_, groups, grain, 1, [&](std::int64_t begin, std::int64_t end) {
    // Later groups use the second group's memory, which stays in the cache: the second comes last.
    const auto own = [&](std::int64_t index) { return partial + index * group * width; };
    fill(begin, own(begin));
    for (std::int64_t index = begin + 2; index < end; ++index) {
      fill(index, own(begin + 1));
      std::copy_n(own(begin + 1), width, own(index));
    }
    if (begin + 1 < end) fill(begin + 1, own(begin + 1));
  });
  parallel_ranges(threads_, width, 8192, 16, [&](std::int64_t begin, std::int64_t end) {
    add_tiles(partial, groups, group, begin, end);
  });
  for (int i = 0; i < outputs; ++i) accumulate_range(sums[i], partial + i * columns, 0, columns);
}

}  // namespace trireme::ops
