// When a device came to points of its queues, for traces.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "trireme/device/device.hpp"

namespace trireme::device {

/// Marks in a device's queue of computation. One thread uses it.
class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  Timeline() = default;
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  virtual ~Timeline() = default;
  /// Has the device note when all work queued so far is done; the host does not wait.
  virtual void mark() = 0;
  /// When each mark since the last call was reached, in their order, by the host's clock. To be
  /// called at once after a wait for all of them: a device that has a clock of its own takes the
  /// last one to be now.
  virtual std::vector<Clock::time_point> read() = 0;
};

/// Work in one of a device's queues.
struct QueueSpan {
  const char* name = "";  // a string literal
  int queue = 0;          // 0: of computation; others in the order in which they were made
  Timeline::Clock::time_point begin, end;
};

/// What a queue of a Timed device is beside a Queue. Used by the thread that uses the queue;
/// nothing is noted before Timed::trace_queues.
class TimedQueue {
 public:
  TimedQueue() = default;
  TimedQueue(const TimedQueue&) = delete;
  TimedQueue& operator=(const TimedQueue&) = delete;
  virtual ~TimedQueue() = default;
  /// What is queued between the two is one span; spans do not nest. `name` is a string literal.
  virtual void begin_span(const char* name) = 0;
  virtual void end_span() = 0;
};
/// The same of any queue: nothing where it keeps no time.
void begin_span(Queue& queue, const char* name);
void end_span(Queue& queue);

/// What copies are called, by whether the host's memory is on either side.
constexpr const char* copy_name(bool to_host, bool from_host) {
  return to_host ? (from_host ? "copy in host memory" : "copy to host")
                 : (from_host ? "copy to device" : "copy in device memory");
}

/// What a device that keeps time is beside a Device.
class Timed {
 public:
  Timed() = default;
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  virtual ~Timed() = default;
  virtual std::unique_ptr<Timeline> make_timeline() = 0;
  /// From now on every queue's copies are noted, each a span, but for those inside a span.
  virtual void trace_queues() = 0;
  /// Spans that have ended since the last call, by the host's clock. To be called at once after a
  /// wait for computation, as Timeline::read; work of other queues that is not done comes later.
  virtual std::vector<QueueSpan> read_queues() = 0;
};

/// Of `device`, which must outlive it; the host's marks are reached when they are made. Throws
/// Error for another device that is not Timed.
std::unique_ptr<Timeline> make_timeline(Device& device);

}  // namespace trireme::device
