// Ends a job in which a rank has died or stalled, and says what every rank of the node did last.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include <mpi.h>

#include "trireme/comm/session.hpp"

namespace trireme::comm {

/// Every rank notes its last operation in memory that the ranks of its node share, where survivors
/// can read it. A thread per rank watches the notes of the node: when one of them has not changed
/// for the timeout, the first thread to notice prints the node's table on standard error, longest
/// silence first, and ends the job by MPI_Abort. Time in which the watching thread itself did not
/// run (a suspended job) counts only in part.
class Watchdog {
 public:
  /// Collective over the node. `timeout_seconds` ≤ 0: nothing is watched and `beat` does nothing.
  Watchdog(Session& session, double timeout_seconds);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  /// Collective over the node, except while an exception is on its way. This rank is no longer
  /// watched.
  ~Watchdog();

  /// This rank is about to do `operation` (cut to `text_bytes`): it lives. From one thread at a
  /// time; no allocation, no system call but the clock.
  void beat(std::string_view operation);
  /// The same, with the step that it belongs to; later beats keep the step.
  void beat(std::string_view operation, std::int64_t step);

  /// While one lives this rank is not watched: what takes long without a beat, such as a
  /// checkpoint. They nest.
  class Pause {
   public:
    explicit Pause(Watchdog& watchdog) : watchdog_(watchdog) { watchdog_.pause(); }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
    ~Pause() { watchdog_.resume(); }

   private:
    Watchdog& watchdog_;
  };

  static constexpr std::size_t text_bytes = 96;

 private:
  struct Slot;
  void pause();
  void resume();
  void watch();
  [[noreturn]] void bark(int stalled, double silence);

  Session& session_;
  double timeout_;
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<Slot*> slots_;  // by rank of the node
  Slot* own_ = nullptr;
  std::mutex mutex_;
  std::condition_variable condition_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace trireme::comm
