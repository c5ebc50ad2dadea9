#include <utility>

#include "trireme/device/cuda.hpp"
#include "trireme/ops/cuda_ops.hpp"

#include "cuda_ops.hpp"

namespace trireme::ops {

std::unique_ptr<Ops> make_cuda_ops(device::Device& device, const CudaOpsOptions& options) {
  auto* cuda = dynamic_cast<device::CudaDevice*>(&device);
  if (cuda == nullptr) {
    throw Error("CUDA operations on {}: that is no CUDA device; make one with make_cuda_device",
                device.name());
  }
  CudaParts parts(device, options.ledger);
  parts.stream = cuda->stream();
  parts.reproducible = options.reproducible;
  parts.products = make_library_products(*parts.ledger, device, parts.stream, options);
  if (options.fused_attention) {
    parts.attention = make_fused_attention(*parts.ledger, device, parts.stream,
                                           options.reproducible || options.deterministic_attention);
  }
  return std::make_unique<CudaOps>(std::move(parts));
}

std::string cuda_libraries() { return product_library() + ", " + attention_library(); }

}  // namespace trireme::ops
