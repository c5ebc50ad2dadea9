// Operations timed one by one on the device, without host waits, with the least work that each
// must do.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "trireme/bench/benchmarks.hpp"
#include "trireme/device/device.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/ops/forwarding.hpp"

namespace trireme::bench {

/// Time and work of all calls of one operation.
struct OpWork {
  std::int64_t calls = 0;
  double seconds = 0;     // of the device
  double operations = 0;  // floating-point, of products and attention alone
  double bytes = 0;       // of its tensors, each once: the minimum of memory traffic
};

class MeasuredOps final : public ops::ForwardingOps<MeasuredOps>, public ops::AlgorithmChoices {
 public:
  MeasuredOps(std::unique_ptr<ops::Ops> inner, device::Device& device)
      : inner_(std::move(inner)), device_(device), timeline_(device.make_timeline()) {}

  /// From now on the device records the begin and end of each operation.
  void start() {
    calls_.clear();
    on_ = true;
  }
  /// Waits for the device. Returns its operations since start, by name.
  std::map<std::string, OpWork> finish() {
    on_ = false;
    timeline_->mark();
    device::wait_for(device_);
    const auto times = timeline_->read();
    std::map<std::string, OpWork> all;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const Call& call = calls_[i];
      OpWork& own = all[call.name];
      ++own.calls;
      own.seconds += std::chrono::duration<double>(times[2 * i + 1] - times[2 * i]).count();
      own.operations += call.operations;
      own.bytes += call.bytes;
    }
    return all;
  }

  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    if (!on_) return ((*inner_).*operation)(arguments...);
    timeline_->mark();
    ((*inner_).*operation)(arguments...);
    timeline_->mark();
    calls_.push_back({name, operations_of(arguments...), bytes_of_call(arguments...)});
  }
  std::vector<std::byte> choices() const override {
    const auto* choosing = dynamic_cast<const ops::AlgorithmChoices*>(inner_.get());
    return choosing == nullptr ? std::vector<std::byte>() : choosing->choices();
  }
  void use_choices(std::span<const std::byte> choices) override {
    auto* choosing = dynamic_cast<ops::AlgorithmChoices*>(inner_.get());
    if (choosing != nullptr) choosing->use_choices(choices);
  }
  std::vector<ops::Choice> describe_choices() const override {
    const auto* choosing = dynamic_cast<const ops::AlgorithmChoices*>(inner_.get());
    return choosing == nullptr ? std::vector<ops::Choice>() : choosing->describe_choices();
  }

 private:
  struct Call {
    const char* name;
    double operations, bytes;
  };
  template <class T>
  static double bytes_of(const T&) {
    return 0;
  }
  static double bytes_of(const Tensor& tensor) {
    return tensor ? static_cast<double>(tensor.bytes()) : 0;
  }
  template <class... Arguments>
  static double bytes_of_call(const Arguments&... arguments) {
    return (0.0 + ... + bytes_of(arguments));
  }
  /// A look-up reads the selected rows, not the whole table.
  static double bytes_of_call(const Tensor& y, const Tensor& ids, const Tensor& table,
                              const ops::RowTile&, const ops::Lookup&) {
    const auto rows =
        static_cast<double>(y.elements()) * static_cast<double>(size_of(table.type()));
    return bytes_of(y) + rows + bytes_of(ids);
  }
  /// Its backward reads and writes fp32 rows.
  static double bytes_of_call(const Tensor&, const Tensor& ids, const Tensor& dy,
                              const ops::RowTile&) {
    return bytes_of(dy) + bytes_of(ids) + 2.0 * sizeof(float) * static_cast<double>(dy.elements());
  }
  template <class... Arguments>
  static double operations_of(const Arguments&...) {
    return 0;
  }
  static double operations_of(const Tensor& c, const Tensor& a, const Tensor&,
                              const ops::MatmulOptions& options) {
    const std::int64_t k = a.extent(options.transpose_a ? 0 : 1);
    return 2.0 * static_cast<double>(c.elements()) * static_cast<double>(k);
  }
  static double operations_of(const Tensor& out, const Tensor&, const Tensor&, const Tensor& k,
                              const Tensor&, const ops::AttentionMask&, float, const ops::Dropout&,
                              const Tensor&, const ops::HeadSlice&) {
    return attention_operations(out, k);
  }
  static double operations_of(const Tensor& dq, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const Tensor&, const Tensor& k,
                              const Tensor&, const ops::AttentionMask&, float, const ops::Dropout&,
                              const Tensor&, const ops::HeadSlice&) {
    return attention_backward_operations(dq, k);
  }

  std::unique_ptr<ops::Ops> inner_;
  device::Device& device_;
  std::unique_ptr<device::Timeline> timeline_;
  bool on_ = false;
  std::vector<Call> calls_;
};

/// The part of a step that an operation belongs to.
inline const char* group_of(const std::string& name) {
  static const std::map<std::string, const char*> groups = {{"matmul", "products"},
                                                            {"attention", "attention"},
                                                            {"attention_backward", "attention"},
                                                            {"rotary", "attention"},
                                                            {"layer_norm", "norms"},
                                                            {"layer_norm_backward_input", "norms"},
                                                            {"layer_norm_backward_weight", "norms"},
                                                            {"layer_norm_backward", "norms"},
                                                            {"rms_norm", "norms"},
                                                            {"rms_norm_backward_input", "norms"},
                                                            {"rms_norm_backward_weight", "norms"},
                                                            {"rms_norm_backward", "norms"},
                                                            {"gelu", "activations"},
                                                            {"gelu_backward", "activations"},
                                                            {"swiglu", "activations"},
                                                            {"swiglu_backward", "activations"},
                                                            {"embedding", "embedding"},
                                                            {"embedding_backward", "embedding"},
                                                            {"row_maximum", "loss"},
                                                            {"exp_sum_and_target", "loss"},
                                                            {"softmax_statistics", "loss"},
                                                            {"cross_entropy_gradient", "loss"},
                                                            {"weighted_loss", "loss"},
                                                            {"add_squares", "optimizer"},
                                                            {"adamw", "optimizer"},
                                                            {"sgd", "optimizer"}};
  const auto found = groups.find(name);
  return found == groups.end() ? "moves and sums" : found->second;
}

}  // namespace trireme::bench
