// NVIDIA GPUs: memory, and one stream of computation each; ranges for NVIDIA's profilers. Where
// Trireme was built without CUDA there are no GPUs.
#pragma once

#include <memory>
#include <string>

#include "trireme/device/device.hpp"

struct CUstream_st;  // a cudaStream_t points to one

namespace trireme::device {

class CudaDevice : public Device {
 public:
  virtual CUstream_st* stream() const = 0;  // of computation; libraries are set to use it
  /// Bytes of its memory that no process holds.
  virtual std::int64_t free_bytes() const = 0;
};

/// Devices that this process sees: 0 also without a driver, or without CUDA in the build.
int cuda_device_count();

/// Device `index` of those; it becomes the thread's current one. Throws Error if there is none.
std::unique_ptr<Device> make_cuda_device(int index);

/// The UUID of device `index`: "GPU-4f…". Throws Error where there is none.
std::string cuda_device_identity(int index);

/// CUDA in a run's record, in one line: versions of runtime and driver, then each device
/// with its memory and compute capability; or why there is none.
std::string cuda_description();

/// A range of NVTX, of the domain "trireme", from its construction to its end, in the thread that
/// makes it; ranges nest. Costs almost nothing without a profiler, and nothing without CUDA.
class Range {
 public:
  explicit Range(const char* name);
  explicit Range(const std::string& name) : Range(name.c_str()) {}
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range();
};

}  // namespace trireme::device
