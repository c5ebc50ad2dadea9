// Operations timed one by one on the device, without host waits, with the work of each.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trireme/device/device.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/ops/forwarding.hpp"
#include "trireme/plan/work.hpp"

namespace trireme::plan {

/// A call and its time on the device; `before`: since the end of the call before, 0 for the first.
struct TimedCall {
  Work work;
  double seconds = 0, before = 0;
};

class TimedOps final : public ops::ForwardingOps<TimedOps>, public ops::AlgorithmChoices {
 public:
  /// `device`: of `inner`; it must outlive this. Throws Error if it has no clock.
  TimedOps(std::unique_ptr<ops::Ops> inner, device::Device& device)
      : inner_(std::move(inner)), device_(device), timeline_(device.make_timeline()) {}

  /// From now on the device records the begin and end of each operation.
  void start() {
    calls_.clear();
    on_ = true;
  }
  /// Waits for the device. Returns its operations since start.
  std::vector<TimedCall> finish() {
    on_ = false;
    timeline_->mark();
    device::wait_for(device_);
    const auto times = timeline_->read();
    const auto between = [&](std::size_t begin, std::size_t end) {
      return std::chrono::duration<double>(times[end] - times[begin]).count();
    };
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      calls_[i].seconds = between(2 * i, 2 * i + 1);
      if (i > 0) calls_[i].before = between(2 * i - 1, 2 * i);
    }
    return std::move(calls_);
  }

  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    if (!on_) return ((*inner_).*operation)(arguments...);
    timeline_->mark();
    ((*inner_).*operation)(arguments...);
    timeline_->mark();
    calls_.push_back({.work = work_of(name, arguments...)});
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
  std::unique_ptr<ops::Ops> inner_;
  device::Device& device_;
  std::unique_ptr<device::Timeline> timeline_;
  bool on_ = false;
  std::vector<TimedCall> calls_;
};

}  // namespace trireme::plan
