#include "trireme/optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::optim {

double learning_rate(const OptimConfig& config, std::int64_t step, std::int64_t total) {
  const std::string& schedule = config.schedule;
  const bool cosine = schedule == "cosine", wsd = schedule == "wsd";
  TRIREME_ASSERT(cosine || wsd || schedule == "linear" || schedule == "constant",
                 "learning-rate schedule {}", schedule);
  const double peak = config.learning_rate;
  if (step < config.warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  }
  if (schedule == "constant") return peak;
  std::int64_t begin = config.warmup_steps;
  std::int64_t length = config.decay_steps > 0 ? config.decay_steps : total - begin;
  if (wsd) {
    length = config.decay_steps > 0 ? config.decay_steps : total / 10;
    begin = std::max(begin, total - length);
  }
  // The first step after `begin` still has the peak, the one at begin + length the final rate.
  const double share =
      length > 0
          ? std::clamp(static_cast<double>(step - begin) / static_cast<double>(length), 0.0, 1.0)
          : 1.0;
  const double fall = cosine ? 0.5 * (1 - std::cos(std::numbers::pi * share)) : share;
  return peak * (1 - (1 - config.final_learning_rate) * fall);
}

}  // namespace trireme::optim
