// Operations timed one by one, each waited for, with the work that each has to do at least.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "trireme/device/device.hpp"
#include "trireme/ops/forwarding.hpp"

namespace trireme::bench {

/// What all calls of one operation took and did.
struct OpWork {
  std::int64_t calls = 0;
  double seconds = 0;
  double operations = 0;  // floating-point, of products and attention alone
  double bytes = 0;       // of its tensors, each once: the least that goes through memory
};

class MeasuredOps final : public ops::ForwardingOps<MeasuredOps> {
 public:
  MeasuredOps(std::unique_ptr<ops::Ops> inner, device::Device& device)
      : inner_(std::move(inner)), device_(device) {}

  /// Waits and times from now on, or lets calls through.
  void measure(bool on) {
    on_ = on;
    if (on) work_.clear();
  }
  const std::map<std::string, OpWork>& work() const { return work_; }

  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    if (!on_) return ((*inner_).*operation)(arguments...);
    using Clock = std::chrono::steady_clock;
    device_.synchronise();
    const auto begin = Clock::now();
    ((*inner_).*operation)(arguments...);
    device_.synchronise();
    OpWork& own = work_[name];
    own.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    ++own.calls;
    own.bytes += (0.0 + ... + bytes_of(arguments));
    own.operations += operations_of(name, arguments...);
  }

 private:
  template <class T>
  static double bytes_of(const T&) {
    return 0;
  }
  static double bytes_of(const Tensor& tensor) {
    return tensor ? static_cast<double>(tensor.bytes()) : 0;
  }
  template <class... Arguments>
  static double operations_of(const std::string&, const Arguments&...) {
    return 0;
  }
  static double operations_of(const std::string&, const Tensor& c, const Tensor& a, const Tensor&,
                              const ops::MatmulOptions& options) {
    const std::int64_t k = a.extent(options.transpose_a ? 0 : 1);
    return 2.0 * static_cast<double>(c.elements()) * static_cast<double>(k);
  }
  /// Causal attention: two products of half of Tq·Tk scores.
  static double operations_of(const std::string&, const Tensor& out, const Tensor&, const Tensor&,
                              const Tensor& k, const Tensor&, const ops::AttentionMask&, float,
                              const ops::Dropout&, const Tensor&, const ops::HeadSlice&) {
    return 2.0 * static_cast<double>(out.elements()) * static_cast<double>(k.extent(1));
  }
  /// Its backward: five, one of which forward had made.
  static double operations_of(const std::string&, const Tensor& dq, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor& k, const Tensor&, const ops::AttentionMask&, float,
                              const ops::Dropout&, const Tensor&, const ops::HeadSlice&) {
    return 5.0 * static_cast<double>(dq.elements()) * static_cast<double>(k.extent(1));
  }

  std::unique_ptr<ops::Ops> inner_;
  device::Device& device_;
  bool on_ = false;
  std::map<std::string, OpWork> work_;
};

}  // namespace trireme::bench
