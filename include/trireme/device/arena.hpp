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
  Arena(MemoryLedger& ledger, Use use, std::size_t bytes) : buffer_(ledger, use, bytes) {}
  /// Memory that is another's, contiguous.
  explicit Arena(const Tensor& lent) : lent_(lent) {}
  Tensor view(DType type, const Shape& shape, std::size_t offset) {
    const Tensor part =
        lent_ ? view_of_lent(type, shape, offset) : buffer_.view(type, shape, offset);
    high_water_ = std::max(high_water_, offset + aligned(part.bytes()));
    return part;
  }
  std::size_t bytes() const { return lent_ ? lent_.bytes() : buffer_.bytes(); }
  std::size_t high_water() const { return high_water_; }

 private:
  Tensor view_of_lent(DType type, const Shape& shape, std::size_t offset) const {
    const Tensor part(static_cast<std::byte*>(lent_.data()) + offset, type, shape);
    TRIREME_ASSERT(offset <= lent_.bytes() && part.bytes() <= lent_.bytes() - offset,
                   "{} of {} at byte {} of {}", shape.to_string(), name_of(type), offset,
                   lent_.bytes());
    return part;
  }
  Buffer buffer_;
  Tensor lent_;
  std::size_t high_water_ = 0;
};

}  // namespace trireme::device
