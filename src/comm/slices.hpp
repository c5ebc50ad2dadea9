// How the elements of a tensor are divided among the ranks of a group.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace trireme::comm {

/// Where each of `size` slices of `elements` begins, cut as evenly as they go, and where the last
/// one ends.
inline std::vector<std::int64_t> even_slices(std::int64_t elements, int size) {
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank <= size; ++rank) {
    begins.push_back(elements / size * rank + elements % size * rank / size);
  }
  return begins;
}

/// The same of slices of `counts` elements.
inline std::vector<std::int64_t> slices_of(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> begins(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
  return begins;
}

}  // namespace trireme::comm
