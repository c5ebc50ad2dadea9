// The CUDA backend: checks shapes, holds workspace and selects the kernel or library. It uses CUDA
// only through kernels.hpp, product.hpp and fused_attention.hpp, so that tests can run it without a
// device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "trireme/device/memory.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/ops/ops.hpp"

#include "fused_attention.hpp"
#include "kernels.hpp"
#include "product.hpp"

namespace trireme::ops {

/// What the backend is built from. Without `products` or `attention` it uses its own kernels.
struct CudaParts {
  device::Device* device = nullptr;
  device::MemoryLedger* ledger = nullptr;  // absent: one of its own
  CUstream_st* stream = nullptr;
  std::unique_ptr<Products> products;
  std::unique_ptr<FusedAttention> attention;
  bool reproducible = false;
};

class CudaOps final : public Ops, public AlgorithmChoices {
 public:
  /// `complete` may add parts that need the ledger.
  explicit CudaOps(CudaParts parts, const std::function<void(CudaParts&)>& complete = {});

#include "trireme/ops/operations.inc"

  std::vector<std::byte> choices() const override;
  void use_choices(std::span<const std::byte> choices) override;
  std::vector<Choice> describe_choices() const override;
  std::vector<AttentionChoice> describe_attention() const override;

 private:
  /// Workspace, valid until the next call; grows, never shrinks. Growing waits for queued work.
  void* scratch(std::size_t bytes);
  void multiply(Product product, float* row_sum);
  bool multiply_with_row_sum(Product product, float* row_sum);
  bool multiply_by_library(const Product& product, const Finish& finish);
  /// The call's shapes and masks, checked; out is q's partner in shape.
  Attention attention_of(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                         const Tensor& v, const AttentionMask& mask, float scale,
                         const Dropout& dropout, const Tensor& samples, HeadSlice heads) const;

  std::unique_ptr<device::MemoryLedger> own_ledger_;  // outlives what the parts hold
  CudaParts parts_;
  CUstream_st* stream_;
  device::Buffer scratch_;
};

}  // namespace trireme::ops
