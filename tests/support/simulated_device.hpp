// A simulated device for tests. The host cannot touch its memory, and its own thread executes work
// later, from its queues in random order. This exposes early reads, missing waits and wrong memory
// without a real device. The file is long because it is one class's state under one lock.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trireme/core/error.hpp"
#include "trireme/device/device.hpp"

namespace trireme::testing_support {

class SimulatedDevice final : public device::Device {
 public:
  explicit SimulatedDevice(unsigned seed, std::string identity = {})
      : identity_(std::move(identity)), random_(seed), worker_([this] { work(); }) {}
  ~SimulatedDevice() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  std::string name() const override { return "simulated"; }
  bool is_host() const override { return false; }
  std::string identity() const override { return identity_; }

  void* allocate(std::size_t bytes) override {
    refuse_in_capture("memory");
    const std::size_t size = pages(bytes);
    const int file = memfd_create("simulated", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) return nullptr;
    void* real = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void* seen = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    close(file);
    TRIREME_ASSERT(real != MAP_FAILED && seen != MAP_FAILED, "no {} bytes to map", size);
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<std::byte*>(seen)] = {static_cast<std::byte*>(real), size};
    return seen;
  }
  void release(void* memory) noexcept override {
    std::unique_lock lock(mutex_);
    ++waits_;
    if (captures_here()) invalidated_by_ = "a release of memory";
    changed_.wait(lock, [this] { return pending_ == 0; });
    const auto block = blocks_.find(static_cast<std::byte*>(memory));
    for (const auto& [at, size] : registered_) {
      if (at >= block->first && at < block->first + block->second.size) {
        ADD_FAILURE() << size << " bytes are freed while they are registered";
      }
    }
    munmap(block->second.real, block->second.size);
    munmap(memory, block->second.size);
    blocks_.erase(block);
  }
  /// Memory that must not be released until note_deregistered gets the same.
  void note_registered(const void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    registered_.emplace(static_cast<const std::byte*>(memory), bytes);
  }
  void note_deregistered(const void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = registered_.equal_range(static_cast<const std::byte*>(memory));
    const auto found =
        std::find_if(begin, end, [&](const auto& one) { return one.second == bytes; });
    if (found == end) {
      ADD_FAILURE() << bytes << " bytes are deregistered that are not registered";
    } else {
      registered_.erase(found);
    }
  }
  /// From now on allocate_staging fails.
  void refuse_staging() { refuses_staging_ = true; }
  void* allocate_staging(std::size_t bytes) override {
    if (refuses_staging_) return nullptr;
    auto memory = std::make_unique<std::byte[]>(std::max<std::size_t>(bytes, 1));
    const std::lock_guard lock(mutex_);
    std::byte* const at = memory.get();
    staging_[at] = {std::move(memory), bytes};
    return at;
  }
  void release_staging(void* memory) noexcept override {
    const std::lock_guard lock(mutex_);
    staging_.erase(static_cast<std::byte*>(memory));
  }

  std::unique_ptr<device::Queue> make_queue() override { return std::make_unique<Beside>(*this); }
  void copy(void* to, const void* from, std::size_t bytes) override { copy_on(0, to, from, bytes); }
  void reduce(DType type, device::Reduction reduction,
              std::span<const std::byte* const> contributions, std::byte* out,
              std::int64_t elements) override {
    reduce_on(0, type, reduction, contributions, out, elements);
  }
  void convert(DType to_type, std::byte* to, const std::byte* from,
               std::int64_t elements) override {
    convert_on(0, to_type, to, from, elements);
  }
  std::shared_ptr<device::Fence> fence() override { return fence_on(0); }
  void follow(device::Fence& fence) override { follow_on(0, fence); }
  void synchronize() override { synchronize_on(0); }
  void* native() override { return native_of(0); }

  /// How often the host has waited: in synchronize, in a copy from or to memory that is not staging
  /// memory, or in release. Queries of fences do not count.
  std::uint64_t waits() {
    const std::lock_guard lock(mutex_);
    return waits_;
  }
  std::unique_ptr<device::Timeline> make_timeline() override {
    return std::make_unique<Marks>(*this);
  }
  void trace_queues() override {
    const std::lock_guard lock(mutex_);
    traces_ = true;
  }
  std::vector<device::QueueSpan> read_queues() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(spans_, {});
  }
  void begin_span(const char* name) override { begin_span_on(0, name); }
  void end_span() override { end_span_on(0); }

  bool captures() const override { return true; }
  void begin_capture() override {
    const std::lock_guard lock(mutex_);
    TRIREME_ASSERT(!captures_, "a capture in a capture");
    captures_ = true;
    invalidated_by_.clear();
    capturer_ = std::this_thread::get_id();
  }
  std::unique_ptr<device::Graph> end_capture() override {
    const std::lock_guard lock(mutex_);
    captures_ = false;
    if (refuses_captures_) invalidated_by_ = "its refusal";
    if (!invalidated_by_.empty()) {
      captured_.clear();
      throw Error("simulated device: no capture, for {}", invalidated_by_);
    }
    return std::make_unique<Captured>(*this, std::exchange(captured_, {}));
  }
  /// From now on captures fail at their end.
  void refuse_captures() {
    const std::lock_guard lock(mutex_);
    refuses_captures_ = true;
  }
  /// Queues `task` behind the computation so far.
  void compute(std::function<void()> task) { push(0, {once(std::move(task)), nullptr, 0}); }
  /// Queues, on the queue with that `native`, a task that is called until it returns true. Other
  /// queues proceed meanwhile.
  void repeat(void* native, std::function<bool()> task) {
    std::size_t lane = 0;
    while (native_of(lane) != native) ++lane;
    push(lane, {std::move(task), nullptr, 0});
  }
  /// The worker's address of what the host knows as `memory`. Throws if it is not of this device.
  template <class T>
  T* real(T* memory) {
    const auto* at = reinterpret_cast<const std::byte*>(memory);
    const std::lock_guard lock(mutex_);
    std::byte* found = find(at);
    TRIREME_ASSERT(found != nullptr, "host memory given to the simulated device");
    return reinterpret_cast<T*>(found);
  }

 private:
  struct Block {
    std::byte* real = nullptr;
    std::size_t size = 0;
  };
  struct Staged {
    std::unique_ptr<std::byte[]> memory;
    std::size_t size = 0;
  };
  struct Task {
    std::function<bool()> run;             // true once done
    std::shared_ptr<std::uint64_t> after;  // a queue's count of tasks done
    std::uint64_t ticket = 0;              // that it must reach
  };
  struct Lane {
    std::deque<Task> tasks;
    std::uint64_t pushed = 0;
    std::shared_ptr<std::uint64_t> done = std::make_shared<std::uint64_t>(0);
    bool in_span = false;    // as of the last queued task
    device::QueueSpan span;  // in progress
  };
  class Ticket final : public device::Fence {
   public:
    Ticket(SimulatedDevice& device, std::shared_ptr<std::uint64_t> done, std::uint64_t number)
        : device_(device), done_(std::move(done)), number_(number) {}
    bool reached() override {
      device_.refuse_in_capture("a question");
      const std::lock_guard lock(device_.mutex_);
      return *done_ >= number_;
    }

   private:
    friend class SimulatedDevice;
    SimulatedDevice& device_;
    std::shared_ptr<std::uint64_t> done_;
    std::uint64_t number_;
  };
  class Captured final : public device::Graph {
   public:
    Captured(SimulatedDevice& device, std::deque<Task> tasks)
        : device_(device), tasks_(std::move(tasks)) {}
    void launch() override {
      for (const Task& task : tasks_) device_.push(0, task);
    }
    bool empty() const override { return tasks_.empty(); }

   private:
    SimulatedDevice& device_;
    std::deque<Task> tasks_;
  };
  class Marks final : public device::Timeline {
   public:
    explicit Marks(SimulatedDevice& device) : device_(device) {}
    void mark() override {
      auto& time = times_.emplace_back(std::make_shared<std::optional<Clock::time_point>>());
      device_.compute([time] { *time = Clock::now(); });
    }
    std::vector<Clock::time_point> read() override {
      std::vector<Clock::time_point> result;
      const std::lock_guard lock(device_.mutex_);
      for (const auto& time : times_) {
        TRIREME_ASSERT(time->has_value(), "a mark is read that was not waited for");
        result.push_back(**time);
      }
      times_.clear();
      return result;
    }

   private:
    SimulatedDevice& device_;
    std::vector<std::shared_ptr<std::optional<Clock::time_point>>> times_;
  };
  class Beside final : public device::Queue {
   public:
    explicit Beside(SimulatedDevice& device) : device_(device), lane_(device.add_lane()) {}
    ~Beside() override { device_.remove_lane(lane_); }
    void copy(void* to, const void* from, std::size_t bytes) override {
      device_.copy_on(lane_, to, from, bytes);
    }
    void reduce(DType type, device::Reduction reduction,
                std::span<const std::byte* const> contributions, std::byte* out,
                std::int64_t elements) override {
      device_.reduce_on(lane_, type, reduction, contributions, out, elements);
    }
    void convert(DType to_type, std::byte* to, const std::byte* from,
                 std::int64_t elements) override {
      device_.convert_on(lane_, to_type, to, from, elements);
    }
    std::shared_ptr<device::Fence> fence() override { return device_.fence_on(lane_); }
    void follow(device::Fence& fence) override { device_.follow_on(lane_, fence); }
    void synchronize() override { device_.synchronize_on(lane_); }
    void* native() override { return device_.native_of(lane_); }
    void begin_span(const char* name) override { device_.begin_span_on(lane_, name); }
    void end_span() override { device_.end_span_on(lane_); }

   private:
    SimulatedDevice& device_;
    std::size_t lane_;
  };

  static std::function<bool()> once(std::function<void()> task) {
    return [task = std::move(task)] {
      task();
      return true;
    };
  }
  static std::size_t pages(std::size_t bytes) { return (bytes / 4096 + 1) * 4096; }
  std::byte* find(const std::byte* at) {  // under mutex_
    auto block = blocks_.upper_bound(const_cast<std::byte*>(at));
    if (block == blocks_.begin()) return nullptr;
    --block;
    const auto offset = static_cast<std::size_t>(at - block->first);
    return offset < block->second.size ? block->second.real + offset : nullptr;
  }
  bool staged(const std::byte* at) {  // under mutex_
    auto block = staging_.upper_bound(const_cast<std::byte*>(at));
    if (block == staging_.begin()) return false;
    --block;
    return static_cast<std::size_t>(at - block->first) <
           std::max<std::size_t>(block->second.size, 1);
  }
  void* native_of(std::size_t lane) {
    const std::lock_guard lock(mutex_);
    return &lanes_.at(lane);
  }
  std::size_t add_lane() {
    const std::lock_guard lock(mutex_);
    if (!unused_lanes_.empty()) {
      const std::size_t lane = unused_lanes_.back();
      unused_lanes_.pop_back();
      return lane;
    }
    lanes_.emplace_back();
    return lanes_.size() - 1;
  }
  void remove_lane(std::size_t lane) {
    wait_for(lane);
    const std::lock_guard lock(mutex_);
    unused_lanes_.push_back(lane);
  }
  bool captures_here() const {  // under mutex_
    return captures_ && capturer_ == std::this_thread::get_id();
  }
  void refuse_in_capture(const char* what) {
    const std::lock_guard lock(mutex_);
    if (captures_here()) throw Error("simulated device: {} in a capture", what);
  }
  /// Work that another thread queues would become part of the capture.
  void refuse_beside_capture(std::size_t lane) {  // under mutex_
    if (lane == 0 && captures_ && !captures_here()) {
      throw Error("simulated device: another thread in a capture");
    }
  }
  void push(std::size_t lane, Task task) {
    {
      const std::lock_guard lock(mutex_);
      const bool keeps = captures_here();
      refuse_beside_capture(lane);
      if (keeps && lane != 0) throw Error("simulated device: another queue in a capture");
      (keeps ? captured_ : lanes_[lane].tasks).push_back(std::move(task));
      if (keeps) return;
      ++lanes_[lane].pushed;
      ++pending_;
    }
    changed_.notify_all();
  }
  void begin_span_on(std::size_t lane, const char* name) {
    {
      const std::lock_guard lock(mutex_);
      if (!traces_) return;
      lanes_[lane].in_span = true;
    }
    push(lane, {once([this, lane, name] {
                  const std::lock_guard lock(mutex_);
                  const auto now = device::Timeline::Clock::now();
                  lanes_[lane].span = {name, static_cast<int>(lane), now, now};
                }),
                nullptr, 0});
  }
  void end_span_on(std::size_t lane) {
    {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(lanes_[lane].in_span, false)) return;
    }
    push(lane, {once([this, lane] {
                  const std::lock_guard lock(mutex_);
                  lanes_[lane].span.end = device::Timeline::Clock::now();
                  spans_.push_back(lanes_[lane].span);
                }),
                nullptr, 0});
  }
  void copy_on(std::size_t lane, void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    auto* target = static_cast<std::byte*>(to);
    const auto* source = static_cast<const std::byte*>(from);
    bool waits = false, noted = false;
    std::shared_ptr<std::vector<std::byte>> kept;
    device::QueueSpan span;
    {
      const std::lock_guard lock(mutex_);
      if (captures_here() && (find(target) == nullptr || find(source) == nullptr)) {
        throw Error("simulated device: a copy from or to the host in a capture");
      }
      noted = traces_ && !lanes_[lane].in_span;
      span = {device::copy_name(find(target) == nullptr, find(source) == nullptr),
              static_cast<int>(lane),
              {},
              {}};
      if (std::byte* real = find(source)) {
        source = real;
      } else if (!staged(source)) {
        kept = std::make_shared<std::vector<std::byte>>(source, source + bytes);
        source = kept->data();
      }
      if (std::byte* real = find(target)) {
        target = real;
      } else {
        waits = !staged(target);
      }
    }
    push(lane, {once([=, this]() mutable {
                  span.begin = device::Timeline::Clock::now();
                  std::memcpy(target, source, bytes);
                  span.end = device::Timeline::Clock::now();
                  static_cast<void>(kept);
                  if (!noted) return;
                  const std::lock_guard lock(mutex_);
                  spans_.push_back(span);
                }),
                nullptr, 0});
    if (waits) wait_for(lane);
  }
  void reduce_on(std::size_t lane, DType type, device::Reduction reduction,
                 std::span<const std::byte* const> contributions, std::byte* out,
                 std::int64_t elements) {
    if (elements == 0) return;
    std::vector<const std::byte*> sources;
    for (const std::byte* each : contributions) sources.push_back(real(each));
    push(lane, {once([=, target = real(out)] {
                  device::reduce_tree(type, reduction, sources, target, elements);
                }),
                nullptr, 0});
  }
  void convert_on(std::size_t lane, DType to_type, std::byte* to, const std::byte* from,
                  std::int64_t elements) {
    if (elements == 0) return;
    push(lane, {once([=, target = real(to), source = real(from)] {
                  device::convert_elements(to_type, target, source, elements);
                }),
                nullptr, 0});
  }
  std::shared_ptr<device::Fence> fence_on(std::size_t lane) {
    refuse_in_capture("a fence");
    const std::lock_guard lock(mutex_);
    refuse_beside_capture(lane);
    return std::make_shared<Ticket>(*this, lanes_[lane].done, lanes_[lane].pushed);
  }
  void follow_on(std::size_t lane, device::Fence& fence) {
    refuse_in_capture("a wait for a fence");
    auto& ticket = dynamic_cast<Ticket&>(fence);
    push(lane, {{}, ticket.done_, ticket.number_});
  }
  void wait_for(std::size_t lane) {
    refuse_in_capture("a wait");
    std::unique_lock lock(mutex_);
    ++waits_;
    const std::uint64_t all = lanes_[lane].pushed;
    changed_.wait(lock, [&] { return *lanes_[lane].done >= all; });
  }
  void synchronize_on(std::size_t lane) {
    wait_for(lane);
    check();
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      std::vector<Lane*> ready;
      for (Lane& lane : lanes_) {
        if (lane.tasks.empty()) continue;
        const Task& next = lane.tasks.front();
        if (!next.after || *next.after >= next.ticket) ready.push_back(&lane);
      }
      if (ready.empty()) {
        if (stop_) return;
        changed_.wait(lock);
        continue;
      }
      Lane& lane = *ready[random_() % ready.size()];
      Task task = std::move(lane.tasks.front());
      lane.tasks.pop_front();
      const bool dawdles = random_() % 64 == 0;
      lock.unlock();
      if (dawdles) std::this_thread::sleep_for(std::chrono::microseconds(100));
      std::exception_ptr error;
      bool done = true;
      try {
        if (task.run) done = task.run();
      } catch (...) {
        error = std::current_exception();
      }
      if (!done) std::this_thread::sleep_for(std::chrono::microseconds(ready.size() == 1 ? 50 : 5));
      task.run = done ? nullptr : std::move(task.run);  // frees its captures before it counts
      lock.lock();
      if (!done) {
        lane.tasks.push_front(std::move(task));
        continue;
      }
      if (error && !error_) error_ = error;
      ++*lane.done;
      --pending_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::byte*, Block> blocks_;  // by host address
  std::map<std::byte*, Staged> staging_;
  std::multimap<const std::byte*, std::size_t> registered_;  // by communicators
  std::deque<Lane> lanes_{1};                                // the first is the computation's
  std::vector<std::size_t> unused_lanes_;
  std::uint64_t pending_ = 0;
  std::uint64_t waits_ = 0;
  std::string identity_;
  std::exception_ptr error_;
  std::mt19937 random_;
  bool stop_ = false, refuses_staging_ = false, traces_ = false;
  std::vector<device::QueueSpan> spans_;  // completed
  bool captures_ = false, refuses_captures_ = false;
  std::string invalidated_by_;  // the cause, if the capture fails
  std::thread::id capturer_;
  std::deque<Task> captured_;  // so far
  std::thread worker_;
};

}  // namespace trireme::testing_support
