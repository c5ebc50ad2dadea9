#include <sys/ioctl.h>
#include <unistd.h>

#include "trireme/report/record.hpp"

namespace trireme::report {

namespace {

/// Columns of the terminal behind `out`. 0: no terminal, or one without a width, such as the
/// pseudo-terminals that launchers give their ranks.
int terminal_width(std::FILE* out) {
  winsize size{};
  if (::isatty(::fileno(out)) != 1 || ::ioctl(::fileno(out), TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

}  // namespace

ProgressLine::ProgressLine(std::FILE* out) : ProgressLine(out, terminal_width(out) > 0) {}

void ProgressLine::update(const std::string& line) {
  if (!terminal_) return print(line);
  live_ = line;
  fmt::print(out_, "\r{}\x1b[K", fitted(line));  // ESC [ K: clear what an older, longer line left
  std::fflush(out_);
}

void ProgressLine::print(const std::string& line, std::FILE* to) {
  if (terminal_) fmt::print(out_, "\r\x1b[K");
  std::fflush(out_);
  fmt::print(to, "{}\n", line);
  std::fflush(to);
  if (!live_.empty()) fmt::print(out_, "{}\x1b[K", fitted(live_));
  std::fflush(out_);
}

void ProgressLine::finish() {
  if (live_.empty()) return;
  fmt::print(out_, "\n");
  std::fflush(out_);
  live_.clear();
}

std::string ProgressLine::fitted(const std::string& line) const {
  const int known = terminal_width(out_);
  // A line that wraps cannot be rewritten. The last column stays free: some terminals wrap on it.
  const int width = known > 1 ? known - 1 : 119;
  return line.substr(0, static_cast<std::size_t>(width));
}

}  // namespace trireme::report
