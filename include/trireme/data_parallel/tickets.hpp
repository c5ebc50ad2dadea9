// Which worker trains on which samples next where no worker waits for another. Kept by the one
// server that workers ask; pure.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace trireme::data_parallel {

/// A piece of work for one worker.
struct Ticket {
  enum class Kind : std::int64_t { train, evaluate, leave };
  Kind kind = Kind::leave;
  /// train: `share` of the global batch of step `step` (from 0) is made of the samples [first,
  /// first + count). evaluate: part `share` of the windows of
  /// validation split `first`.
  std::int64_t number = -1, step = 0, share = 0, first = 0, count = 0;
  bool operator==(const Ticket&) const = default;
};

/// Every global batch is cut into as many shares as there were workers at the start; shares are
/// handed out in order to whoever asks. A worker's clock counts the shares that it has finished; it
/// gets no further one while it is more than `staleness` ahead of the slowest worker (Ho et al.,
/// 2013). What a lost worker had begun goes to another.
class Tickets {
 public:
  struct Plan {
    int workers = 1;
    std::int64_t batch = 1;         // samples; divides by workers
    std::int64_t first_step = 0;    // from 0
    std::int64_t first_sample = 0;  // of that step
    std::int64_t staleness = 0;
  };
  explicit Tickets(const Plan& plan);

  /// Steps from `step` on are not begun.
  void set_fence(std::int64_t step) { fence_ = step; }
  /// No further step is begun.
  void close_fence();
  /// Hands out `parts` of an evaluation of that split too.
  void evaluate(std::int64_t parts, std::int64_t split);
  /// What `worker` is to do now; nothing: it must wait.
  std::optional<Ticket> next(int worker);
  /// The worker has finished its ticket, which is returned. Throws Error if it has none.
  Ticket finish(int worker);
  /// The worker will do nothing more; returns what it leaves undone.
  std::optional<Ticket> lose(int worker);

  /// Everything before the fence is done, and nothing else is under way.
  bool drained() const;
  /// How many more shares `worker` has finished than the slowest worker.
  std::int64_t lead(int worker) const;
  int alive() const { return static_cast<int>(clocks_.size()); }
  /// The most updates by others between a worker's pull and its push. Each other worker can advance
  /// from `staleness` shares behind it to `staleness` + 1 ahead of it.
  static std::int64_t most_stale(int workers, std::int64_t staleness) {
    return (workers - 1) * (2 * staleness + 1);
  }

 private:
  Plan plan_;
  std::int64_t next_ = 0;               // number
  std::int64_t fence_ = 0;              // step
  std::deque<Ticket> waiting_;          // evaluations, and what lost workers left
  std::map<int, Ticket> under_way_;     // by worker
  std::map<int, std::int64_t> clocks_;  // of workers that live
};

}  // namespace trireme::data_parallel
