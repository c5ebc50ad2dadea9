// One buffer whose parts were given offsets before training, and the mark of how far it was really
// used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "trireme/device/memory.hpp"

namespace trireme::device {

/// Planned memory: the owner hands out parts at planned offsets; `high_water` is the end of the
/// farthest part that was ever handed out, to be compared with the plan.
class Arena {
 public:
  Arena() = default;
  Arena(MemoryLedger& ledger, Use use, std::size_t bytes)
      : buffer_(ledger, use, bytes),
        memory_(buffer_.view(DType::u8, {static_cast<std::int64_t>(bytes)})) {}
  /// In memory that something else owns, contiguous.
  explicit Arena(const Tensor& memory) : memory_(memory) {}
  Tensor view(DType type, const Shape& shape, std::size_t offset) {
    const Tensor part(static_cast<std::byte*>(memory_.data()) + offset, type, shape);
    TRIREME_ASSERT(
        offset <= bytes() && part.bytes() <= bytes() - offset && offset % size_of(type) == 0,
        "{} of {} at byte {} of {}", shape.to_string(), name_of(type), offset, bytes());
    high_water_ = std::max(high_water_, offset + aligned(part.bytes()));
    return part;
  }
  std::size_t bytes() const { return memory_ ? memory_.bytes() : 0; }
  std::size_t high_water() const { return high_water_; }

 private:
  Buffer buffer_;
  Tensor memory_;
  std::size_t high_water_ = 0;
};

}  // namespace trireme::device
