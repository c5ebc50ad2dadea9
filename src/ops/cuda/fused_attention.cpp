#include "fused_attention.hpp"

#include "trireme/ops/workspace.hpp"

namespace trireme::ops {
namespace {

bool in_steps(const Heads& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(x.data);
  return address % 16 == 0 && x.batch_stride % 8 == 0 && x.stride % 8 == 0 &&
         x.head_stride % 8 == 0;
}

}  // namespace

bool can_fuse(const Attention& call) {
  const bool plain = call.causal && call.query_positions == nullptr &&
                     call.key_positions == nullptr && call.query_documents == nullptr &&
                     call.key_documents == nullptr;
  const bool whole_groups =
      call.heads == call.groups * call.share && call.first_head % call.share == 0;
  return call.type != Element::f32 && plain && whole_groups && call.samples == nullptr &&
         cuda_attention_fuses(
             {call.batch, call.queries, call.keys, call.heads, call.groups, call.size}) &&
         in_steps(call.q) && in_steps(call.k) && in_steps(call.v) && in_steps(call.out);
}

bool can_fuse(const Attention& call, const AttentionGradients& gradients) {
  return can_fuse(call) && in_steps(gradients.dout) && in_steps(gradients.dq) &&
         in_steps(gradients.dk) && in_steps(gradients.dv);
}

}  // namespace trireme::ops
