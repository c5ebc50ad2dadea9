#include "trireme/report/progress.hpp"

#include <algorithm>
#include <utility>

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

void ProgressLine::clear() {
  if (live_.empty()) return;
  fmt::print(out_, "\r\x1b[K");
  std::fflush(out_);
  live_.clear();
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

int ProgressLine::columns() const {
  if (!terminal_) return 0;
  // A line that wraps cannot be rewritten. The last column stays free: some terminals wrap on it.
  const int known = terminal_width(out_);
  return known > 1 ? known - 1 : 119;
}

std::string ProgressLine::fitted(const std::string& line) const {
  return line.substr(0, static_cast<std::size_t>(columns()));
}

PhaseProgress::PhaseProgress(ProgressLine* line, std::string name, Clock::duration delay)
    : line_(line), name_(std::move(name)), delay_(delay) {}

PhaseProgress::~PhaseProgress() {
  if (line_ != nullptr && shown_ != Clock::time_point{}) line_->clear();
}

bool PhaseProgress::is_due(double share, Clock::time_point now) {
  if (line_ == nullptr || now - begin_ < delay_) return false;
  if (line_->terminal()) return now - shown_ >= std::chrono::milliseconds(100) || share == 1;
  if (share < 0) return now - shown_ >= std::chrono::seconds(10);
  const int tenth = static_cast<int>(share * 10);
  return std::exchange(tenth_, std::max(tenth, tenth_)) < tenth;
}

void PhaseProgress::show(double share, const std::string& detail) {
  const Clock::time_point now = Clock::now();
  if (!is_due(share, now)) return;
  shown_ = now;
  std::string text;
  if (share >= 0 && line_->terminal()) {
    constexpr int cells = 24;
    const int full = static_cast<int>(share * cells);
    text = fmt::format("[{:#<{}}{:.<{}}] ", "", full, "", cells - full);
  }
  text += name_;
  if (share >= 0) text += fmt::format(" {:>3.0f} %", 100 * share);
  text += "  " + detail;
  if (share > 0 && share < 1) {
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    text += "  eta " + duration_text(seconds * (1 - share) / share);
  }
  line_->update(text);
}

}  // namespace trireme::report
