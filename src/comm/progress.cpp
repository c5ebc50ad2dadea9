#include "trireme/comm/progress.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace trireme::comm {
namespace {
using std::chrono::microseconds;
constexpr microseconds shortest{20};
constexpr microseconds longest{1000};
}  // namespace

Progress::Progress(std::vector<device::Stream*> streams)
    : streams_(std::move(streams)), thread_([this] { run(); }) {}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  condition_.notify_one();
  thread_.join();
}

void Progress::wake() {
  {
    const std::lock_guard lock(mutex_);
    awake_ = true;
  }
  condition_.notify_one();
}

void Progress::run() {
  const auto idle = [](const device::Stream* stream) { return stream->idle(); };
  microseconds pause = shortest;
  for (device::Stream* stream : streams_) stream->device().enter_thread();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (std::exchange(awake_, false)) pause = shortest;
    lock.unlock();
    bool moved = false;
    for (device::Stream* stream : streams_) moved = stream->poll() || moved;
    const bool sleep = std::all_of(streams_.begin(), streams_.end(), idle);
    if (moved) pause = shortest;
    lock.lock();
    const auto called = [this] { return stop_ || awake_; };
    if (sleep) {
      // What is enqueued without wake() afterwards waits for its waiter.
      condition_.wait(lock, called);
    } else if (!moved) {
      // A thread that yields instead waits for a time slice of computation on its core.
      condition_.wait_for(lock, pause, called);
      pause = std::min(2 * pause, longest);
    }
  }
}

}  // namespace trireme::comm
