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
  CudaParts parts;
  parts.device = &device;
  parts.ledger = options.ledger;
  parts.stream = cuda->stream();
  parts.reproducible = options.reproducible;
  return std::make_unique<CudaOps>(std::move(parts), [&](CudaParts& own) {
    own.products = make_library_products(*own.ledger, device, own.stream, options);
    if (options.fused_attention) {
      own.attention = make_fused_attention(*own.ledger, device, own.stream,
                                           options.reproducible || options.deterministic_attention);
    }
  });
}

std::string cuda_libraries() { return product_library() + ", " + attention_library(); }

}  // namespace trireme::ops
