// The CUDA backend as a class: checks of shapes, work space, and which kernel or library does what.
// It knows CUDA only through kernels.hpp, product.hpp and fused_attention.hpp, so that the tests
// can run it where there is no device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "trireme/device/memory.hpp"
#include "trireme/ops/algorithm_choices.hpp"
#include "trireme/ops/ops.hpp"

#include "fused_attention.hpp"
#include "kernels.hpp"
#include "product.hpp"

namespace trireme::ops {

/// What the backend stands on; products and attention may be absent: kernels of our own then.
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

  std::vector<std::byte> choices() const override;
  void use_choices(std::span<const std::byte> choices) override;
  std::vector<Choice> describe_choices() const override;
  std::vector<AttentionChoice> describe_attention() const override;

 private:
  /// At least `bytes` of work space until the next call; grows, never shrinks. Memory given back is
  /// not reused before queued work has ended: the device waits for that when it frees.
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
