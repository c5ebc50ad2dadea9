// When a device came to points of its queue of computation, for traces.
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

/// What a device that keeps time is beside a Device.
class Timed {
 public:
  Timed() = default;
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  virtual ~Timed() = default;
  virtual std::unique_ptr<Timeline> make_timeline() = 0;
};

/// Of `device`, which must outlive it; the host's marks are reached when they are made. Throws
/// Error for another device that is not Timed.
std::unique_ptr<Timeline> make_timeline(Device& device);

}  // namespace trireme::device
