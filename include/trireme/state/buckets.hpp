// Which stretches of the flat gradient buffer are reduced together, and when each is ready.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/params/table.hpp"

namespace trireme::state {

/// Elements [begin, end) of the flat gradients, final once unit `after_unit` has finished its
/// backward for weights (units run from last to first; a tied weight lies with its first unit, its
/// last to finish).
struct Bucket {
  std::int64_t begin = 0, end = 0;
  int after_unit = 0;
};

/// Buckets in the order in which they become ready. Each gathers whole units until it holds
/// `elements`; a larger unit is cut into pieces of `elements`. Together they cover the flat buffer
/// once.
std::vector<Bucket> plan_buckets(const params::ParameterTable& table, int units,
                                 std::int64_t elements);

}  // namespace trireme::state
