// Attention by a library's fused kernel, for the calls that it accepts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/ops/cuda_ops.hpp"

#include "kernels.hpp"

namespace trireme::device {
class Device;
class MemoryLedger;
}  // namespace trireme::device

namespace trireme::ops {

/// Whether libraries have a fused kernel for the call: bf16 or fp16, plain causal sequences of more
/// than one token, no dropout, whole groups of heads, aligned heads of at most 128 elements.
bool can_fuse(const Attention& call);
bool can_fuse(const Attention& call, const AttentionGradients& gradients);

class FusedAttention {
 public:
  FusedAttention() = default;
  FusedAttention(const FusedAttention&) = delete;
  FusedAttention& operator=(const FusedAttention&) = delete;
  virtual ~FusedAttention() = default;
  /// Queues the call; false, and nothing queued, if the library refuses it.
  virtual bool forward(const Attention& call) = 0;
  virtual bool backward(const Attention& call, const AttentionGradients& gradients) = 0;
  /// See AlgorithmChoices::describe_attention.
  virtual std::vector<AttentionChoice> describe() const = 0;
};

/// cuDNN's on `stream`, its workspace entered in the ledger. It refuses every call if cuDNN does
/// not start; null if Trireme was built without cuDNN. `deterministic`: backward is bitwise
/// repeatable.
std::unique_ptr<FusedAttention> make_fused_attention(device::MemoryLedger& ledger,
                                                     device::Device& device, CUstream_st* stream,
                                                     bool deterministic);
std::string attention_library();  // its name and version, or that there is none

}  // namespace trireme::ops
