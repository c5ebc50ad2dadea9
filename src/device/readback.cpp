#include "trireme/device/readback.hpp"

#include "trireme/core/error.hpp"

namespace trireme::device {

Readback::Readback(Device& device, const Tensor& source)
    : device_(device), source_(source), values_(source) {
  TRIREME_ASSERT(source.contiguous(), "a strided tensor {}", source.shape().to_string());
  if (device.is_host()) return;
  staging_ = device.allocate_staging(source.bytes());
  if (staging_ == nullptr) {
    throw Error(
        "memory: {} bytes to read results: the system has not that much that can be pinned; start "
        "fewer ranks on a node, or use a smaller batch",
        source.bytes());
  }
  values_ = Tensor(staging_, source.type(), source.shape());
}

Readback::~Readback() {
  if (staging_ != nullptr) device_.release_staging(staging_);
}

void Readback::queue() {
  if (staging_ != nullptr) device_.copy(staging_, source_.data(), source_.bytes());
}

void wait_for(Device& device) {
  device.synchronise();
  device.check();
}

}  // namespace trireme::device
