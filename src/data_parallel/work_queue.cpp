#include "trireme/data_parallel/work_queue.hpp"

#include <chrono>
#include <optional>
#include <utility>

namespace trireme::data_parallel {

void WorkQueue::post(Item item) {
  {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
  }
  changed_.notify_all();
}

void WorkQueue::begin_reading() {
  const std::lock_guard lock(mutex_);
  ++readers_;
}

void WorkQueue::end_reading() {
  {
    const std::lock_guard lock(mutex_);
    --readers_;
  }
  changed_.notify_all();
}

bool WorkQueue::turn(double seconds, Recorder& recorder) {
  Item item;
  {
    std::optional<comm::Watchdog::Pause> idle;
    if (watchdog_ != nullptr) idle.emplace(*watchdog_);
    std::optional<Section> waiting;
    if (waiting_ != nullptr) waiting.emplace(recorder, waiting_);
    std::unique_lock lock(mutex_);
    const auto ready = [this] {
      return !items_.empty() && (readers_ == 0 || !items_.front().waits_for_readers);
    };
    if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), ready)) return false;
    item = std::move(items_.front());
    items_.pop_front();
  }
  if (watchdog_ != nullptr) watchdog_->beat(item.name);
  const Section section(recorder, item.name);
  item.run();
  return true;
}

}  // namespace trireme::data_parallel
