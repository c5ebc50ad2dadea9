// The one order in which contributions of several ranks are added: a balanced binary tree over
// ranks, which over [lo, hi) splits at lo + the largest power of two below hi − lo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/core/tensor.hpp"

namespace trireme::device {

enum class Reduction { sum, max };

/// out[i] = the reduction over r of contributions[r][i], i < elements, in that order: bf16 and fp16
/// in fp32, rounded once; fp32, fp64 and int64 in their own type. A maximum is NaN where any
/// contribution is. `out` may be one of the contributions. In host memory; Queue::reduce gives the
/// same bits (but for what a NaN carries) in a device's.
void reduce_tree(DType type, Reduction reduction, std::span<const std::byte* const> contributions,
                 std::byte* out, std::int64_t elements);

}  // namespace trireme::device
