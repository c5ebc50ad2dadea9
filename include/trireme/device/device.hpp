// Where a rank computes: a kind of memory, and a queue of work on it. The host is the simplest one:
// its work is done before a call returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "trireme/core/tensor.hpp"
#include "trireme/device/reduce_tree.hpp"

namespace trireme::device {

/// A point in a queue of a device's work.
class Fence {
 public:
  Fence() = default;
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;
  virtual ~Fence() = default;
  /// Whether the work before it is done. Any thread may ask.
  virtual bool reached() = 0;
};

/// Work on a device, done in order and perhaps later. One thread at a time uses it.
class Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;
  /// Queues a copy between any two of device and host memory. Host memory that is not staging
  /// memory has been read, or written, when the call returns; staging memory once a later fence is
  /// reached.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  /// Queues what reduce_tree does, on memory of the device; the list of contributions has been read
  /// when the call returns.
  virtual void reduce(DType type, Reduction reduction,
                      std::span<const std::byte* const> contributions, std::byte* out,
                      std::int64_t elements) = 0;
  /// All work queued so far; null where it is done.
  virtual std::shared_ptr<Fence> fence() = 0;
  /// Work queued from now on is done after `fence`; the host does not wait.
  virtual void follow(Fence& fence) = 0;
  /// Waits for all work queued so far. Throws Error where some of it failed.
  virtual void synchronize() = 0;
  /// The library's own handle of the queue: a cudaStream_t. Null where there is none.
  virtual void* native() { return nullptr; }
};

/// A device as one rank uses it, and as a queue that of its computation.
class Device : public Queue {
 public:
  virtual std::string name() const = 0;  // "cpu", "cuda:0 (NVIDIA H200)"
  /// Whether the host reads and writes its memory like any other.
  virtual bool is_host() const = 0;
  /// Unique among the devices of the job, whatever number processes see it by (a GPU's UUID).
  /// Empty: unknown, or the host.
  virtual std::string identity() const { return {}; }

  // These may be called from any thread.
  /// `bytes` of zeroed memory, aligned to 64 bytes at least; null where there is not so much.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Waits for queued work first, since it may use the memory.
  virtual void release(void* memory) noexcept = 0;
  /// The same of host memory from and to which copies are queued without waiting (pinned).
  virtual void* allocate_staging(std::size_t bytes) = 0;
  virtual void release_staging(void* memory) noexcept = 0;
  /// Another queue, for work that goes on beside computation.
  virtual std::unique_ptr<Queue> make_queue() = 0;
  /// Called by each thread, other than the one that made the device, before it uses the device.
  virtual void enter_thread() {}

  /// Reports a failure of its work that it cannot detect (a communicator was aborted, so data did
  /// not arrive): from now on `check` throws the first such error, and so do synchronize, read, and
  /// waits for events of queued work. Any thread may call both.
  void fail(std::exception_ptr error);
  void check() const;

 private:
  mutable std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

/// The machine's memory and processors.
Device& host_device();

/// Copies `tensor`, contiguous, into host memory and waits for it.
void read(Device& device, void* to, const Tensor& tensor);
/// Queues a copy of host memory into `tensor`, contiguous; `from` may be used again at once.
void write(Device& device, const Tensor& tensor, const void* from);

}  // namespace trireme::device
