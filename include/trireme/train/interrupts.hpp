// What ends a run ahead of its last step: a signal, or a limit of time that comes near.
#pragma once

#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::train {

/// The signals of a list of names: "TERM,USR1,USR2", also with "SIG" before them; "none" or "":
/// none. Throws ConfigError (for train.signals) for an unknown one, and for those that no program
/// may catch or that mean a fault of the program itself.
std::map<int, std::string> parse_signals(std::string_view names);

/// Catches signals while it lives: they no longer end the process, they are noted. One object at a
/// time.
class SignalWatch {
 public:
  explicit SignalWatch(std::map<int, std::string> signals);
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  /// What was set before is set again.
  ~SignalWatch();
  /// The last one that came; 0: none.
  int caught() const;
  /// "SIGUSR1".
  std::string name_of(int signal) const;

 private:
  std::map<int, std::string> signals_;
  std::map<int, struct sigaction> before_;
};

/// Seconds of "90", "15:30" (minutes, seconds), "2:00:00" or "1-12:00:00" (days), as schedulers
/// write them; "none" or "0": no limit. Throws ConfigError for train.time_limit.
std::optional<double> parse_duration(std::string_view text);

/// Seconds until Slurm ends this job, by SLURM_JOB_END_TIME (seconds since 1970); nothing outside
/// Slurm, or where that does not tell.
std::optional<double> slurm_seconds_left();

}  // namespace trireme::train
