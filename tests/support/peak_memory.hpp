// How much memory a piece of code takes at most.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <malloc.h>

namespace trireme::test {

/// Bytes that became resident at most since it was made, by Linux's count of this process.
class PeakMemory {
 public:
  PeakMemory() {
    ::malloc_trim(0);  // what was freed before would be used again, uncounted
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak is what is resident now
    before_ = value_of("VmRSS:");
  }
  double bytes() const { return 1024.0 * static_cast<double>(value_of("VmHWM:") - before_); }

 private:
  static std::int64_t value_of(const std::string& key) {
    std::ifstream status("/proc/self/status");
    std::string word;
    std::int64_t kilobytes = 0;
    while (status >> word) {
      if (word == key && status >> kilobytes) break;
    }
    return kilobytes;
  }
  std::int64_t before_ = 0;
};

}  // namespace trireme::test
