// cuDNN, and calls of attention as its graphs, which can be queried without a device.
#pragma once

#include <cstdint>
#include <string>

#include <cudnn_frontend.h>

#include "kernels.hpp"

namespace trireme::ops {

/// Loads cuDNN once, so that processes without a GPU do not need it; its frontend looks up all
/// functions in the loaded library. Returns why it could not be loaded, or an empty string.
const std::string& load_cudnn();

/// Identifiers of a graph's tensors.
namespace attention_tensor {
enum Name : std::int64_t { q = 1, k, v, out, lse, dout, dq, dk, dv };
}

/// Adds the tensors and the operation of a call that can_fuse accepts to an empty graph, whose
/// device may be set already. Neither validates nor builds it.
void add_attention(cudnn_frontend::graph::Graph& graph, const Attention& call);
/// `deterministic`: additions in a fixed order.
void add_attention_gradient(cudnn_frontend::graph::Graph& graph, const Attention& call,
                            const AttentionGradients& to, bool deterministic);

/// Builds the graph's plan for the device of `handle` or, without one, for the graph's own; sets
/// `workspace` to its bytes. Returns the library's reason if it cannot.
cudnn_frontend::error_t build(cudnn_frontend::graph::Graph& graph, cudnnHandle_t handle,
                              std::int64_t& workspace);

}  // namespace trireme::ops
