#include "trireme/core/error.hpp"
#include "trireme/ops/forwarding.hpp"

namespace trireme::ops {

void TracedOps::begin() {
  begun_ = true;
  device_.trace_queues();
}

// The last mark relates the device's clock to the host's.
void TracedOps::before_wait() { timeline_->mark(); }

void TracedOps::after_wait() {
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

}  // namespace trireme::ops
