#include "trireme/device/stream.hpp"

#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"

namespace trireme::device {
namespace {

/// What a waiter does between polls, `fruitless` of them in a row: gives its core away, and after a
/// while sleeps, since another thread of this core may be the one that computes.
void pause(int fruitless) {
  constexpr int yields = 200;
  if (fruitless <= yields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

bool Event::done() const {
  if (state_ == nullptr) return true;
  return state_->done.load(std::memory_order_acquire) &&
         (state_->end == nullptr || state_->end->reached());
}

void Event::wait() const {
  if (state_ == nullptr) return;
  if (state_->captured_by != nullptr) {
    return state_->captured_by->interrupt({.awaited = state_->number});
  }
  const auto finished = [&] { return state_->done.load(std::memory_order_acquire); };
  std::optional<Section> section;
  if (!finished() && state_->stream->recorder_ != nullptr) {
    section.emplace(*state_->stream->recorder_, state_->stream->wait_name_);
  }
  for (int fruitless = 0; !finished();) {
    fruitless = state_->stream->poll() ? 0 : fruitless + 1;
    if (fruitless > 0 && !finished()) pause(fruitless);
  }
  if (state_->error) std::rethrow_exception(state_->error);
  if (state_->end == nullptr) return;
  state_->stream->device_.check();
  state_->stream->device_.follow(*state_->end);
}

void Event::check() const {
  if (state_ == nullptr || !state_->done.load(std::memory_order_acquire)) return;
  if (state_->error) std::rethrow_exception(state_->error);
}

Stream::Stream(Device& device) : device_(device), queue_of_device_(device.make_queue()) {}

Stream::~Stream() {
  if (std::uncaught_exceptions() > 0) {
    const std::scoped_lock alone(poll_mutex_, queue_mutex_);
    queue_.clear();
    return;
  }
  try {
    synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the error belongs to whoever holds the event
  }
  // A thread that polled last may still be leaving poll().
  const std::scoped_lock leaving(poll_mutex_, queue_mutex_);
}

Event Stream::enqueue(std::unique_ptr<Operation> operation) {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  event.state_->stream = this;
  const bool queued = operation->queued();
  std::shared_ptr<Fence> after = device_.fence();  // may throw
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back({std::move(operation), event.state_, std::move(after)});
  }
  if (queued) poll();  // the device continues by itself
  return event;
}

bool Stream::may_start(Entry& entry) {
  if (entry.operation->queued()) {
    if (entry.after) entry.operation->come_after(*entry.after);
    if (last_end_) entry.operation->come_after(*last_end_);
    return true;
  }
  if (entry.after && !entry.after->reached()) return false;
  if (last_end_ && !last_end_->reached()) return false;
  last_end_.reset();
  return true;
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
    if (!entry->started) {
      if (!may_start(*entry)) return Advance::nothing;
      entry->started = true;
      entry->operation->start();
    }
    before = entry->operation->steps();
    finished = entry->operation->test();
    if (finished && entry->operation->queued()) {
      last_end_ = entry->operation->end();
      entry->state->end = last_end_;
    }
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

void Stream::synchronize() {
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

void GraphSequence::end_graph() {
  std::unique_ptr<Graph> graph = device_.end_capture();
  if (graph->empty()) return;
  steps_.push_back({.graph = std::move(graph)});
  ++graphs_;
}

void GraphSequence::interrupt(Step step) {
  end_graph();
  steps_.push_back(std::move(step));
  device_.begin_capture();
}

void GraphSequence::capture(const std::function<void()>& work) {
  clear();
  device_.begin_capture();
  bool capturing = true;
  try {
    work();
    capturing = false;
    end_graph();
  } catch (...) {
    try {
      if (capturing) device_.end_capture();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): follows from the one under way
    }
    clear();
    throw;
  }
  events_.resize(operations_);
}

void GraphSequence::clear() {
  steps_.clear();
  operations_ = graphs_ = 0;
}

Event GraphSequence::start(std::function<Event()> operation) {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  event.state_->captured_by = this;
  event.state_->number = operations_++;
  interrupt({.operation = std::move(operation)});
  return event;
}

void GraphSequence::launch() {
  std::size_t started = 0;
  for (const Step& step : steps_) {
    if (step.graph) {
      step.graph->launch();
    } else if (step.operation) {
      events_[started++] = step.operation();
    } else {
      events_[step.awaited].wait();
    }
  }
}

}  // namespace trireme::device
