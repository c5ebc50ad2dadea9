#include "trireme/device/graph.hpp"

#include "trireme/core/error.hpp"

namespace trireme::device {

std::unique_ptr<Graph> capture(Capturing& device, const std::function<void()>& work) {
  device.begin_capture();
  try {
    work();
  } catch (...) {
    try {
      device.end_capture();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): follows from the one under way
    }
    throw;
  }
  return device.end_capture();
}

}  // namespace trireme::device
