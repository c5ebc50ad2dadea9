// Records where a rank's time goes: named sections (spans), which `report` reduces over ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme {

/// One finished span, for traces. Times are microseconds since the recorder was made or reset.
struct Span {
  const char* name = "";  // a string literal
  int stream =
      0;  // 0 compute, 1 communication, 2 loader, 3 the device's operations, 4 … its queues
  double begin_us = 0;
  double duration_us = 0;
};

/// Thread-safe. Sections are named by string literals; nested sections count in both.
class Recorder {
 public:
  using Clock = std::chrono::steady_clock;
  Recorder();
  void add(const char* section, int stream, Clock::time_point begin, Clock::time_point end);
  /// A span alone, of no section: what a device did, which the host's sections hold already.
  void add_span(const char* name, int stream, Clock::time_point begin, Clock::time_point end);
  /// Seconds by section since the start or the last `reset`.
  std::map<std::string, double> seconds() const;
  /// Seconds of the thread that made or reset the recorder, without those of nested sections, by
  /// the outermost and the innermost open section. Their sum is at most `elapsed()`.
  std::map<std::pair<std::string, std::string>, double> exclusive_seconds() const;
  /// Seconds since the start or the last `reset`.
  double elapsed() const;
  /// The first `trace_capacity` spans recorded since the start or the last `reset`.
  std::vector<Span> spans() const;
  /// Forgets everything; spans count their time from now on.
  void reset();

  static constexpr std::size_t trace_capacity = 100'000;

 private:
  friend class Section;
  struct Open {
    const char* name;
    double nested = 0;  // seconds of sections inside that have ended
  };
  void open(const char* section);
  void close(const char* section, int stream, Clock::time_point begin, Clock::time_point end);

  mutable std::mutex mutex_;
  Clock::time_point origin_;
  std::thread::id owner_;
  std::vector<Open> open_;  // sections of the owner's, outermost first
  std::map<std::string, double> seconds_;
  std::map<std::pair<std::string, std::string>, double> exclusive_;
  std::vector<Span> spans_;
};

/// Records the time from its construction to its end.
class Section {
 public:
  Section(Recorder& recorder, const char* name, int stream = 0)
      : recorder_(recorder), name_(name), stream_(stream), begin_(Recorder::Clock::now()) {
    recorder.open(name);
  }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;
  ~Section() { recorder_.close(name_, stream_, begin_, Recorder::Clock::now()); }

 private:
  Recorder& recorder_;
  const char* name_;
  int stream_;
  Recorder::Clock::time_point begin_;
};

}  // namespace trireme
