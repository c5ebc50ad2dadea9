// The order in which sums of several terms are taken where their bits must not depend on who adds.
#pragma once

#include <cstdint>

namespace trireme {

/// Adds up `count` terms as a balanced tree: add(i, j) adds term j to term i, and term 0 ends as
/// the sum. The order depends on `count` alone; if that is a power of two, each half is a tree.
template <class Add>
void add_pairwise(std::int64_t count, const Add& add) {
  for (std::int64_t step = 1; step < count; step *= 2) {
    for (std::int64_t i = 0; i + step < count; i += 2 * step) add(i, i + step);
  }
}

}  // namespace trireme
