// One operation of an NCCL group, from its turn until it is queued on the device.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/nccl.hpp"

#include "nccl_handle.hpp"

namespace trireme::comm {

/// Steps that are queued on the device one after another, once all earlier operations are queued.
class NcclOperation final : public device::Operation {
 public:
  /// Each queues something, at most one NCCL group, and returns true; or NCCL is not ready for it,
  /// and it is called again. The next begins once NCCL has queued what this one issued.
  using Steps = std::vector<std::function<bool()>>;
  /// `sent`: bytes for other ranks; `plan` is called at its turn, since scratch may move before. To
  /// be enqueued on `stream` at once. `beside`: neither it nor another group's waits on the device
  /// for the other's end.
  NcclOperation(NcclHandle& handle, NcclRuntime& runtime, device::Stream& stream,
                TrafficCounter& traffic, OperationKind kind, std::int64_t sent,
                std::function<Steps()> plan, bool beside)
      : handle_(handle),
        runtime_(runtime),
        stream_(stream),
        queue_(stream.queue()),
        traffic_(traffic),
        kind_(kind),
        sent_(sent),
        plan_(std::move(plan)),
        in_turns_(runtime.in_turns() && !beside),
        ticket_(runtime.order().take(stream)) {}
  NcclOperation(const NcclOperation&) = delete;
  NcclOperation& operator=(const NcclOperation&) = delete;
  ~NcclOperation() override {
    if (!left_) leave(nullptr);  // it failed, or is dropped
  }

  bool queued() const override { return true; }
  void come_after(device::Fence& fence) override { queue_.follow(fence); }
  void start() override {}
  bool test() override {
    if (!planned_) {
      handle_.settled(name());  // throws where an operation before it never ends
      if (!runtime_.order().is_turn(ticket_, stream_)) return false;
      begin();
    }
    while (handle_.settled(name())) {
      if (next_ == steps_.size()) {
        queue_.end_span();
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
        traffic_.add(kind_, {.bytes = sent_, .operations = 1, .seconds = spent.count()});
        end_ = queue_.fence();
        handle_.queued(end_);
        leave(end_);
        return true;
      }
      if (!steps_[next_]()) return false;  // another stream's operation came between
      ++next_;
    }
    return false;
  }
  std::shared_ptr<device::Fence> end() override { return end_; }
  std::uint64_t steps() const override { return next_; }

 private:
  const char* name() const { return name_of(kind_).data(); }
  void begin() {
    planned_ = true;
    begin_ = std::chrono::steady_clock::now();
    if (const auto last = runtime_.order().last_end(); last && in_turns_) queue_.follow(*last);
    queue_.begin_span(name());
    steps_ = plan_();
  }
  void leave(std::shared_ptr<device::Fence> end) {
    left_ = true;
    runtime_.order().leave(ticket_, in_turns_ ? std::move(end) : nullptr);
  }

  NcclHandle& handle_;
  NcclRuntime& runtime_;
  device::Stream& stream_;
  device::Queue& queue_;
  TrafficCounter& traffic_;
  OperationKind kind_;
  std::int64_t sent_;
  std::function<Steps()> plan_;
  bool in_turns_;
  LaunchOrder::Ticket ticket_;
  bool planned_ = false, left_ = false;
  Steps steps_;
  std::size_t next_ = 0;
  std::shared_ptr<device::Fence> end_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace trireme::comm
