// The one order in which contributions of several ranks are added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// out[i] = the reduction over r of contributions[r][i], i < elements, in the tree order that
/// communicator.hpp states: bf16 and fp16 in fp32, rounded once. `out` may be one of the
/// contributions.
void reduce_tree(DType type, Reduction reduction, std::span<const std::byte* const> contributions,
                 std::byte* out, std::int64_t elements);

}  // namespace trireme::comm
