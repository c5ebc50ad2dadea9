// When a run ends ahead of its last step, and when it saves.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "trireme/checkpoint/config.hpp"
#include "trireme/train/config.hpp"

namespace trireme::train {

/// Where the policies take time and signals from; a test makes its own.
struct StopSources {
  std::function<double()> now;                               // seconds since the start
  std::function<std::optional<double>()> scheduler_seconds;  // left; nothing outside Slurm
  std::function<int()> signal;                               // the last one caught; 0: none
};
/// Seconds since this call, by the steady clock.
std::function<double()> steady_seconds();
/// The real ones: steady_seconds, Slurm's end of the job, and the signals of
/// train.signals, which are caught while the sources live.
StopSources stop_sources(const TrainConfig& config);

/// Asks for a stop on a signal, or when the time that is left no longer suffices for the steps
/// until the next synchronization and a save.
class StopPolicy {
 public:
  static constexpr int time_is_up = 1 << 20;  // beyond all signals

  StopPolicy(const TrainConfig& config, StopSources sources);
  /// A step has taken so long.
  void note_step(double seconds) { period_ += seconds; }
  /// All ranks have synchronized: the run can stop here.
  void end_period();
  /// A signal's number, time_is_up, or 0. Time is asked for where `times` (the root rank, so that
  /// clocks need not agree); `save_seconds`: of the longest save so far.
  int wanted(bool times, double save_seconds) const;
  /// For the record and the closing line.
  std::string reason(int stop) const;

 private:
  std::map<int, std::string> signals_;
  std::optional<double> limit_;  // seconds of this start
  double margin_;
  StopSources sources_;
  double period_ = 0, longest_ = 0;  // seconds of the steps between two synchronizations
};

/// Whether a multiple of `every` (0: never) is among the steps after `before`, up to `step`.
constexpr bool multiple_between(std::int64_t every, std::int64_t before, std::int64_t step) {
  return every > 0 && step / every > before / every;
}

/// Asks for a save every checkpoint.every_minutes.
class SavePolicy {
 public:
  SavePolicy(const checkpoint::CheckpointConfig& config, std::function<double()> now)
      : config_(config), now_(std::move(now)), saved_at_(now_()) {}
  /// A save has ended, or the steps begin.
  void restart() { saved_at_ = now_(); }
  /// Whether checkpoint.every_minutes are over.
  bool minutes_over() const {
    return config_.every_minutes > 0 && now_() - saved_at_ >= 60 * config_.every_minutes;
  }

 private:
  checkpoint::CheckpointConfig config_;
  std::function<double()> now_;
  double saved_at_;
};

}  // namespace trireme::train
