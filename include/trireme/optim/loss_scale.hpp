// Loss scaling for fp16: the loss is multiplied by a factor, by which gradients are divided before
// the update, so that small gradients do not underflow. Micikevicius et al., "Mixed precision
// training" (2018), section 3.2.
#pragma once

#include <cstdint>

namespace trireme::optim {

/// The factor of each step, a power of two, so that it rounds nothing. It is halved after a step
/// whose gradients overflow and doubled after `patience` consecutive steps without overflow.
class LossScale {
 public:
  static constexpr double first = 65536, least = 1, most = 16777216;
  static constexpr std::int64_t patience = 1000;

  /// Not `dynamic`: always 1.
  explicit LossScale(bool dynamic) : dynamic_(dynamic), value_(dynamic ? first : 1) {}
  bool dynamic() const { return dynamic_; }
  double value() const { return value_; }
  /// Whether gradients that overflow beside a finite loss mean that the factor is too large, not
  /// that training failed.
  bool may_shrink() const { return dynamic_ && value_ > least; }
  /// Adapts the factor after a step.
  void note(bool overflowed);

  // For checkpoints. `restore` throws Error for an impossible state.
  std::int64_t steps_since_change() const { return steps_; }
  void restore(double value, std::int64_t steps_since_change);

 private:
  bool dynamic_;
  double value_;
  std::int64_t steps_ = 0;
};

}  // namespace trireme::optim
