// The work of a parameter server, in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "trireme/comm/watchdog.hpp"
#include "trireme/core/recorder.hpp"

namespace trireme::data_parallel {

/// Work that the endpoint's thread posts and another thread does, in order. What it throws reaches
/// the thread that does it.
class WorkQueue {
 public:
  struct Item {
    const char* name = "";  // of the recorder's section
    std::function<void()> run;
    bool waits_for_readers = false;  // changes the model
  };
  /// `waiting`: section of the time without work; null: it is not recorded.
  explicit WorkQueue(const char* waiting = nullptr) : waiting_(waiting) {}
  void post(Item item);
  /// A reply that reads the model is on its way, or has gone.
  void begin_reading();
  void end_reading();
  /// Gives it a beat for every item from now on; while it waits the rank is not watched.
  void watch(comm::Watchdog& watchdog) { watchdog_ = &watchdog; }
  /// Does what there is, or waits `seconds` for something; false where nothing came.
  bool turn(double seconds, Recorder& recorder);

 private:
  const char* waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  int readers_ = 0;
  comm::Watchdog* watchdog_ = nullptr;
};

}  // namespace trireme::data_parallel
