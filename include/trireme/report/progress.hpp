// What a terminal or a log shows of work in progress.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace trireme::report {

/// Progress of a run; rank 0 owns one. On a terminal `update` rewrites the last line; elsewhere it
/// prints a line.
class ProgressLine {
 public:
  /// Detects whether `out` is a terminal with a width. A launcher's pseudo-terminal has none: use
  /// the other constructor there.
  explicit ProgressLine(std::FILE* out = stdout);
  ProgressLine(std::FILE* out, bool terminal) : out_(out), terminal_(terminal) {}
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { finish(); }

  bool terminal() const { return terminal_; }
  /// That a line can have; 0 where it is not cut.
  int columns() const;
  /// Shows `line`, cut to the terminal's width, in place of the last update.
  void update(const std::string& line);
  /// Takes the last update away from a terminal.
  void clear();
  /// Prints a line that stays, above the one that is rewritten.
  void print(const std::string& line) { print(line, out_); }
  /// The same on `to`, which may share the terminal.
  void print(const std::string& line, std::FILE* to);
  /// Keeps the last update and starts a new line. Idempotent.
  void finish();

 private:
  std::string fitted(const std::string& line) const;
  std::FILE* out_;
  bool terminal_;
  std::string live_;  // what the terminal's last line shows
};

/// Progress of a part of a run that usually takes moments, such as an evaluation: nothing before
/// `delay`; then on a terminal a bar, which the destructor takes away, and elsewhere a line for
/// each further tenth that is done, or each 10 s where the whole is not known.
class PhaseProgress {
 public:
  using Clock = std::chrono::steady_clock;
  /// `line` outlives it; null: nothing is shown.
  PhaseProgress(ProgressLine* line, std::string name,
                Clock::duration delay = std::chrono::seconds(2));
  PhaseProgress(const PhaseProgress&) = delete;
  PhaseProgress& operator=(const PhaseProgress&) = delete;
  ~PhaseProgress();
  /// "evaluate  25 %  3 of 12 windows  eta 00:45". `share` is done, 0 to 1; negative: not known.
  void show(double share, const std::string& detail);

 private:
  bool is_due(double share, Clock::time_point now);
  ProgressLine* line_;
  std::string name_;
  Clock::duration delay_;
  Clock::time_point begin_ = Clock::now(), shown_{};
  int tenth_ = 0;
};

}  // namespace trireme::report
