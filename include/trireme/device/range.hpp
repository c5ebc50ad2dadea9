// Names for what a thread does, for NVIDIA's profilers.
#pragma once

#include <string>

namespace trireme::device {

/// A range of NVTX, of the domain "trireme", from its construction to its end, in the thread that
/// makes it; ranges nest. It costs almost nothing without a profiler, and does nothing where
/// Trireme was built without CUDA.
class Range {
 public:
  explicit Range(const char* name);
  explicit Range(const std::string& name) : Range(name.c_str()) {}
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range();
};

}  // namespace trireme::device
