// The CPU backend: oneDNN for fp32 matrix products, Highway vectors for the rest, OpenMP threads.
// Results do not depend on the number of threads, except those of fp32 products unless the backend
// is reproducible. Not thread-safe: one object per computing thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/device/memory.hpp"
#include "trireme/ops/ops.hpp"

#include "attention_mask.hpp"
#include "storage.hpp"

namespace trireme::ops {

// Of attention_problem.hpp.
struct Problem;
template <class T>
struct OperandsOf;
template <class T>
struct GradientsOf;

class CpuOps final : public Ops {
 public:
  CpuOps(int threads, device::MemoryLedger* ledger, bool reproducible);

#include "trireme/ops/operations.inc"
  void add_up(std::span<const Tensor> terms) override;
  void independent_row_sums(std::span<const RowSums> calls) override;
  void independent_matmuls(std::span<const Matmul> products) override;
  void sum_of_matmuls(const Tensor& sum, std::span<const Tensor> levels,
                      std::span<const Matmul> products) override;
  void independent_sums(std::span<const MatmulSum> sums) override;
  void independent_attention(std::span<const AttentionHeads> calls, const AttentionMask& mask,
                             float scale, const Dropout& dropout, const Tensor& samples) override;
  void independent_attention_backward(std::span<const AttentionHeads> calls,
                                      const AttentionMask& mask, float scale,
                                      const Dropout& dropout, const Tensor& samples) override;

 private:
  /// 64-byte aligned scratch, valid until the next call; grows, never shrinks.
  template <class T>
  T* scratch(std::size_t elements) {
    return reinterpret_cast<T*>(scratch_bytes(elements * sizeof(T)));
  }
  std::byte* scratch_bytes(std::size_t bytes);
  /// Scratch in which read_as rounds a parameter to type T; null if it has that type.
  template <class T>
  T* rounding_scratch(const Tensor& parameter, std::int64_t elements) {
    if (parameter.type() == DTypeOf<T>::value) return nullptr;
    return scratch<T>(static_cast<std::size_t>(elements));
  }
  /// norm, or with `a` and `b` add_norm of x.
  void normalize(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                 const Tensor& a, const Tensor& b, const Tensor& gain, const Tensor& bias,
                 float epsilon);
  // Products of fp32 and of bf16 factors, whose shapes are checked, without row sums.
  void float_matmuls(std::span<const Matmul> products);
  void narrow_matmuls(std::span<const Matmul> products);
  void add_row_sums(std::span<const MatmulSum> sums);  // of the products' options
  // Without row sums.
  void float_sums(std::span<const MatmulSum> sums);
  void narrow_sums(std::span<const MatmulSum> sums);
  void sum_narrow_matmuls(const Tensor& sum, std::span<const Matmul> products);
  std::vector<Problem> problems_of(std::span<const AttentionHeads> calls, const AttentionMask& mask,
                                   float scale, const Dropout& dropout, const Tensor& samples);
  void attend(std::span<const Problem> calls, std::span<const OperandsOf<float>> operands);
  void attend(std::span<const Problem> calls, std::span<const OperandsOf<Bf16>> operands);
  // Of sequences [begin, end).
  void attend_backward(std::span<const Problem> calls, std::span<const GradientsOf<float>> operands,
                       std::int64_t begin, std::int64_t end);
  void attend_backward(std::span<const Problem> calls, std::span<const GradientsOf<Bf16>> operands,
                       std::int64_t begin, std::int64_t end);
  /// `threads`: of this call, which has `partial` [row tiles, outputs, C] for itself.
  void sum_rows(const RowSums& call, int threads, float* partial);

  int threads_;
  bool reproducible_;
  device::MemoryLedger own_ledger_;
  device::MemoryLedger* ledger_;
  device::Buffer scratch_;
  Visibility visibility_;
  std::vector<VisibleKeys> visible_;  // one per thread
};

}  // namespace trireme::ops
