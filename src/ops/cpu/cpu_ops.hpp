// The CPU backend: oneDNN for matrix products, Highway vectors for the rest, OpenMP threads.
// Results do not depend on the number of threads, except fp32 products, which are cut up by threads
// unless the backend is reproducible. Not thread-safe: one object per computing thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/device/memory.hpp"
#include "trireme/ops/ops.hpp"

#include "attention_mask.hpp"

namespace trireme::ops {

class CpuOps final : public Ops {
 public:
  CpuOps(int threads, device::MemoryLedger* ledger, bool reproducible);

  void fill(const Tensor& y, float value) override;
  void copy(const Tensor& y, const Tensor& x) override;
  void add(const Tensor& y, const Tensor& a, const Tensor& b) override;
  void scale(const Tensor& y, float factor) override;
  void scale_by(const Tensor& y, const Tensor& factor) override;

  void matmul(const Tensor& c, const Tensor& a, const Tensor& b,
              const MatmulOptions& options) override;
  void column_sum(const Tensor& sum, const Tensor& x) override;

  void layer_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                  const Tensor& gain, const Tensor& bias, float epsilon) override;
  void layer_norm_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x,
                                 const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                                 bool accumulate) override;
  void layer_norm_backward_weight(const Tensor& dgain, const Tensor& dbias, const Tensor& dy,
                                  const Tensor& x, const Tensor& mean, const Tensor& rstd) override;
  void rms_norm(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& gain,
                float epsilon) override;
  void rms_norm_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x,
                               const Tensor& gain, const Tensor& rstd, bool accumulate) override;
  void rms_norm_backward_weight(const Tensor& dgain, const Tensor& dy, const Tensor& x,
                                const Tensor& rstd) override;

  void gelu(const Tensor& y, const Tensor& x) override;
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) override;
  void swiglu(const Tensor& y, const Tensor& gate_up) override;
  void swiglu_backward(const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up) override;

  void dropout(const Tensor& y, const Tensor& x, const Tensor& rows,
               const Dropout& dropout) override;

  void embedding(const Tensor& y, const Tensor& ids, const Tensor& table, const RowTile& tile,
                 Lookup lookup) override;
  void embedding_backward(const Tensor& dtable, const Tensor& ids, const Tensor& dy,
                          const RowTile& tile) override;

  void rotary(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
              bool inverse) override;

  void attention(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                 const Tensor& v, const AttentionMask& mask, float scale, const Dropout& dropout,
                 const Tensor& samples, const HeadSlice& heads) override;
  void attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                          const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                          const Tensor& v, const AttentionMask& mask, float scale,
                          const Dropout& dropout, const Tensor& samples,
                          const HeadSlice& heads) override;

  void row_maximum(const Tensor& maximum, const Tensor& logits, bool accumulate) override;
  void exp_sum_and_target(const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                          const Tensor& maximum, const Tensor& targets,
                          std::int64_t first) override;
  void cross_entropy_gradient(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                              const Tensor& targets, const Tensor& factor,
                              std::int64_t first) override;
  void weighted_loss(const Tensor& total, const Tensor& sum, const Tensor& maximum,
                     const Tensor& target_logit, const Tensor& weights) override;

  void add_squares(const Tensor& sums, const Tensor& x) override;
  void adamw(const Tensor& parameters, const Tensor& moment1, const Tensor& moment2,
             const Tensor& gradients, const AdamWStep& step, const RoundedCopy& copy) override;
  void sgd(const Tensor& parameters, const Tensor& momentum_buffer, const Tensor& gradients,
           float learning_rate, float momentum, float weight_decay, float gradient_scale,
           const RoundedCopy& copy) override;
  void round(const RoundedCopy& copy, const Tensor& x) override;

 private:
  /// At least `bytes` of 64-byte aligned work space until the next call; grows, never shrinks.
  template <class T>
  T* scratch(std::size_t elements) {
    return reinterpret_cast<T*>(scratch_bytes(elements * sizeof(T)));
  }
  std::byte* scratch_bytes(std::size_t bytes);
  /// Where read_as may round a parameter's elements beside activations of type T; null where they
  /// are of that type. Less than any product's work space.
  template <class T>
  T* rounding_scratch(const Tensor& parameter, std::int64_t elements) {
    if (parameter.type() == DTypeOf<T>::value) return nullptr;
    return scratch<T>(static_cast<std::size_t>(elements));
  }
  void convert(const Tensor& y, const Tensor& x);
  /// matmul of bf16 factors.
  void narrow_matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                     const MatmulOptions& options);
  /// Attention of bf16.
  void narrow_attention(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                        const Tensor& v, const AttentionMask& mask, float scale,
                        const Dropout& dropout, const Tensor& samples, const HeadSlice& slice);
  void narrow_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                 const Tensor& dout, const Tensor& out, const Tensor& lse,
                                 const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionMask& mask, float scale, const Dropout& dropout,
                                 const Tensor& samples, const HeadSlice& slice);
  /// sums[i] [C] += Σ over row tiles of their partial sums; kernel(begin, end, partial) fills
  /// `outputs`·C floats for rows [begin, end).
  template <class Kernel>
  void sum_row_tiles(std::int64_t rows, std::int64_t columns, float* const* sums, int outputs,
                     const Kernel& kernel);

  int threads_, product_threads_;
  device::MemoryLedger own_ledger_;
  device::MemoryLedger* ledger_;
  device::Buffer scratch_;
  Visibility visibility_;
  std::vector<VisibleKeys> visible_;  // one per thread
};

}  // namespace trireme::ops
