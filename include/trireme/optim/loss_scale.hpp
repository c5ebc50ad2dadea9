// Loss scaling: in fp16 small gradients vanish unless the loss, and so all gradients, are
// multiplied while they are computed and divided out before the update. Micikevicius et al.,
// "Mixed precision training" (2018), section 3.2.
#pragma once

#include <cstdint>

namespace trireme::optim {

/// The factor of each step: powers of two, so that nothing is rounded by it. It is halved after a
/// step whose gradients overflow and doubled after `patience` steps in a row that do not.
class LossScale {
 public:
  static constexpr double first = 65536, least = 1, most = 16777216;
  static constexpr std::int64_t patience = 1000;

  /// Not `dynamic`: always 1.
  explicit LossScale(bool dynamic) : dynamic_(dynamic), value_(dynamic ? first : 1) {}
  bool dynamic() const { return dynamic_; }
  double value() const { return value_; }
  /// Whether a step whose loss is finite and whose gradients are not says that the factor is too
  /// large, rather than that training has failed.
  bool may_shrink() const { return dynamic_ && value_ > least; }
  /// Takes in a step: whether its gradients overflowed.
  void note(bool overflowed);

  /// For checkpoints: where a resumed run goes on. Throws Error for a state that cannot be.
  std::int64_t steps_since_change() const { return steps_; }
  void restore(double value, std::int64_t steps_since_change);

 private:
  bool dynamic_;
  double value_;
  std::int64_t steps_ = 0;
};

}  // namespace trireme::optim
