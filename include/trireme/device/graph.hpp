// Computation that a device captures and repeats at the cost of one launch: CUDA graphs.
#pragma once

#include <functional>
#include <memory>

#include "trireme/device/device.hpp"

namespace trireme::device {

/// Computation as it was captured: the same operations on the same addresses, which must still be
/// those of live memory where it is launched. Used by the thread that uses the device.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  virtual ~Graph() = default;
  /// Queues all of it behind the computation so far.
  virtual void launch() = 0;
};

/// What a device that captures is beside a Device. Used by the thread that uses the device; others
/// may use its other queues meanwhile.
class Capturing {
 public:
  Capturing() = default;
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;
  virtual ~Capturing() = default;
  /// From now on what is queued for computation is kept, and not done. Until the end this thread
  /// must not wait, take fences, follow any, copy from or to the host, or ask for memory: some of
  /// it throws Error at once, the rest lets end_capture throw.
  virtual void begin_capture() = 0;
  /// What was queued since. Throws Error where that cannot be had; nothing is captured any more
  /// either way.
  virtual std::unique_ptr<Graph> end_capture() = 0;
};

/// What `work` queues for computation, none of which is done. Throws what `work` throws, and as
/// Capturing::end_capture.
std::unique_ptr<Graph> capture(Capturing& device, const std::function<void()>& work);

}  // namespace trireme::device
