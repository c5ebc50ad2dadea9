// What an NCCL communicator enqueues: steps that are queued on the device one after another.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/device/timeline.hpp"

#include "nccl_handle.hpp"

namespace trireme::comm {

class NcclOperation final : public device::Operation {
 public:
  /// Each queues something, at most one NCCL group, and returns true; or NCCL is not ready for it,
  /// and it is called again. The next begins once NCCL has queued what this one issued.
  using Steps = std::vector<std::function<bool()>>;
  struct Job {
    OperationKind kind = OperationKind::count;
    std::int64_t sent = 0;  // bytes for other ranks
    /// Called at the start, since scratch may move before.
    std::function<Steps()> plan;
  };
  NcclOperation(NcclHandle& handle, device::Queue& queue, TrafficCounter& traffic, Job job)
      : handle_(handle), queue_(queue), traffic_(traffic), job_(std::move(job)) {}

  bool queued() const override { return true; }
  void come_after(device::Fence& fence) override { queue_.follow(fence); }
  void start() override {
    begin_ = std::chrono::steady_clock::now();
    device::begin_span(queue_, name());
    steps_ = job_.plan();
  }
  bool test() override;
  std::shared_ptr<device::Fence> end() override { return queue_.fence(); }
  std::uint64_t steps() const override { return next_; }

 private:
  const char* name() const { return name_of(job_.kind).data(); }
  NcclHandle& handle_;
  device::Queue& queue_;
  TrafficCounter& traffic_;
  Job job_;
  Steps steps_;
  std::size_t next_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

/// A part of a grouped exchange: from or to this rank's memory.
struct NcclPart {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  bool send = false;
};

/// A step: all parts as one group. Those without bytes are left out, by both sides alike.
bool issue_parts(NcclHandle& handle, const char* operation, const std::vector<NcclPart>& parts,
                 device::Queue& queue);

}  // namespace trireme::comm
