// When a run ends ahead of its last step: on a signal, or as a limit of time comes near.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <semaphore>
#include <string>
#include <string_view>
#include <thread>

#include "trireme/train/config.hpp"

namespace trireme::train {

/// The signals of a list of names: "TERM,USR1,USR2", also with "SIG" before them; "none" or "":
/// none. Throws ConfigError (for train.signals) for an unknown one, and for those that no program
/// may catch or that mean a fault of the program itself.
std::map<int, std::string> parse_signals(std::string_view names);

/// Holds back TERM, USR1 and USR2 of this thread, and of those that it starts, until a SignalWatch
/// takes them: for main(), before MPI starts. The first signal is not lost then.
void hold_signals();

/// Catches signals while it lives: they are noted and no longer end the process, but for a second
/// INT. One object at a time. A thread of its own takes them: the one that makes it, and threads
/// that it starts from then on, are not interrupted. oneDNN's AVX-512 products use the stack
/// pointer as a register (2.6.3), so that a signal's frame on the stack of a computing thread lands
/// in the heap.
class SignalWatch {
 public:
  explicit SignalWatch(std::map<int, std::string> signals);
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  /// What was set before is set again. By the thread that made it.
  ~SignalWatch();
  /// The last one that came; 0: none.
  int caught() const;

 private:
  std::map<int, std::string> signals_;
  std::map<int, struct sigaction> before_;
  sigset_t watched_{}, mask_before_{};
  std::binary_semaphore ends_{0};
  std::thread taker_;
};

/// Seconds of "90", "15:30" (minutes, seconds), "2:00:00" or "1-12:00:00" (days), as schedulers
/// write them; "none" or "0": no limit. Throws ConfigError for train.time_limit.
std::optional<double> parse_duration(std::string_view text);

/// Seconds until Slurm ends this job, by SLURM_JOB_END_TIME (seconds since 1970); nothing outside
/// Slurm, or where that is no number.
std::optional<double> slurm_seconds_left();

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

}  // namespace trireme::train
