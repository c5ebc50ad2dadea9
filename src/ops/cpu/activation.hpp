// Activations of one row, for fusion into products.
#pragma once

#include <cstdint>

#include "storage.hpp"

namespace trireme::ops {

/// y = gelu(x)
void gelu_row(std::int64_t n, Bf16* y, const Bf16* x);
/// x += bias, y = gelu(x); null: no bias. `streamed`: y bypasses the caches if it is aligned.
void biased_gelu_row(std::int64_t n, float* y, float* x, const float* bias, bool streamed);
/// dx = dy·gelu'(x); dx may be dy.
void gelu_backward_row(std::int64_t n, Bf16* dx, const Bf16* dy, const Bf16* x);
void gelu_backward_row(std::int64_t n, float* dx, const float* dy, const float* x);

}  // namespace trireme::ops
