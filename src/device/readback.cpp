#include "trireme/device/readback.hpp"

#include "trireme/core/error.hpp"

namespace trireme::device {

Readback::Readback(MemoryLedger& ledger, Use use, const Tensor& source)
    : device_(ledger.device()), source_(source), values_(source) {
  TRIREME_ASSERT(source.contiguous(), "a strided tensor {}", source.shape().to_string());
  if (device_.is_host()) return;
  staging_ = Buffer::staging(ledger, use, source.bytes());
  values_ = staging_.view(source.type(), source.shape());
}

void Readback::queue() {
  if (staging_.data() != nullptr) device_.copy(staging_.data(), source_.data(), source_.bytes());
}

void wait_for(Device& device) {
  device.synchronize();
  device.check();
}

}  // namespace trireme::device
