// Progress of a run: one line that is rewritten on a terminal, whole lines in a log.
#pragma once

#include <cstdio>
#include <string>

namespace trireme::report {

/// Rank 0 owns one. On a terminal `update` rewrites the last line; elsewhere it prints a line.
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
  /// Shows `line`, cut to the terminal's width, in place of the last update.
  void update(const std::string& line);
  /// Prints a line that stays, above the one that is rewritten.
  void print(const std::string& line);
  /// Keeps the last update and starts a new line. Idempotent.
  void finish();

 private:
  std::string fitted(const std::string& line) const;
  std::FILE* out_;
  bool terminal_;
  std::string live_;  // what the terminal's last line shows
};

}  // namespace trireme::report
