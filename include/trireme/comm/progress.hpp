// One thread per rank that advances the communication streams while the compute thread computes.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/device/stream.hpp"

namespace trireme::comm {

/// Polls the streams it serves; backs off up to 1 ms between fruitless polls, and sleeps while all
/// of them are idle until `wake` is called.
class Progress {
 public:
  explicit Progress(std::vector<device::Stream*> streams);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();
  void wake();

 private:
  void run();
  std::vector<device::Stream*> streams_;
  std::mutex mutex_;
  std::condition_variable condition_;
  bool stop_ = false, awake_ = false;
  std::thread thread_;
};

}  // namespace trireme::comm
