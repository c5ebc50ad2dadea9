// Operations that pass every call to one function: for wrappers around a backend.
#pragma once

#include "trireme/ops/ops.hpp"

namespace trireme::ops {

/// Calls, for each operation, Self's template <class... P, class... A> void forward(const char*
/// name, void (Ops::*operation)(P...), const A&... arguments).
template <class Self>
class ForwardingOps : public Ops {
 public:
  void fill(const Tensor& y, float value) override { self().forward("fill", &Ops::fill, y, value); }
  void copy(const Tensor& y, const Tensor& x) override { self().forward("copy", &Ops::copy, y, x); }
  void add(const Tensor& y, const Tensor& a, const Tensor& b) override {
    self().forward("add", &Ops::add, y, a, b);
  }
  void scale(const Tensor& y, float factor) override {
    self().forward("scale", &Ops::scale, y, factor);
  }
  void scale_by(const Tensor& y, const Tensor& factor) override {
    self().forward("scale_by", &Ops::scale_by, y, factor);
  }
  void matmul(const Tensor& c, const Tensor& a, const Tensor& b,
              const MatmulOptions& options) override {
    self().forward("matmul", &Ops::matmul, c, a, b, options);
  }
  void column_sum(const Tensor& sum, const Tensor& x) override {
    self().forward("column_sum", &Ops::column_sum, sum, x);
  }
  void layer_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                  const Tensor& gain, const Tensor& bias, float epsilon) override {
    self().forward("layer_norm", &Ops::layer_norm, y, mean, rstd, x, gain, bias, epsilon);
  }
  void layer_norm_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x,
                                 const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                                 bool accumulate) override {
    self().forward("layer_norm_backward_input", &Ops::layer_norm_backward_input, dx, dy, x, gain,
                   mean, rstd, accumulate);
  }
  void layer_norm_backward_weight(const Tensor& dgain, const Tensor& dbias, const Tensor& dy,
                                  const Tensor& x, const Tensor& mean,
                                  const Tensor& rstd) override {
    self().forward("layer_norm_backward_weight", &Ops::layer_norm_backward_weight, dgain, dbias, dy,
                   x, mean, rstd);
  }
  void rms_norm(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& gain,
                float epsilon) override {
    self().forward("rms_norm", &Ops::rms_norm, y, rstd, x, gain, epsilon);
  }
  void rms_norm_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x,
                               const Tensor& gain, const Tensor& rstd, bool accumulate) override {
    self().forward("rms_norm_backward_input", &Ops::rms_norm_backward_input, dx, dy, x, gain, rstd,
                   accumulate);
  }
  void rms_norm_backward_weight(const Tensor& dgain, const Tensor& dy, const Tensor& x,
                                const Tensor& rstd) override {
    self().forward("rms_norm_backward_weight", &Ops::rms_norm_backward_weight, dgain, dy, x, rstd);
  }
  void gelu(const Tensor& y, const Tensor& x) override { self().forward("gelu", &Ops::gelu, y, x); }
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) override {
    self().forward("gelu_backward", &Ops::gelu_backward, dx, dy, x);
  }
  void swiglu(const Tensor& y, const Tensor& gate_up) override {
    self().forward("swiglu", &Ops::swiglu, y, gate_up);
  }
  void swiglu_backward(const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up) override {
    self().forward("swiglu_backward", &Ops::swiglu_backward, dgate_up, dy, gate_up);
  }
  void dropout(const Tensor& y, const Tensor& x, const Tensor& rows,
               const Dropout& dropout) override {
    self().forward("dropout", &Ops::dropout, y, x, rows, dropout);
  }
  void embedding(const Tensor& y, const Tensor& ids, const Tensor& table, const RowTile& tile,
                 Lookup lookup) override {
    self().forward("embedding", &Ops::embedding, y, ids, table, tile, lookup);
  }
  void embedding_backward(const Tensor& dtable, const Tensor& ids, const Tensor& dy,
                          const RowTile& tile) override {
    self().forward("embedding_backward", &Ops::embedding_backward, dtable, ids, dy, tile);
  }
  void rotary(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
              bool inverse) override {
    self().forward("rotary", &Ops::rotary, x, positions, frequencies, inverse);
  }
  void attention(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                 const Tensor& v, const AttentionMask& mask, float scale, const Dropout& dropout,
                 const Tensor& samples, const HeadSlice& heads) override {
    self().forward("attention", &Ops::attention, out, lse, q, k, v, mask, scale, dropout, samples,
                   heads);
  }
  void attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                          const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                          const Tensor& v, const AttentionMask& mask, float scale,
                          const Dropout& dropout, const Tensor& samples,
                          const HeadSlice& heads) override {
    self().forward("attention_backward", &Ops::attention_backward, dq, dk, dv, dout, out, lse, q, k,
                   v, mask, scale, dropout, samples, heads);
  }
  void row_maximum(const Tensor& maximum, const Tensor& logits, bool accumulate) override {
    self().forward("row_maximum", &Ops::row_maximum, maximum, logits, accumulate);
  }
  void exp_sum_and_target(const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                          const Tensor& maximum, const Tensor& targets,
                          std::int64_t first) override {
    self().forward("exp_sum_and_target", &Ops::exp_sum_and_target, sum, target_logit, logits,
                   maximum, targets, first);
  }
  void cross_entropy_gradient(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                              const Tensor& targets, const Tensor& factor,
                              std::int64_t first) override {
    self().forward("cross_entropy_gradient", &Ops::cross_entropy_gradient, logits, maximum, sum,
                   targets, factor, first);
  }
  void weighted_loss(const Tensor& total, const Tensor& sum, const Tensor& maximum,
                     const Tensor& target_logit, const Tensor& weights) override {
    self().forward("weighted_loss", &Ops::weighted_loss, total, sum, maximum, target_logit,
                   weights);
  }
  void add_squares(const Tensor& sums, const Tensor& x) override {
    self().forward("add_squares", &Ops::add_squares, sums, x);
  }
  void adamw(const Tensor& parameters, const Tensor& moment1, const Tensor& moment2,
             const Tensor& gradients, const AdamWStep& step, const RoundedCopy& copy) override {
    self().forward("adamw", &Ops::adamw, parameters, moment1, moment2, gradients, step, copy);
  }
  void sgd(const Tensor& parameters, const Tensor& momentum_buffer, const Tensor& gradients,
           float learning_rate, float momentum, float weight_decay, float gradient_scale,
           const RoundedCopy& copy) override {
    self().forward("sgd", &Ops::sgd, parameters, momentum_buffer, gradients, learning_rate,
                   momentum, weight_decay, gradient_scale, copy);
  }
  void round(const RoundedCopy& copy, const Tensor& x) override {
    self().forward("round", &Ops::round, copy, x);
  }

 private:
  Self& self() { return static_cast<Self&>(*this); }
};

}  // namespace trireme::ops
