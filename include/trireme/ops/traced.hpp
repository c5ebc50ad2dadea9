// Operations whose time on the device enters a run's trace, without a wait of the host's; and what
// the device notes of copies and of other work in its queues.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "trireme/core/recorder.hpp"
#include "trireme/device/timeline.hpp"
#include "trireme/ops/forwarding.hpp"

namespace trireme::ops {

/// Has the device note when it begins and ends each operation (all its kernels together), and hands
/// the call on. Notes are read where the host waits for the device anyway.
class TracedOps final : public ForwardingOps<TracedOps> {
 public:
  /// `device` is that of `inner`; it and `recorder` must outlive this. Throws Error where the
  /// device keeps no time.
  TracedOps(std::unique_ptr<Ops> inner, device::Device& device, Recorder& recorder)
      : inner_(std::move(inner)),
        timeline_(device::make_timeline(device)),
        queues_(dynamic_cast<device::Timed*>(&device)),
        recorder_(recorder) {}

  /// Operations from now on are traced; none were so far.
  void begin();
  /// To be called last before a wait for the device, and first after it: the operations since the
  /// wait before become spans of stream `device_stream`, and what the device noted of its queues
  /// spans of streams from `queue_streams` on, one for each queue.
  void before_wait();
  void after_wait();

  static constexpr int device_stream = 3, queue_streams = 4;
  /// Spans that are recorded; later operations go untraced, so that the host's own find room.
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
  device::Timed* queues_;  // absent: the host's work is done in the calls
  Recorder& recorder_;
  std::vector<const char*> names_;  // of operations since the last wait
  std::size_t recorded_ = 0, recorded_of_queues_ = 0;
  bool begun_ = false;
};

}  // namespace trireme::ops
