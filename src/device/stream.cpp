#include "trireme/device/stream.hpp"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::device {
namespace {

/// What a waiter does between fruitless polls: gives its core away, and after a while sleeps, since
/// another thread of this core may be the one that computes.
class Backoff {
 public:
  void pause() {
    if (++fruitless_ <= yields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  void reset() { fruitless_ = 0; }

 private:
  static constexpr int yields = 200;
  int fruitless_ = 0;
};

}  // namespace

bool Event::done() const {
  return state_ == nullptr || state_->done.load(std::memory_order_acquire);
}

void Event::wait() const {
  Backoff backoff;
  while (!done()) {
    if (state_->stream->poll()) {
      backoff.reset();
    } else if (!done()) {
      backoff.pause();
    }
  }
  if (state_ != nullptr && state_->error) std::rethrow_exception(state_->error);
}

Stream::~Stream() {
  if (std::uncaught_exceptions() > 0) {
    const std::scoped_lock alone(poll_mutex_, queue_mutex_);
    queue_.clear();
    return;
  }
  try {
    synchronise();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the error belongs to whoever holds the event
  }
  // A thread that polled last may still be leaving poll().
  const std::scoped_lock leaving(poll_mutex_, queue_mutex_);
}

Event Stream::enqueue(std::unique_ptr<Operation> operation) {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  event.state_->stream = this;
  const std::lock_guard lock(queue_mutex_);
  queue_.push_back({std::move(operation), event.state_});
  return event;
}

bool Stream::poll() {
  const std::unique_lock polling(poll_mutex_, std::try_to_lock);
  if (!polling.owns_lock()) return false;
  const Advance result = advance();
  // The next one starts at once: its messages travel while nobody polls.
  if (result == Advance::finished) advance();
  return result != Advance::nothing;
}

Stream::Advance Stream::advance() {
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(queue_mutex_);
    if (queue_.empty()) return Advance::nothing;
    entry = &queue_.front();  // stays in place while others push; only the polling thread pops
  }
  bool finished = false;
  std::uint64_t before = 0;
  try {
    if (!std::exchange(entry->started, true)) entry->operation->start();
    before = entry->operation->steps();
    finished = entry->operation->test();
  } catch (...) {
    entry->state->error = std::current_exception();
    finished = true;
  }
  if (!finished) return entry->operation->steps() > before ? Advance::step : Advance::nothing;
  entry->operation.reset();
  const std::lock_guard lock(queue_mutex_);
  const std::shared_ptr<Event::State> state = std::move(entry->state);
  queue_.pop_front();
  state->done.store(true, std::memory_order_release);
  return Advance::finished;
}

bool Stream::idle() const {
  const std::lock_guard lock(queue_mutex_);
  return queue_.empty();
}

void Stream::synchronise() {
  std::vector<Event> pending;
  {
    const std::lock_guard lock(queue_mutex_);
    for (const Entry& entry : queue_) {
      pending.emplace_back();
      pending.back().state_ = entry.state;
    }
  }
  std::exception_ptr first;
  for (const Event& event : pending) {
    try {
      event.wait();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace trireme::device
