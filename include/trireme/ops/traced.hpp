// Records operations' times on the device in a run's trace without blocking the host, and the spans
// of the device's copy queues.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "trireme/core/recorder.hpp"
#include "trireme/device/timeline.hpp"
#include "trireme/ops/forwarding.hpp"

namespace trireme::ops {

/// Marks the begin and end of each operation (all its kernels) on the device and forwards the call.
/// Marks are read when the host waits for the device anyway.
class TracedOps final : public ForwardingOps<TracedOps> {
 public:
  /// `device`: of `inner`; it and `recorder` must outlive this. Throws Error if it has no clock.
  TracedOps(std::unique_ptr<Ops> inner, device::Device& device, Recorder& recorder)
      : inner_(std::move(inner)),
        timeline_(device::make_timeline(device)),
        queues_(dynamic_cast<device::Timed*>(&device)),
        recorder_(recorder) {}

  /// Starts tracing.
  void begin();
  /// Called immediately before and after a wait for the device: operations since the last wait
  /// become spans of stream `device_stream`, the queues' work spans of streams from `queue_streams`
  /// on.
  void before_wait();
  void after_wait();

  static constexpr int device_stream = 3, queue_streams = 4;
  /// Most spans recorded: the rest of the trace's capacity is the host's.
  static constexpr std::size_t most = Recorder::trace_capacity / 2;
  static constexpr std::size_t most_of_queues = Recorder::trace_capacity / 4;

  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    if (!begun_ || recorded_ + names_.size() >= most) return ((*inner_).*operation)(arguments...);
    timeline_->mark();
    ((*inner_).*operation)(arguments...);
    timeline_->mark();
    names_.push_back(name);
  }

 private:
  std::unique_ptr<Ops> inner_;
  std::unique_ptr<device::Timeline> timeline_;
  device::Timed* queues_;  // null: the device has no queues
  Recorder& recorder_;
  std::vector<const char*> names_;  // of operations since the last wait
  std::size_t recorded_ = 0, recorded_of_queues_ = 0;
  bool begun_ = false;
};

}  // namespace trireme::ops
