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
    own.products =
        make_library_products(*own.ledger, device, own.stream,
                              {options.reproducible, options.tf32, options.time_algorithms});
    if (options.fused_attention) {
      own.attention = make_fused_attention(*own.ledger, device, own.stream,
                                           options.reproducible || !options.hasty_attention);
    }
  });
}

std::vector<std::byte> product_algorithms(const Ops& ops) {
  const auto* cuda = dynamic_cast<const CudaOps*>(&ops);
  return cuda == nullptr || cuda->products() == nullptr ? std::vector<std::byte>()
                                                        : cuda->products()->algorithms();
}

void use_product_algorithms(Ops& ops, std::span<const std::byte> algorithms) {
  const auto* cuda = dynamic_cast<const CudaOps*>(&ops);
  if (cuda == nullptr || cuda->products() == nullptr) {
    throw Error("algorithms of products: these are for a CUDA backend with a library");
  }
  cuda->products()->use_algorithms(algorithms);
}

std::string cuda_libraries() {
  const std::string attention = attention_library();
  return attention.empty() ? product_library() : product_library() + ", " + attention;
}

}  // namespace trireme::ops
