// When work in a device's streams began and ended, by events, for traces.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "trireme/device/cuda_error.hpp"
#include "trireme/device/timeline.hpp"

namespace trireme::device {

/// Shared by all queues of a device, whose threads note spans while the one that waits reads them.
/// Nothing waits for a span: one that has not ended is read another time.
class CudaSpanLog {
 public:
  using Clock = Timeline::Clock;
  CudaSpanLog() = default;
  CudaSpanLog(const CudaSpanLog&) = delete;
  CudaSpanLog& operator=(const CudaSpanLog&) = delete;
  ~CudaSpanLog() {
    for (const Open& span : pending_) idle_.insert(idle_.end(), {span.begin, span.end});
    for (cudaEvent_t event : idle_) cudaEventDestroy(event);
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
    Open span{name, queue, take(), take()};
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
    const cudaEvent_t reference = take();
    check(cudaEventRecord(reference, stream), "cudaEventRecord");
    check(cudaEventSynchronize(reference), "cudaEventSynchronize");
    const Clock::time_point now = Clock::now();
    const auto time_of = [&](cudaEvent_t event) {
      float earlier = 0;  // milliseconds
      check(cudaEventElapsedTime(&earlier, event, reference), "cudaEventElapsedTime");
      return now - std::chrono::duration_cast<Clock::duration>(
                       std::chrono::duration<float, std::milli>(earlier));
    };
    const std::lock_guard lock(mutex_);
    std::deque<Open> waiting;
    for (const Open& span : pending_) {
      const cudaError_t state = cudaEventQuery(span.end);
      if (state == cudaErrorNotReady) {
        waiting.push_back(span);
        continue;
      }
      check(state, "cudaEventQuery");
      spans.push_back({span.name, span.queue, time_of(span.begin), time_of(span.end)});
      idle_.insert(idle_.end(), {span.begin, span.end});
    }
    pending_ = std::move(waiting);
    idle_.push_back(reference);
    return spans;
  }

 private:
  static void check(cudaError_t result, const char* call) {
    check_cuda(static_cast<int>(result), call);
  }
  cudaEvent_t take() {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const cudaEvent_t event = idle_.back();
      idle_.pop_back();
      return event;
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    return event;
  }

  std::atomic<bool> on_{false};
  std::atomic<int> queues_{0};
  std::mutex mutex_;
  std::deque<Open> pending_;
  std::vector<cudaEvent_t> idle_;
};

}  // namespace trireme::device
