#include "trireme/device/device.hpp"

#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include <sys/mman.h>

#include "trireme/core/error.hpp"

namespace trireme::device {

namespace {

/// The host's work is done before a call returns.
template <class Base>
class Immediate : public Base {
 public:
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memmove(to, from, bytes);
  }
  void reduce(DType type, Reduction reduction, std::span<const std::byte* const> contributions,
              std::byte* out, std::int64_t elements) override {
    reduce_tree(type, reduction, contributions, out, elements);
  }
  void convert(DType to_type, std::byte* to, const std::byte* from,
               std::int64_t elements) override {
    convert_elements(to_type, to, from, elements);
  }
  std::shared_ptr<Fence> fence() override { return nullptr; }
  void follow(Fence& fence) override {
    while (!fence.reached()) std::this_thread::yield();
  }
  void synchronize() override {}
  bool immediate() const override { return true; }
};

class HostTimeline final : public Timeline {
 public:
  void mark() override { marks_.push_back(Clock::now()); }
  std::vector<Clock::time_point> read() override { return std::exchange(marks_, {}); }

 private:
  std::vector<Clock::time_point> marks_;
};

class HostDevice final : public Immediate<Device> {
 public:
  std::string name() const override { return "cpu"; }
  bool is_host() const override { return true; }

  void* allocate(std::size_t bytes) override {
    constexpr std::size_t line = 64, large_page = std::size_t{2} << 20;
    const std::size_t lines = bytes / line + 1;  // at least one, so that no memory is null
    if (lines > std::size_t(-1) / line) return nullptr;
    const std::size_t size = lines * line;
    const bool large = size >= 2 * large_page;
    void* memory = nullptr;
    if (posix_memalign(&memory, large ? large_page : line, size) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
    // Whole large pages: fewer faults now, fewer misses of addresses in every step. Where the
    // system has none to give it continues with small ones.
    if (large) ::madvise(memory, size / large_page * large_page, MADV_HUGEPAGE);
#endif
    std::memset(memory, 0, size);
    return memory;
  }
  void release(void* memory) noexcept override { std::free(memory); }
  void* allocate_staging(std::size_t bytes) override { return allocate(bytes); }
  void release_staging(void* memory) noexcept override { release(memory); }
  std::unique_ptr<Queue> make_queue() override { return std::make_unique<Immediate<Queue>>(); }
  std::unique_ptr<Timeline> make_timeline() override { return std::make_unique<HostTimeline>(); }
};

}  // namespace

void Device::fail(std::exception_ptr error) {
  const std::lock_guard lock(failure_mutex_);
  if (!failure_) failure_ = std::move(error);
}

void Device::check() const {
  const std::lock_guard lock(failure_mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

std::unique_ptr<Timeline> Device::make_timeline() {
  throw Error("train.trace: device {} keeps no time of its work; leave tracing off", name());
}

void Device::begin_capture() { throw Error("device {}: captures no graphs", name()); }
std::unique_ptr<Graph> Device::end_capture() {
  throw Error("device {}: captures no graphs", name());
}

Device& host_device() {
  static HostDevice device;  // of which nothing fails later
  return device;
}

void read(Device& device, void* to, const Tensor& tensor) {
  TRIREME_ASSERT(tensor.contiguous(), "a strided tensor {}", tensor.shape().to_string());
  device.copy(to, tensor.data(), tensor.bytes());
  device.synchronize();
  device.check();
}

void write(Device& device, const Tensor& tensor, const void* from) {
  TRIREME_ASSERT(tensor.contiguous(), "a strided tensor {}", tensor.shape().to_string());
  device.copy(tensor.data(), from, tensor.bytes());
}

void wait_for(Device& device) {
  device.synchronize();
  device.check();
}

}  // namespace trireme::device
