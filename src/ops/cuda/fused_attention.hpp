// A library's attention in one kernel, for the calls that it takes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/ops/algorithm_choices.hpp"

#include "kernels.hpp"

namespace trireme::device {
class Device;
class MemoryLedger;
}  // namespace trireme::device

namespace trireme::ops {

/// Whether a call is of the kind that libraries have one kernel for: bf16 or fp16, plain causal
/// sequences of more than one token, no dropout, all heads of each group, head sizes in 16-byte
/// steps up to 128, everything aligned.
bool can_fuse(const Attention& call);
bool can_fuse(const Attention& call, const AttentionGradients& gradients);

class FusedAttention {
 public:
  FusedAttention() = default;
  FusedAttention(const FusedAttention&) = delete;
  FusedAttention& operator=(const FusedAttention&) = delete;
  virtual ~FusedAttention() = default;
  /// Queues the call; false, and nothing queued, where the library does not take it.
  virtual bool forward(const Attention& call) = 0;
  virtual bool backward(const Attention& call, const AttentionGradients& gradients) = 0;
  /// See AlgorithmChoices::describe_attention.
  virtual std::vector<AttentionChoice> describe() const = 0;
};

/// cuDNN's, on `stream`, its work space entered in the ledger, which refuses every call where cuDNN
/// does not start; null where Trireme was built without
/// cuDNN. `deterministic`: only a backward that always gives the same bits.
std::unique_ptr<FusedAttention> make_fused_attention(device::MemoryLedger& ledger,
                                                     device::Device& device, CUstream_st* stream,
                                                     bool deterministic);
std::string attention_library();  // its name and version, or that there is none

}  // namespace trireme::ops
