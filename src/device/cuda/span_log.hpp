// CUDA's events, and by them when work in a device's streams began and ended, for traces.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "trireme/device/cuda_error.hpp"
#include "trireme/device/device.hpp"

namespace trireme::device {

/// Events are made once and used again. Thread-safe.
class EventPool {
 public:
  explicit EventPool(unsigned flags) : flags_(flags) {}
  ~EventPool() {
    for (cudaEvent_t event : idle_) cudaEventDestroy(event);
  }
  cudaEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        cudaEvent_t event = idle_.back();
        idle_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    check_cuda(static_cast<int>(cudaEventCreateWithFlags(&event, flags_)),
               "cudaEventCreateWithFlags");
    return event;
  }
  void give_back(std::span<const cudaEvent_t> events) noexcept {
    const std::lock_guard lock(mutex_);
    idle_.insert(idle_.end(), events.begin(), events.end());
  }

 private:
  unsigned flags_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_;
};

/// When `event` was reached, by the host's clock, where `reference` was at `then`.
inline Timeline::Clock::time_point time_of(cudaEvent_t event, cudaEvent_t reference,
                                           Timeline::Clock::time_point then) {
  float earlier = 0;  // milliseconds
  check_cuda(static_cast<int>(cudaEventElapsedTime(&earlier, event, reference)),
             "cudaEventElapsedTime");
  return then - std::chrono::duration_cast<Timeline::Clock::duration>(
                    std::chrono::duration<float, std::milli>(earlier));
}

/// Shared by all queues of a device, whose threads note spans while the one that waits reads them.
/// Nothing waits for a span: one that has not ended is read another time.
class CudaSpanLog {
 public:
  using Clock = Timeline::Clock;
  ~CudaSpanLog() {
    for (const Open& span : pending_) recycle(span);
  }
  void start() { on_ = true; }
  bool on() const { return on_; }
  int add_queue() { return queues_++; }

  struct Open {
    const char* name = nullptr;  // null: none
    int queue = 0;
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  Open begin(const char* name, int queue, cudaStream_t stream) {
    Open span{name, queue, pool_.take(), pool_.take()};
    check(cudaEventRecord(span.begin, stream), "cudaEventRecord");
    return span;
  }
  void end(const Open& span, cudaStream_t stream) {
    check(cudaEventRecord(span.end, stream), "cudaEventRecord");
    const std::lock_guard lock(mutex_);
    pending_.push_back(span);
  }
  /// What has ended; times are set by an event in `stream`, which the host waits for.
  std::vector<QueueSpan> read(cudaStream_t stream) {
    std::vector<QueueSpan> spans;
    if (!on_) return spans;
    const cudaEvent_t reference = pool_.take();
    check(cudaEventRecord(reference, stream), "cudaEventRecord");
    check(cudaEventSynchronize(reference), "cudaEventSynchronize");
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex_);
    std::deque<Open> waiting;
    for (const Open& span : pending_) {
      const cudaError_t state = cudaEventQuery(span.end);
      if (state == cudaErrorNotReady) {
        waiting.push_back(span);
        continue;
      }
      check(state, "cudaEventQuery");
      spans.push_back({span.name, span.queue, time_of(span.begin, reference, now),
                       time_of(span.end, reference, now)});
      recycle(span);
    }
    pending_ = std::move(waiting);
    pool_.give_back({&reference, 1});
    return spans;
  }

 private:
  static void check(cudaError_t result, const char* call) {
    check_cuda(static_cast<int>(result), call);
  }
  void recycle(const Open& span) {
    const cudaEvent_t events[] = {span.begin, span.end};
    pool_.give_back(events);
  }

  std::atomic<bool> on_{false};
  std::atomic<int> queues_{0};
  std::mutex mutex_;
  std::deque<Open> pending_;
  EventPool pool_{cudaEventDefault};
};

}  // namespace trireme::device
