// Streams of communication and their events: a stream is an in-order queue of resumable operations
// beside a device's queue of computation. Whoever has time polls it: a progress thread
// (comm/progress.hpp), or a caller that needs the result. Each operation begins after the
// computation that was queued before it; what is queued after a wait for its event comes after it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/core/recorder.hpp"
#include "trireme/device/device.hpp"

namespace trireme::device {

/// Work that starts, then is tested until it is done. Both run under the stream's lock. Work that
/// the host does may read and write when it starts; work that is *queued* on the device itself
/// (NCCL) only enqueues there what it waits for.
class Operation : public Interface {
 public:
  virtual void start() = 0;
  virtual bool test() = 0;  // true once finished, or queued
  virtual bool queued() const { return false; }
  /// Of queued work, before start: what it must come after, and after test: where it ends.
  virtual void come_after(Fence& fence) { static_cast<void>(fence); }
  virtual std::shared_ptr<Fence> end() { return nullptr; }
  /// Steps taken so far; while it grows, pollers do not back off.
  virtual std::uint64_t steps() const { return 0; }
};

class GraphSequence;
class Stream;

/// Whether one operation has finished. Copies share the state. A default Event is finished.
class Event {
 public:
  bool done() const;
  /// Polls the stream until the operation has finished, or until computation that is queued from
  /// now on comes after it; rethrows what the operation threw.
  void wait() const;
  /// Rethrows what the operation threw, if it has finished.
  void check() const;

 private:
  friend class GraphSequence;
  friend class Stream;
  struct State {
    std::atomic<bool> done{false};
    std::exception_ptr error;
    std::shared_ptr<Fence> end;  // of queued work
    Stream* stream = nullptr;
    GraphSequence* captured_by = nullptr;  // it stands for an operation of every launch
    std::size_t number = 0;                // among that sequence's operations
  };
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  /// Operations are given memory of `device`.
  explicit Stream(Device& device = host_device());
  /// Waits for what is queued; while an exception is on its way drops it, since what it waits for
  /// may be what failed. Nobody else may use the stream any more (end a Progress first).
  ~Stream();

  Device& device() const { return device_; }
  /// From now on waits for its events are sections `name`, a literal, of `recorder`.
  void record_waits(Recorder& recorder, const char* name) {
    recorder_ = &recorder;
    wait_name_ = name;
  }
  /// For what its operations queue on the device: beside computation, in their order.
  Queue& queue() { return *queue_of_device_; }

  Event enqueue(std::unique_ptr<Operation> operation);
  /// Advances the operation at the front; true if it finished (then the next one has been started)
  /// or took a step. Safe from any thread; returns false at once where another thread is polling.
  bool poll();
  bool idle() const;  // nothing queued
  /// Waits for everything queued so far; rethrows the first error among it.
  void synchronize();

 private:
  struct Entry {
    std::unique_ptr<Operation> operation;
    std::shared_ptr<Event::State> state;
    std::shared_ptr<Fence> after;  // what was to be computed before
    bool started = false;
  };
  enum class Advance : std::uint8_t { nothing, step, finished };
  Advance advance();  // under poll_mutex_
  bool may_start(Entry& entry);

  friend class Event;
  Device& device_;
  Recorder* recorder_ = nullptr;
  const char* wait_name_ = "";
  std::unique_ptr<Queue> queue_of_device_;
  std::shared_ptr<Fence> last_end_;  // of queued work; under poll_mutex_
  mutable std::mutex queue_mutex_;   // guards queue_
  std::mutex poll_mutex_;            // held by the one thread that polls
  std::deque<Entry> queue_;
};

/// Computation with operations of streams in between, captured as graphs and repeated: of each run
/// of computation one launch, of each operation a new one. Used by the thread that uses the device.
class GraphSequence {
 public:
  explicit GraphSequence(Device& device) : device_(device) {}
  GraphSequence(const GraphSequence&) = delete;
  GraphSequence& operator=(const GraphSequence&) = delete;

  /// Captures what `work` queues for computation, and the operations that it passes to start,
  /// instead of what was captured before; none of it is done. Throws what `work` throws, and as
  /// Device::end_capture; then the sequence is empty.
  void capture(const std::function<void()>& work);
  /// While capturing: `operation` is called in every launch at this place, after the computation so
  /// far. A wait for the result becomes a wait for that launch's event.
  Event start(std::function<Event()> operation);
  /// Does all of it: computation is queued, and operations are called and waited for.
  void launch();
  std::size_t graphs() const { return graphs_; }

 private:
  friend class Event;
  /// One of these: a graph; an operation; or a wait for an operation's event.
  struct Step {
    std::unique_ptr<Graph> graph;
    std::function<Event()> operation;
    std::size_t awaited = 0;
  };
  void clear();
  void end_graph();  // of the computation so far
  void interrupt(Step step);
  Device& device_;
  std::vector<Step> steps_;
  std::vector<Event> events_;  // of the last launch, by operation
  std::size_t operations_ = 0, graphs_ = 0;
};

}  // namespace trireme::device
