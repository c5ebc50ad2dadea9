// Where a rank computes: a kind of memory, and a queue of work on it. The host is the simplest one:
// its work is done before a call returns.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/interface.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme::device {

enum class Reduction { sum, max };

/// The one order in which contributions of several ranks are added: a balanced binary tree over
/// ranks, which over [lo, hi) splits at lo + the largest power of two below hi − lo. out[i] = the
/// reduction over r of contributions[r][i], i < elements: bf16 and fp16 in fp32, rounded once;
/// fp32, fp64 and int64 in their own type. A maximum is NaN if any contribution is. `out` may be
/// one of the contributions. In host memory; Queue::reduce gives the same bits (but for what a NaN
/// carries) in a device's.
void reduce_tree(DType type, Reduction reduction, std::span<const std::byte* const> contributions,
                 std::byte* out, std::int64_t elements);

/// What Queue::convert does, in host memory.
void convert_elements(DType to_type, std::byte* to, const std::byte* from, std::int64_t elements);

/// A point in a queue of a device's work.
class Fence : public Interface {
 public:
  /// Whether the work before it is done. Any thread may ask.
  virtual bool reached() = 0;
};

/// Work on a device, done in order and perhaps later. One thread at a time uses it.
class Queue : public Interface {
 public:
  /// Queues a copy between any two of device and host memory. Staging memory has been read, or
  /// written, once a later fence is reached; other host memory when the call returns.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  /// Queues what reduce_tree does, on the device's memory; the list is read before it returns.
  virtual void reduce(DType type, Reduction reduction,
                      std::span<const std::byte* const> contributions, std::byte* out,
                      std::int64_t elements) = 0;
  /// Queues a conversion of `elements` fp32 numbers at `from` to bf16 at `to`, rounded to nearest
  /// even, or of bf16 to fp32, on the device's memory; the two do not overlap.
  virtual void convert(DType to_type, std::byte* to, const std::byte* from,
                       std::int64_t elements) = 0;
  /// All work queued so far; null where it is done.
  virtual std::shared_ptr<Fence> fence() = 0;
  /// Work queued from now on is done after `fence`; the host does not wait.
  virtual void follow(Fence& fence) = 0;
  /// Waits for all work queued so far. Throws Error where some of it failed.
  virtual void synchronize() = 0;
  /// Whether work is done when the call that queues it returns.
  virtual bool immediate() const { return false; }
  /// The library's own handle of the queue: a cudaStream_t. Null where there is none.
  virtual void* native() { return nullptr; }
  /// What is queued between the two is one span of the trace (Device::trace_queues); spans do not
  /// nest. `name` is a string literal.
  virtual void begin_span(const char* name) { static_cast<void>(name); }
  virtual void end_span() {}
};

/// Marks in a device's queue of computation. One thread uses it.
class Timeline : public Interface {
 public:
  using Clock = std::chrono::steady_clock;
  /// Has the device note when all work queued so far is done; the host does not wait.
  virtual void mark() = 0;
  /// When each mark since the last call was reached, by the host's clock. Call it at once after a
  /// wait for all of them: a device that has a clock of its own takes the last one to be now.
  virtual std::vector<Clock::time_point> read() = 0;
};

/// Work in one of a device's queues.
struct QueueSpan {
  const char* name = "";  // a string literal
  int queue = 0;          // 0: of computation; others in the order in which they were made
  Timeline::Clock::time_point begin, end;
};

/// The names of copies' spans, by whether the host's memory is on either side.
constexpr const char* copy_name(bool to_host, bool from_host) {
  return to_host ? (from_host ? "copy in host memory" : "copy to host")
                 : (from_host ? "copy to device" : "copy in device memory");
}

/// Computation as it was captured: the same operations on the same addresses, which must still be
/// those of live memory where it is launched. Used by the thread that uses the device.
class Graph : public Interface {
 public:
  /// Queues all of it behind the computation so far.
  virtual void launch() = 0;
  /// Whether nothing was captured.
  virtual bool empty() const = 0;
};

/// A device as one rank uses it, and as a queue that of its computation.
class Device : public Queue {
 public:
  virtual std::string name() const = 0;  // "cpu", "cuda:0 (NVIDIA H200)"
  /// Whether the host reads and writes its memory like any other.
  virtual bool is_host() const = 0;
  /// Unique among the devices of the job (a GPU's UUID). Empty: unknown, or the host.
  virtual std::string identity() const { return {}; }

  // These may be called from any thread.
  /// `bytes` of zeroed memory, aligned to 64 bytes at least; null where there is not so much.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Waits for queued work first, since it may use the memory.
  virtual void release(void* memory) noexcept = 0;
  /// The same of host memory from and to which copies are queued without waiting (pinned).
  virtual void* allocate_staging(std::size_t bytes) = 0;
  virtual void release_staging(void* memory) noexcept = 0;
  /// Another queue, for work that runs beside computation.
  virtual std::unique_ptr<Queue> make_queue() = 0;
  /// Called by each thread, other than the one that made the device, before it uses the device.
  virtual void enter_thread() {}

  /// Reports a failure of its work that it cannot detect (a communicator was aborted, so data did
  /// not arrive): from now on `check` throws the first such error, and so do synchronize, read, and
  /// waits for events of queued work. Any thread may call both.
  void fail(std::exception_ptr error);
  void check() const;

  // Traces, of a device that keeps time of its work
  /// The device must outlive it. Throws Error for a device that keeps no time.
  virtual std::unique_ptr<Timeline> make_timeline();
  /// From now on every queue's copies are noted, each a span, but for those inside a span.
  virtual void trace_queues() {}
  /// Spans that have ended since the last call, by the host's clock. To be called at once after a
  /// wait for computation, as Timeline::read; work of other queues that is not done comes later.
  virtual std::vector<QueueSpan> read_queues() { return {}; }

  // Graphs, of a device that captures computation and repeats it at the cost of one launch. Used by
  // the thread that uses the device; others may use its other queues meanwhile.
  virtual bool captures() const { return false; }
  /// From now on what is queued for computation is kept, and not done. Until the end this thread
  /// must not wait, take fences, follow any, copy from or to the host, or ask for memory: some of
  /// it throws Error at once, the rest lets end_capture throw.
  virtual void begin_capture();
  /// Ends the capture: what was queued since. Throws Error where that cannot be had.
  virtual std::unique_ptr<Graph> end_capture();

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
/// Waits for all computation queued so far. Throws Error where some of it failed.
void wait_for(Device& device);

}  // namespace trireme::device
