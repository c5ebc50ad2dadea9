// Tensors that the host reads from a device repeatedly, with one wait for many of them.
#pragma once

#include "trireme/device/memory.hpp"

namespace trireme::device {

/// A device's tensor in host memory: a copy in staging memory that is allocated once, or the tensor
/// itself where the device is the host.
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
