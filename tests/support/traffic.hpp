// What the CUDA backend launches for each operation, and the bytes of device memory that it reads
// and writes, for tests that count a step's work without a GPU.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "trireme/ops/forwarding.hpp"

namespace trireme::testing_support {

struct Traffic {
  std::int64_t launches = 0;           // kernels; a product and forward attention of a library: one
  std::int64_t read = 0, written = 0;  // bytes
  std::int64_t bytes() const { return read + written; }
  Traffic& operator+=(const Traffic& other) {
    launches += other.launches;
    read += other.read;
    written += other.written;
    return *this;
  }
};

/// Kernels of one call, as many for all sizes of a step: cuda_emulated.Launches compares them with
/// what CudaOps does. cuDNN's backward of attention has three.
inline int kernel_launches(const std::string& operation) {
  static const std::map<std::string, int> several = {{"column_sum", 2},
                                                     {"layer_norm_backward_weight", 2},
                                                     {"rms_norm_backward_weight", 2},
                                                     {"layer_norm_backward", 2},
                                                     {"rms_norm_backward", 2},
                                                     {"attention_backward", 3},
                                                     {"add_squares", 2}};
  const auto found = several.find(operation);
  return found == several.end() ? 1 : found->second;
}

/// Computes nothing; adds up the traffic of each operation by name.
class CountingOps final : public ops::ForwardingOps<CountingOps> {
 public:
  explicit CountingOps(std::map<std::string, Traffic>& counts) : counts_(counts) {}

  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::*)(Parameters...), const Arguments&... arguments) {
    name_ = name;
    Traffic own{.launches = kernel_launches(name)};
    count(own, arguments...);
    counts_[name] += own;
  }

 private:
  static std::int64_t bytes(const Tensor& x) {
    return x ? static_cast<std::int64_t>(x.bytes()) : 0;
  }
  bool is(const char* name) const { return name_ == name; }

  void count(Traffic& t, const Tensor& y, float /*value*/) const {
    t.written = bytes(y);
    if (is("scale")) t.read = bytes(y);
  }
  void count(Traffic& t, const Tensor& y, const Tensor& x) const {
    if (is("add_squares")) {
      t.read = bytes(x);
    } else if (is("column_sum")) {
      t.read = bytes(y) + bytes(x);
      t.written = bytes(y);
    } else {  // copy, gelu, swiglu; scale_by
      t.read = is("scale_by") ? bytes(y) : bytes(x);
      t.written = bytes(y);
    }
  }
  /// add; gelu_backward, swiglu_backward.
  void count(Traffic& t, const Tensor& y, const Tensor& a, const Tensor& b) const {
    t.read = bytes(a) + bytes(b);
    t.written = bytes(y);
  }
  /// merge_attention
  void count(Traffic& t, const Tensor& out, const Tensor& lse, const Tensor& other,
             const Tensor& other_lse) const {
    t.written = bytes(out) + bytes(lse);
    t.read = t.written + bytes(other) + bytes(other_lse);
  }
  void count(Traffic& t, const Tensor& c, const Tensor& a, const Tensor& b,
             const ops::MatmulOptions& options) const {
    t.read = bytes(a) + bytes(b) + bytes(options.bias) + bytes(options.gelu_input) +
             bytes(options.row_sum);
    t.written = bytes(c) + bytes(options.before_gelu) + bytes(options.row_sum);
    if (options.accumulate) t.read += bytes(c);
  }
  void count(Traffic& t, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
             const Tensor& gain, const Tensor& bias, float /*epsilon*/) const {
    t.read = bytes(x) + bytes(gain) + bytes(bias);
    t.written = bytes(y) + bytes(mean) + bytes(rstd);
  }
  /// add_norm
  void count(Traffic& t, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& sum,
             const Tensor& a, const Tensor& b, const Tensor& gain, const Tensor& bias,
             float epsilon) const {
    count(t, y, mean, rstd, a, gain, bias, epsilon);
    t.read += bytes(b);
    t.written += bytes(sum);
  }
  /// norm_backward_input
  void count(Traffic& t, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& gain,
             const Tensor& mean, const Tensor& rstd, const Tensor& residual) const {
    t.read = bytes(dy) + bytes(x) + bytes(gain) + bytes(mean) + bytes(rstd) + bytes(residual);
    t.written = bytes(dx);
  }
  /// norm_backward_weight
  void count(Traffic& t, const Tensor& dgain, const Tensor& dbias, const Tensor& dy,
             const Tensor& x, const Tensor& mean, const Tensor& rstd) const {
    t.read = bytes(dy) + bytes(x) + bytes(mean) + bytes(rstd) + bytes(dgain) + bytes(dbias);
    t.written = bytes(dgain) + bytes(dbias);
  }
  /// norm_backward
  void count(Traffic& t, const Tensor& dx, const Tensor& dgain, const Tensor& dbias,
             const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
             const Tensor& rstd, const Tensor& residual) const {
    count(t, dx, dy, x, gain, mean, rstd, residual);
    t.read += bytes(dgain) + bytes(dbias);
    t.written += bytes(dgain) + bytes(dbias);
  }
  void count(Traffic& t, const Tensor& y, const Tensor& ids, const Tensor& /*table*/,
             const ops::RowTile& /*tile*/, ops::Lookup lookup) const {
    t.read = bytes(ids) + bytes(y) + (lookup == ops::Lookup::write ? 0 : bytes(y));
    t.written = bytes(y);
  }
  /// embedding_backward reads and writes fp32 rows. Its kernels sort first, and are not counted.
  void count(Traffic& t, const Tensor& dtable, const Tensor& ids, const Tensor& dy,
             const ops::RowTile& /*tile*/) const {
    const auto rows = dy.elements() * static_cast<std::int64_t>(size_of(dtable.type()));
    t.read = bytes(ids) + bytes(dy) + rows;
    t.written = rows;
  }
  /// rotary, in place
  void count(Traffic& t, const Tensor& x, const Tensor& positions, const Tensor& frequencies,
             bool /*inverse*/) const {
    t.read = bytes(x) + bytes(positions) + bytes(frequencies);
    t.written = bytes(x);
  }
  void count(Traffic& t, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
             const Tensor& v, const ops::AttentionMask& /*mask*/, float /*scale*/,
             const ops::Dropout& /*dropout*/, const Tensor& /*samples*/,
             const ops::HeadSlice& /*heads*/) const {
    t.read = bytes(q) + bytes(k) + bytes(v);
    t.written = bytes(out) + bytes(lse);
  }
  void count(Traffic& t, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
             const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
             const Tensor& v, const ops::AttentionMask& /*mask*/, float /*scale*/,
             const ops::Dropout& /*dropout*/, const Tensor& /*samples*/,
             const ops::HeadSlice& /*heads*/) const {
    t.read = bytes(dout) + bytes(out) + bytes(lse) + bytes(q) + bytes(k) + bytes(v);
    t.written = bytes(dq) + bytes(dk) + bytes(dv);
  }
  /// row_maximum
  void count(Traffic& t, const Tensor& maximum, const Tensor& logits, bool /*accumulate*/) const {
    t.read = bytes(logits);
    t.written = bytes(maximum);
  }
  /// exp_sum_and_target; cross_entropy_gradient has the logits first, in place.
  void count(Traffic& t, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d,
             const Tensor& e, std::int64_t /*first*/) const {
    t.read = bytes(c) + bytes(d) + bytes(e);
    t.written = bytes(a);
    if (is("cross_entropy_gradient")) {
      t.read += bytes(a) + bytes(b);
    } else {
      t.written += bytes(b);
    }
  }
  /// softmax_statistics; weighted_loss has the loss first.
  void count(Traffic& t, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d,
             const Tensor& e) const {
    if (is("weighted_loss")) {
      t.read = bytes(b) + bytes(c) + bytes(d) + bytes(e);
      t.written = bytes(a);
    } else {
      t.read = bytes(d) + bytes(e);
      t.written = bytes(a) + bytes(b) + bytes(c);
    }
  }
  void count(Traffic& t, const Tensor& parameters, const Tensor& moment1, const Tensor& moment2,
             const Tensor& gradients, const ops::AdamWStep& /*step*/,
             const ops::RoundedCopy& copy) const {
    t.written = bytes(parameters) + bytes(moment1) + bytes(moment2);
    t.read = t.written + bytes(gradients);
    t.written += bytes(copy.values);
  }
  void count(Traffic& t, const Tensor& parameters, const Tensor& buffer, const Tensor& gradients,
             float, float, float, float, const ops::RoundedCopy& copy) const {
    t.written = bytes(parameters) + bytes(buffer);
    t.read = t.written + bytes(gradients);
    t.written += bytes(copy.values);
  }
  /// round
  void count(Traffic& t, const ops::RoundedCopy& copy, const Tensor& x) const {
    if (!copy.values) {
      t.launches = 0;
      return;
    }
    t.read = bytes(x);
    t.written = bytes(copy.values);
  }
  /// dropout
  void count(Traffic& t, const Tensor& y, const Tensor& x, const Tensor& rows,
             const ops::Dropout& /*dropout*/) const {
    t.read = bytes(x) + bytes(rows);
    t.written = bytes(y);
  }

  std::map<std::string, Traffic>& counts_;
  std::string name_;
};

}  // namespace trireme::testing_support
