#include "trireme/core/recorder.hpp"

namespace trireme {

Recorder::Recorder() : origin_(Clock::now()) {}

void Recorder::add(const char* section, int stream, Clock::time_point begin,
                   Clock::time_point end) {
  {
    const std::lock_guard lock(mutex_);
    seconds_[section] += std::chrono::duration<double>(end - begin).count();
  }
  add_span(section, stream, begin, end);
}

void Recorder::add_span(const char* name, int stream, Clock::time_point begin,
                        Clock::time_point end) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  const std::lock_guard lock(mutex_);
  if (spans_.size() >= trace_capacity) return;
  spans_.push_back(
      {name, stream, Microseconds(begin - origin_).count(), Microseconds(end - begin).count()});
}

std::map<std::string, double> Recorder::seconds() const {
  const std::lock_guard lock(mutex_);
  return seconds_;
}

std::vector<Span> Recorder::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

void Recorder::reset() {
  const std::lock_guard lock(mutex_);
  origin_ = Clock::now();
  seconds_.clear();
  spans_.clear();
}

}  // namespace trireme
