// The CUDA backend: checks shapes, holds workspace and selects the kernel or library. It uses CUDA
// only through kernels.hpp and libraries.hpp, so that tests can run it without a device.
#pragma once

#include <cmath>
#include <cstddef>
#include <memory>

#include "trireme/device/memory.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/ops/tensor_rows.hpp"

#include "kernels.hpp"
#include "libraries.hpp"

namespace trireme::ops {

/// What the backend is built from. Without `products` or `attention` it uses its own kernels.
struct CudaParts {
  /// Without `ledger` workspace is entered in one of its own.
  explicit CudaParts(device::Device& device, device::MemoryLedger* ledger = nullptr)
      : device(device),
        own_ledger(ledger == nullptr ? std::make_unique<device::MemoryLedger>(device) : nullptr),
        ledger(ledger == nullptr ? own_ledger.get() : ledger) {}
  device::Device& device;
  std::unique_ptr<device::MemoryLedger> own_ledger;  // outlives what follows
  device::MemoryLedger* ledger;
  CUstream_st* stream = nullptr;
  std::unique_ptr<Products> products;
  std::unique_ptr<FusedAttention> attention;
  CudaWithout without;
  bool reproducible = false;
};

class CudaOps final : public Ops, public AlgorithmChoices {
 public:
  explicit CudaOps(CudaParts parts) : parts_(std::move(parts)), stream_(parts_.stream) {}

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
  bool multiply_by_library(const Product& product);
  /// The call's shapes and masks, checked; out is q's partner in shape.
  Attention attention_of(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                         const Tensor& v, const AttentionMask& mask, float scale,
                         const Dropout& dropout, const Tensor& samples, HeadSlice heads) const;

  CudaParts parts_;
  CUstream_st* stream_;
  device::Buffer scratch_;
};

// Tensors as kernels take them.
/// One of the compute types.
inline Element element_of(DType type) {
  TRIREME_ASSERT(type == DType::f32 || type == DType::bf16 || type == DType::f16, "tensor of {}",
                 name_of(type));
  return type == DType::f32 ? Element::f32 : type == DType::bf16 ? Element::bf16 : Element::f16;
}

inline Matrix matrix_of(const Tensor& x) {
  const RowShape shape = row_shape(x);
  return {x.data(), element_of(x.type()), shape.rows, shape.columns, shape.stride};
}

/// The same, of the type and shape of `other`.
inline Matrix matrix_like(const Tensor& x, const Matrix& other, const char* op) {
  const Matrix own = matrix_of(x);
  TRIREME_ASSERT(own.rows == other.rows && own.columns == other.columns && own.type == other.type,
                 "{}: {} {} beside {} columns of {} rows", op, name_of(x.type()),
                 x.shape().to_string(), other.columns, other.rows);
  return own;
}

/// All elements of a contiguous tensor as one row.
inline Matrix row_of(const Tensor& x, std::int64_t elements) {
  TRIREME_ASSERT(x.contiguous() && x.elements() == elements,
                 "shape {} where {} contiguous elements are needed", x.shape().to_string(),
                 elements);
  return {x.data(), element_of(x.type()), 1, elements, elements};
}

/// The elements of a contiguous tensor of a type, or null when it is absent.
inline const void* vector_of(const Tensor& x, Element type, std::int64_t elements) {
  if (!x) return nullptr;
  TRIREME_ASSERT(element_of(x.type()) == type, "a vector of {}", name_of(x.type()));
  return row_of(x, elements).data;
}

/// Dropout as kernels take it: threshold and factor of the CPU backend.
inline Keep keep_of(const Dropout& dropout) {
  return {dropout.key.seed, static_cast<std::uint32_t>(dropout.key.purpose), dropout.key.stream,
          static_cast<std::uint32_t>(std::ceil(double{dropout.rate} * 4294967296.0)),
          1.0F / (1.0F - dropout.rate)};
}

}  // namespace trireme::ops
