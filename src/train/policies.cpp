#include "trireme/train/policies.hpp"

#include <algorithm>
#include <chrono>
#include <memory>

#include "trireme/train/interrupts.hpp"

namespace trireme::train {

std::function<double()> steady_seconds() {
  using Clock = std::chrono::steady_clock;
  return [begin = Clock::now()] {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
}

StopSources stop_sources(const TrainConfig& config) {
  const auto watch = std::make_shared<SignalWatch>(parse_signals(config.signals));
  return {.now = steady_seconds(), .scheduler_seconds = slurm_seconds_left, .signal = [watch] {
            return watch->caught();
          }};
}

StopPolicy::StopPolicy(const TrainConfig& config, StopSources sources)
    : signals_(parse_signals(config.signals)),
      limit_(parse_duration(config.time_limit)),
      margin_(config.time_margin),
      sources_(std::move(sources)) {}

void StopPolicy::end_period() {
  longest_ = std::max(longest_, period_);
  period_ = 0;
}

int StopPolicy::wanted(bool times, double save_seconds) const {
  if (const int signal = sources_.signal(); signal != 0) return signal;
  if (!times) return 0;
  std::optional<double> left = sources_.scheduler_seconds();
  if (limit_) {
    const double own = *limit_ - sources_.now();
    left = std::min(left.value_or(own), own);
  }
  // Steps and saves are not always as quick as they were.
  const double needed = margin_ + 1.5 * (std::max(longest_, period_) + save_seconds);
  return left && *left < needed ? time_is_up : 0;
}

std::string StopPolicy::reason(int stop) const {
  if (stop == time_is_up) return "its time is up";
  const auto found = signals_.find(stop);
  return "signal " + (found == signals_.end() ? std::to_string(stop) : found->second);
}

}  // namespace trireme::train
