#include "trireme/optim/loss_scale.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.hpp"

namespace trireme::optim {

void LossScale::note(bool overflowed) {
  if (!dynamic_) return;
  if (overflowed) {
    value_ = std::max(least, value_ / 2);
    steps_ = 0;
  } else if (++steps_ >= patience) {
    value_ = std::min(most, value_ * 2);
    steps_ = 0;
  }
}

void LossScale::restore(double value, std::int64_t steps_since_change) {
  int exponent = 0;
  const bool power = std::isfinite(value) && std::frexp(value, &exponent) == 0.5;
  if (!power || value < least || value > most || steps_since_change < 0 ||
      steps_since_change >= patience) {
    throw Error("loss scale {} after {} steps: is damaged", value, steps_since_change);
  }
  if (!dynamic_) return;
  value_ = value;
  steps_ = steps_since_change;
}

}  // namespace trireme::optim
