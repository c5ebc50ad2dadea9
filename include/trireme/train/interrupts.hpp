// What ends a run ahead of its last step: a signal, or a limit of time that comes near.
#pragma once

#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <semaphore>
#include <string>
#include <string_view>
#include <thread>

namespace trireme::train {

/// The signals of a list of names: "TERM,USR1,USR2", also with "SIG" before them; "none" or "":
/// none. Throws ConfigError (for train.signals) for an unknown one, and for those that no program
/// may catch or that mean a fault of the program itself.
std::map<int, std::string> parse_signals(std::string_view names);

/// Catches signals while it lives: they are noted and no longer end the process. One object at a
/// time. A thread of its own takes them: the one that makes it, and threads that it starts from
/// then on, are not interrupted. oneDNN's AVX-512 products use the stack pointer as a register
/// (2.6.3), so that a signal's frame on the stack of a computing thread lands in the heap.
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

}  // namespace trireme::train
