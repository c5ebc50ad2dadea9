#include "trireme/core/recorder.hpp"

namespace trireme {

Recorder::Recorder() : origin_(Clock::now()) {}

void Recorder::add(const char* section, int stream, Clock::time_point begin,
                   Clock::time_point end) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  const double duration_us = Microseconds(end - begin).count();
  const std::lock_guard lock(mutex_);
  seconds_[section] += duration_us * 1e-6;
  if (spans_.size() < trace_capacity) {
    spans_.push_back({section, stream, Microseconds(begin - origin_).count(), duration_us});
  }
}

void Recorder::count(const char* counter, double amount) {
  const std::lock_guard lock(mutex_);
  counters_[counter] += amount;
}

std::map<std::string, double> Recorder::seconds() const {
  const std::lock_guard lock(mutex_);
  return seconds_;
}

std::map<std::string, double> Recorder::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::vector<Span> Recorder::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

void Recorder::reset() {
  const std::lock_guard lock(mutex_);
  seconds_.clear();
  counters_.clear();
}

}  // namespace trireme
