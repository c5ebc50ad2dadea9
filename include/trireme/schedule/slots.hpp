// Numbering of buffers that are taken and given back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace trireme::schedule {

/// Buffers of one sort: the lowest free number is taken.
class Slots {
 public:
  int take() {
    const auto free = std::find(used_.begin(), used_.end(), false);
    const auto slot = static_cast<std::size_t>(free - used_.begin());
    if (free == used_.end()) used_.push_back(true);
    used_[slot] = true;
    return static_cast<int>(slot);
  }
  void release(int slot) { used_[static_cast<std::size_t>(slot)] = false; }
  int count() const { return static_cast<int>(used_.size()); }  // the most in use at once

 private:
  std::vector<bool> used_;
};

}  // namespace trireme::schedule
