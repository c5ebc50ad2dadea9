// Ends a job in which a rank has died or stalled, and prints what every rank of the node did last.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <mpi.h>

#include "trireme/comm/session.hpp"

namespace trireme::comm {

/// Every rank notes its last operation in memory that the ranks of its node share. A thread per
/// rank watches the notes: when one has not changed for the timeout, the first thread to notice
/// prints the node's table on standard error and ends the job by MPI_Abort, or that rank alone.
/// Time in which the watching thread itself could not run (a suspended job) hardly counts.
class Watchdog {
 public:
  /// What ends when a rank stalls or is stopped: the job, as when a rank dies; or that rank alone,
  /// by SIGKILL, for jobs that detect its loss by other means and continue without it.
  enum class Ends { the_job, the_rank };
  /// Collective over the node. `timeout_seconds` ≤ 0: nothing is watched.
  Watchdog(Session& session, double timeout_seconds, Ends ends = Ends::the_job);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  /// Collective over the world, and watched until all ranks are here; where ranks end alone, over
  /// those of the node that live, and the watch continues until none that has stalled is left.
  /// While an exception is on its way this rank just leaves.
  ~Watchdog();

  /// This rank lives and is about to do `operation` (cut to `text_bytes`). No allocation and no
  /// system call but the clock. From one thread at a time, as are the pauses.
  void beat(std::string_view operation);
  /// The same in step `step`; later beats belong to it too.
  void beat(std::string_view operation, std::int64_t step);

  /// While one lives this rank is not watched, unless its process dies (or is stopped, where ranks
  /// end alone): around what takes long without a beat, such as a checkpoint. They nest.
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
  bool watched(const Slot& slot) const;
  bool others_live() const;
  std::string complaint(std::size_t silent, double seconds) const;
  [[noreturn]] void end_job(std::size_t silent, double seconds);
  void end_rank(std::size_t silent, double seconds);

  Session& session_;
  double timeout_;
  Ends ends_;
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<Slot*> slots_;  // by rank of the node
  Slot* own_ = nullptr;
  std::mutex mutex_;
  std::condition_variable condition_;
  bool stop_ = false;
  std::thread thread_;
};

/// The table's entry for one rank.
struct LastOperation {
  int rank = 0;
  std::int64_t step = -1;  // −1: none yet
  double seconds_ago = 0;
  std::string operation;
  std::string state;  // "dead", "stopped", "not watched"; mostly empty
};

/// The table, longest silence first, one rank per line.
std::string watchdog_table(std::vector<LastOperation> ranks);

}  // namespace trireme::comm
