// What the host reads of a device again and again, with one wait for many of them.
#pragma once

#include "trireme/device/memory.hpp"

namespace trireme::device {

/// A tensor of a device's as host memory: its copy in staging memory, made once, or where the
/// device is the host the tensor itself.
class Readback {
 public:
  /// `source`, contiguous and in memory of the ledger's device, and `ledger` outlive this; staging
  /// memory is entered there for `use`. Throws Error where there is none.
  Readback(MemoryLedger& ledger, Use use, const Tensor& source);
  /// Queues the copy behind the computation so far.
  void queue();
  /// As they were then, once the device's work has been waited for. Writing them leaves the source
  /// as it is only where the device is not the host.
  const Tensor& values() const { return values_; }

 private:
  Device& device_;
  Tensor source_, values_;
  Buffer staging_;
};

/// Waits for all computation queued so far. Throws Error where some of it failed.
void wait_for(Device& device);

}  // namespace trireme::device
