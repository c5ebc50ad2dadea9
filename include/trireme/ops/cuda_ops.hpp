// The CUDA backend: cuBLASLt for matrix products, cuDNN's fused attention for plain causal
// sequences, its own kernels for the rest. It computes in fp32, bf16 and fp16 and queues all work
// on the device's compute stream. No result depends on timing: there are no atomic additions. Not
// thread-safe: one object per computing thread.
//
// An id outside its embedding table ends the kernel with a printed line, and the next
// Device::synchronize throws.
#pragma once

#include <memory>
#include <string>

#include "trireme/device/device.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::ops {

struct CudaOpsOptions {
  device::MemoryLedger* ledger = nullptr;  // of the device; absent: workspace is not recorded
  /// Products do not split their inner dimension, and sums beside them have a fixed order.
  bool reproducible = false;
  /// fp32 products on tensor cores, which keep 10 bits of the factors' mantissas.
  bool tf32 = false;
  /// Times several algorithms at the first product of a shape.
  bool time_algorithms = false;
  /// cuDNN's attention for calls that it accepts.
  bool fused_attention = true;
  /// Otherwise cuDNN's backward adds in any order, which is faster and needs less workspace: the
  /// one result that depends on timing. Reproducible mode is always deterministic.
  bool deterministic_attention = true;
};

/// `device` comes from make_cuda_device and outlives the result, which is also AlgorithmChoices.
/// Throws Error if Trireme was built without CUDA.
std::unique_ptr<Ops> make_cuda_ops(device::Device& device, const CudaOpsOptions& options = {});

/// Versions of the libraries that the backend uses, as text; empty without CUDA.
std::string cuda_libraries();

}  // namespace trireme::ops
