// The CUDA backend: cuBLASLt for matrix products, kernels of our own for the rest, cuDNN's fused
// attention for plain causal sequences. It takes fp32, bf16 and fp16, and queues everything on the
// device's stream of computation. No result depends on timing: no atomic additions, no products
// that race over their inner dimension. Not thread-safe: one object per computing thread.
//
// Ids of embedding and embedding_backward lie on the device; one outside its table ends the kernel
// with a printed line, and the next Device::synchronize throws.
#pragma once

#include <memory>
#include <string>

#include "trireme/device/device.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::ops {

struct CudaOpsOptions {
  device::MemoryLedger* ledger = nullptr;  // of the device; absent: work space is not accounted for
  /// Products that do not split their inner dimension; sums beside a product in our own order.
  bool reproducible = false;
  /// fp32 products by tensor cores, which keep 10 bits of the factors.
  bool tf32 = false;
  /// Times some of a product's algorithms where its shape is first met.
  bool time_algorithms = false;
  /// cuDNN's attention where it takes a call, else our own.
  bool fused_attention = true;
  /// Otherwise cuDNN's backward adds in any order, which is faster and needs less workspace: the
  /// one result that depends on timing. Reproducible mode is always deterministic.
  bool deterministic_attention = true;
};

/// `device` is one of make_cuda_device, and outlives what is made, which is AlgorithmChoices too.
/// Throws Error where Trireme was built without CUDA.
std::unique_ptr<Ops> make_cuda_ops(device::Device& device, const CudaOpsOptions& options = {});

/// Versions of the libraries that the backend uses, in words; empty without CUDA.
std::string cuda_libraries();

}  // namespace trireme::ops
