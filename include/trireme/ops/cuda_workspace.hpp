// Bytes of work space that the libraries of the CUDA backend take, as far as they are known before
// calls are made. What kernels of our own work in is not counted: sums of columns, some MB.
#pragma once

#include <cstddef>

#include "trireme/ops/attention_shape.hpp"

namespace trireme::ops {

/// cuBLASLt's, of a fixed size.
inline constexpr std::size_t cuda_product_workspace = std::size_t{32} << 20;

/// Whether a library has one kernel for calls of plain causal attention without dropout of this
/// shape in bf16 or fp16; no promise that it takes them.
bool cuda_attention_fuses(const AttentionShape& shape);

/// What cuDNN's backward of such a call takes at most, on devices of compute capability 8.0 to 10.0
/// (cuDNN 9.19; tests/cuda/cudnn_plans_test.cpp asks it): per query the sum of dout·out, and the
/// query's gradient in fp32, on 8.x with another as large; where additions have a fixed order
/// (`deterministic`), and on devices before 10.0, the whole [B, H, Tq, Tk] of scores' gradients in
/// the narrow type instead. Heads that share a group have gradients of their own for keys and
/// values.
std::size_t cuda_attention_workspace(const AttentionShape& shape, bool deterministic);

}  // namespace trireme::ops
