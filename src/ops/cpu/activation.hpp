// Activations of one row, for what fuses them.
#pragma once

#include <cstdint>

#include "storage.hpp"

namespace trireme::ops {

/// y = gelu(x)
void gelu_row(std::int64_t n, Bf16* y, const Bf16* x);
/// dx = dy·gelu'(x); dx may be dy.
void gelu_backward_row(std::int64_t n, Bf16* dx, const Bf16* dy, const Bf16* x);

}  // namespace trireme::ops
