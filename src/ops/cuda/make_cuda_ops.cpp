#include <utility>

#include "trireme/device/cuda.hpp"
#include "trireme/ops/cuda_ops.hpp"

#include "cuda_ops.hpp"

namespace trireme::ops {

std::unique_ptr<Ops> make_cuda_ops(device::Device& device, const CudaOpsOptions& options) {
  const CudaWithout without = read_cuda_without(cuda_without());
  auto* cuda = dynamic_cast<device::CudaDevice*>(&device);
  if (cuda == nullptr) {
    throw Error("CUDA operations on {}: that is no CUDA device; make one with make_cuda_device",
                device.name());
  }
  CudaParts parts(device, options.ledger);
  parts.stream = cuda->stream();
  parts.reproducible = options.reproducible;
  parts.without = without;
  if (!without.cublaslt) {
    CudaOpsOptions own = options;
    own.time_algorithms = options.time_algorithms && !without.timing;
    parts.products = make_library_products(*parts.ledger, device, parts.stream, own);
  }
  if (options.fused_attention && !without.cudnn) {
    parts.attention = make_fused_attention(*parts.ledger, device, parts.stream,
                                           options.reproducible || options.deterministic_attention);
  }
  return std::make_unique<CudaOps>(std::move(parts));
}

std::string cuda_libraries() {
  const CudaWithout without = read_cuda_without(cuda_without());
  std::string text = (without.cublaslt ? "no cuBLASLt" : product_library()) + ", " +
                     (without.cudnn ? "no cuDNN attention" : attention_library());
  if (!cuda_without().empty()) text += "; without " + cuda_without() + " (TRIREME_CUDA_WITHOUT)";
  return text;
}

}  // namespace trireme::ops
