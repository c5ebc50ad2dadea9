// Streams and events of the CPU: a stream is an in-order queue of resumable operations. Whoever has
// time polls it: a progress thread (comm/progress.hpp), or a caller that needs the result.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>

namespace trireme::device {

/// Work that starts, then is tested until it is done. Both run under the stream's lock.
class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;
  virtual void start() = 0;
  virtual bool test() = 0;  // true once finished
  /// Steps taken so far; while it grows, pollers do not back off.
  virtual std::uint64_t steps() const { return 0; }
};

class Stream;

/// Says when one operation has finished. Copies share the state. A default Event is finished.
class Event {
 public:
  bool done() const;
  /// Polls the stream until the operation has finished; rethrows what the operation threw.
  void wait() const;

 private:
  friend class Stream;
  struct State {
    std::atomic<bool> done{false};
    std::exception_ptr error;
    Stream* stream = nullptr;
  };
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// Waits for what is queued; while an exception is on its way drops it, since what it waits for
  /// may be what failed. Nobody else may use the stream any more (end a Progress first).
  ~Stream();

  Event enqueue(std::unique_ptr<Operation> operation);
  /// Advances the operation at the front; true if it finished (then the next one has been started)
  /// or took a step. Safe from any thread; returns false at once where another thread is polling.
  bool poll();
  bool idle() const;  // nothing queued
  /// Waits for everything queued so far; rethrows the first error among it.
  void synchronise();

 private:
  struct Entry {
    std::unique_ptr<Operation> operation;
    std::shared_ptr<Event::State> state;
    bool started = false;
  };
  enum class Advance : std::uint8_t { nothing, step, finished };
  Advance advance();  // under poll_mutex_

  mutable std::mutex queue_mutex_;  // guards queue_
  std::mutex poll_mutex_;           // held by the one thread that polls
  std::deque<Entry> queue_;
};

}  // namespace trireme::device
