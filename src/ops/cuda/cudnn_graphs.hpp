// Calls of attention as graphs of cuDNN's, which can be asked about without a device too.
#pragma once

#include <cstdint>

#include <cudnn_frontend.h>

#include "kernels.hpp"

namespace trireme::ops {

/// The numbers by which a graph's tensors are given memory.
namespace attention_tensor {
enum Name : std::int64_t { q = 1, k, v, out, lse, dout, dq, dk, dv };
}

/// Adds the tensors and the operation of a call that can_fuse takes to an empty graph, which may
/// know already what device it is for; neither validates nor builds it.
void add_attention(cudnn_frontend::graph::Graph& graph, const Attention& call);
/// `deterministic`: additions in a fixed order.
void add_attention_gradient(cudnn_frontend::graph::Graph& graph, const Attention& call,
                            const AttentionGradients& to, bool deterministic);

/// Builds what was added, for `handle`'s device or, without one, for the device that the graph was
/// told of; the graph then has its plan, and `workspace` the bytes that it takes. A library that
/// cannot says why.
cudnn_frontend::error_t build(cudnn_frontend::graph::Graph& graph, cudnnHandle_t handle,
                              std::int64_t& workspace);

}  // namespace trireme::ops
