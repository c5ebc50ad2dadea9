#include "trireme/report/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace trireme::report {

ProgressLine::ProgressLine(std::FILE* out) : ProgressLine(out, ::isatty(::fileno(out)) == 1) {}

void ProgressLine::update(const std::string& line) {
  if (!terminal_) return print(line);
  live_ = line;
  fmt::print(out_, "\r{}\x1b[K", fitted(line));  // ESC [ K: clear what an older, longer line left
  std::fflush(out_);
}

void ProgressLine::print(const std::string& line) {
  if (terminal_) fmt::print(out_, "\r\x1b[K");
  fmt::print(out_, "{}\n", line);
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
  winsize size{};
  if (::ioctl(::fileno(out_), TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return line;
  // A line that wraps cannot be rewritten. The last column stays free: some terminals wrap on it.
  return line.substr(0, static_cast<std::size_t>(size.ws_col) - 1);
}

}  // namespace trireme::report
