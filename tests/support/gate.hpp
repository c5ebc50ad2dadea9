// Blocks a queue of a simulated device (SimulatedDevice::repeat) for as long as a test needs.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace trireme::testing_support {

/// Opens after a delay, or by a call.
class Gate {
 public:
  ~Gate() { open(); }
  bool is_open() const { return is_open_->load(); }
  std::function<bool()> check() const {
    return [is_open = is_open_] { return is_open->load(); };
  }
  void open_after(std::chrono::milliseconds wait) {
    thread_ = std::thread([is_open = is_open_, wait] {
      std::this_thread::sleep_for(wait);
      *is_open = true;
    });
  }
  void open() {
    *is_open_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::shared_ptr<std::atomic<bool>> is_open_ = std::make_shared<std::atomic<bool>>(false);
  std::thread thread_;
};

}  // namespace trireme::testing_support
