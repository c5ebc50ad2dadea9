#include "trireme/core/recorder.hpp"

namespace trireme {

namespace {

double seconds_between(Recorder::Clock::time_point begin, Recorder::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

Recorder::Recorder() : origin_(Clock::now()), owner_(std::this_thread::get_id()) {}

void Recorder::add(const char* section, int stream, Clock::time_point begin,
                   Clock::time_point end) {
  {
    const std::lock_guard lock(mutex_);
    const double seconds = seconds_between(begin, end);
    seconds_[section] += seconds;
    if (stream == 0) exclusive_[{section, section}] += seconds;
  }
  add_span(section, stream, begin, end);
}

void Recorder::open(const char* section) {
  const std::lock_guard lock(mutex_);
  if (std::this_thread::get_id() == owner_) open_.push_back({section});
}

void Recorder::close(const char* section, int stream, Clock::time_point begin,
                     Clock::time_point end) {
  {
    const std::lock_guard lock(mutex_);
    const double seconds = seconds_between(begin, end);
    seconds_[section] += seconds;
    const bool owns = std::this_thread::get_id() == owner_;
    if (owns && !open_.empty()) {  // empty: opened before a reset
      exclusive_[{open_.front().name, section}] += seconds - open_.back().nested;
      open_.pop_back();
      if (!open_.empty()) open_.back().nested += seconds;
    }
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

std::map<std::pair<std::string, std::string>, double> Recorder::exclusive_seconds() const {
  const std::lock_guard lock(mutex_);
  return exclusive_;
}

double Recorder::elapsed() const {
  const std::lock_guard lock(mutex_);
  return seconds_between(origin_, Clock::now());
}

std::vector<Span> Recorder::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

void Recorder::reset() {
  const std::lock_guard lock(mutex_);
  origin_ = Clock::now();
  owner_ = std::this_thread::get_id();
  open_.clear();
  seconds_.clear();
  exclusive_.clear();
  spans_.clear();
}

}  // namespace trireme
