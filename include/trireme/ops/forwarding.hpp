// Operations that pass every call to one function, for wrappers around a backend; and tracing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/device/device.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::ops {

/// Calls, for each operation, Self's template <class... P, class... A> void forward(const char*
/// name, void (Ops::*operation)(P...), const A&... arguments).
template <class Self>
class ForwardingOps : public Ops {
 public:
#define TRIREME_OPERATION(function, name, parameters, ...)                \
  void function parameters override {                                     \
    static_cast<Self&>(*this).forward(name, &Ops::function, __VA_ARGS__); \
  }
#include "trireme/ops/operations.inc"
};

/// Records operations' times on the device (all kernels of each) and the spans of its copy queues
/// in a run's trace. It marks the begin and end of each operation, and reads the marks when the
/// host waits for the device anyway.
class TracedOps final : public ForwardingOps<TracedOps> {
 public:
  /// `device`: of `inner`; it and `recorder` must outlive this. Throws Error if it has no clock.
  TracedOps(std::unique_ptr<Ops> inner, device::Device& device, Recorder& recorder)
      : inner_(std::move(inner)),
        timeline_(device.make_timeline()),
        device_(device),
        recorder_(recorder) {}

  /// Starts tracing.
  void begin() {
    begun_ = true;
    device_.trace_queues();
  }
  /// Called immediately before and after a wait for the device: operations since the last wait
  /// become spans of stream `device_stream`, the queues' work of streams `queue_streams` and up.
  void before_wait() { timeline_->mark(); }  // relates the device's clock to the host's
  void after_wait() {
    const auto times = timeline_->read();
    TRIREME_ASSERT(times.size() == 2 * names_.size() + 1, "{} marks of {} operations", times.size(),
                   names_.size());
    for (std::size_t i = 0; i < names_.size(); ++i) {
      recorder_.add_span(names_[i], device_stream, times[2 * i], times[2 * i + 1]);
    }
    recorded_ += names_.size();
    names_.clear();
    for (const device::QueueSpan& span : device_.read_queues()) {
      if (++recorded_of_queues_ > most_of_queues) continue;
      recorder_.add_span(span.name, queue_streams + span.queue, span.begin, span.end);
    }
  }

  static constexpr int device_stream = 3, queue_streams = 4;
  /// Most spans recorded: the rest of the trace's capacity is the host's.
  static constexpr std::size_t most = Recorder::trace_capacity / 2;
  static constexpr std::size_t most_of_queues = Recorder::trace_capacity / 4;

  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    trace(name, [&] { ((*inner_).*operation)(arguments...); });
  }

  // Several calls at once are one span. One is traced under its operation's name.
  void add_up(std::span<const Tensor> terms) override {
    if (terms.size() == 1) return;
    trace("add_up", [&] { inner_->add_up(terms); });
  }
  void independent_matmuls(std::span<const Matmul> products) override {
    if (products.size() == 1) return Ops::independent_matmuls(products);
    trace("independent_matmuls", [&] { inner_->independent_matmuls(products); });
  }
  void sum_of_matmuls(const Tensor& sum, std::span<const Tensor> levels,
                      std::span<const Matmul> products) override {
    if (products.size() == 1) return Ops::sum_of_matmuls(sum, levels, products);
    trace("sum_of_matmuls", [&] { inner_->sum_of_matmuls(sum, levels, products); });
  }
  void independent_sums(std::span<const MatmulSum> sums) override {
    const auto single = [](const MatmulSum& sum) { return sum.products.size() == 1; };
    if (std::ranges::all_of(sums, single)) return Ops::independent_sums(sums);
    trace("independent_sums", [&] { inner_->independent_sums(sums); });
  }
  void independent_row_sums(std::span<const RowSums> calls) override {
    if (calls.size() == 1) return Ops::independent_row_sums(calls);
    trace("independent_row_sums", [&] { inner_->independent_row_sums(calls); });
  }
  void independent_attention(std::span<const AttentionHeads> calls, const AttentionMask& mask,
                             float scale, const Dropout& dropout, const Tensor& samples) override {
    if (calls.size() == 1) {
      return Ops::independent_attention(calls, mask, scale, dropout, samples);
    }
    trace("independent_attention",
          [&] { inner_->independent_attention(calls, mask, scale, dropout, samples); });
  }
  void independent_attention_backward(std::span<const AttentionHeads> calls,
                                      const AttentionMask& mask, float scale,
                                      const Dropout& dropout, const Tensor& samples) override {
    if (calls.size() == 1) {
      return Ops::independent_attention_backward(calls, mask, scale, dropout, samples);
    }
    trace("independent_attention_backward",
          [&] { inner_->independent_attention_backward(calls, mask, scale, dropout, samples); });
  }

 private:
  template <class Call>
  void trace(const char* name, const Call& call) {
    if (!begun_ || recorded_ + names_.size() >= most) return call();
    timeline_->mark();
    call();
    timeline_->mark();
    names_.push_back(name);
  }

  std::unique_ptr<Ops> inner_;
  std::unique_ptr<device::Timeline> timeline_;
  device::Device& device_;
  Recorder& recorder_;
  std::vector<const char*> names_;  // of operations since the last wait
  std::size_t recorded_ = 0, recorded_of_queues_ = 0;
  bool begun_ = false;
};

}  // namespace trireme::ops
