// Backends that choose among algorithms whose bits may differ, and how ranks come to the same
// choice.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace trireme::ops {

/// What such an Ops is beside it: `dynamic_cast<Choosing*>(&ops)` is null for one that never
/// chooses.
class Choosing {
 public:
  Choosing() = default;
  Choosing(const Choosing&) = delete;
  Choosing& operator=(const Choosing&) = delete;
  virtual ~Choosing() = default;
  /// What was chosen for the shapes met so far, as bytes for ranks of the same build.
  virtual std::vector<std::byte> choices() const = 0;
  /// Uses them from now on, over those for the same shapes; for shapes that are yet to be met
  /// nothing is timed any more. Throws Error for those of another library's version or another kind
  /// of device.
  virtual void use_choices(std::span<const std::byte> choices) = 0;
};

}  // namespace trireme::ops
