// The order in which sums of several terms are taken where their bits must not depend on who adds.
#pragma once

#include <bit>
#include <cstdint>

#include "trireme/core/error.hpp"

namespace trireme {

/// Adds up `count` terms as a balanced tree: add(i, j) adds term j to term i, and term 0 ends as
/// the sum. The order depends on `count` alone; if that is a power of two, each half is a tree.
template <class Add>
void add_pairwise(std::int64_t count, const Add& add) {
  for (std::int64_t step = 1; step < count; step *= 2) {
    for (std::int64_t i = 0; i + step < count; i += 2 * step) add(i, i + step);
  }
}

/// The same sum of a power of two of terms that are not in memory at once: compute(i, slot) writes
/// term i to a slot, add(to, from) adds slot `from` to slot `to`, and slot 0 ends as the sum. There
/// are log2(count) + 1 slots.
template <class Compute, class Add>
void sum_pairwise(std::int64_t count, const Compute& compute, const Add& add) {
  TRIREME_ASSERT(std::has_single_bit(static_cast<std::uint64_t>(count)), "a tree of {} terms",
                 count);
  const auto slot_of = [](std::int64_t i) {
    return i == 0 ? 0 : std::countr_zero(static_cast<std::uint64_t>(i)) + 1;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    compute(i, slot_of(i));
    std::int64_t first = i;  // of the terms that are complete with term i
    for (int level = 0; (i >> level) % 2 == 1; ++level) {
      first -= std::int64_t{1} << level;
      add(slot_of(first), level + 1);
    }
  }
}

}  // namespace trireme
