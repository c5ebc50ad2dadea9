#include "trireme/device/memory.hpp"

#include "libraries.hpp"

namespace trireme::ops {

std::unique_ptr<FusedAttention> make_fused_attention(device::MemoryLedger&, device::Device&,
                                                     CUstream_st*, bool) {
  return nullptr;
}
std::string attention_library() {
  return "no cuDNN attention (built without cuDNN or cudnn-frontend)";
}

}  // namespace trireme::ops
