// Owned memory, and the ledger of what every byte of it is for.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "trireme/core/tensor.hpp"
#include "trireme/device/device.hpp"

namespace trireme::device {

/// The purpose of memory; one line each in a run's memory table.
enum class Use : std::uint8_t {
  parameters,
  gradients,
  optimizer,
  stash,
  workspace,
  communication,
  gathered,  // whole parameters and gradients of units whose state is sharded
  batch,
  snapshot,   // the copy that a background save writes
  offloaded,  // optimizer state and what its update on the host needs
  count
};
std::string_view name_of(Use use);
/// Whether it is the host's memory wherever a run computes.
constexpr bool in_host_memory(Use use) { return use == Use::snapshot || use == Use::offloaded; }

/// Bytes that a rank holds now and at most, by use, and the device it computes on. Thread-safe.
class MemoryLedger {
 public:
  explicit MemoryLedger(Device& device = host_device()) : device_(device) {}
  Device& device() const { return device_; }
  void add(Use use, std::int64_t bytes);  // negative to release
  std::int64_t held(Use use) const;
  std::int64_t peak(Use use) const;
  /// How often memory was added for a use: while it stays the same no address of it has changed.
  std::uint64_t times_added(Use use) const;

 private:
  Device& device_;
  std::array<std::atomic<std::int64_t>, static_cast<std::size_t>(Use::count)> held_{}, peak_{};
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(Use::count)> times_added_{};
};

/// What a Buffer does at its end, and with what.
struct BufferRelease {
  MemoryLedger* ledger = nullptr;
  Device* device = nullptr;
  Use use = Use::workspace;
  bool staging = false;
  std::size_t bytes = 0;
  void operator()(std::byte* memory) const;
};

/// Owned, 64-byte aligned, zeroed memory, entered in a ledger. Move-only.
class Buffer {
 public:
  Buffer() = default;
  /// Memory of the ledger's device, or of another one.
  Buffer(MemoryLedger& ledger, Use use, std::size_t bytes)
      : Buffer(ledger, use, bytes, ledger.device()) {}
  Buffer(MemoryLedger& ledger, Use use, std::size_t bytes, Device& device);
  /// Staging memory of the ledger's device; nothing queued may use it when it is released.
  static Buffer staging(MemoryLedger& ledger, Use use, std::size_t bytes);
  /// Makes it memory of at least `bytes`. It releases what it has first, so as never to hold both.
  void grow(MemoryLedger& ledger, Use use, std::size_t bytes, Device& device);
  std::byte* data() const { return memory_.get(); }
  std::size_t bytes() const { return memory_ ? memory_.get_deleter().bytes : 0; }
  /// View of `shape` elements of `type` from byte `offset` on.
  Tensor view(DType type, const Shape& shape, std::size_t offset = 0) const;

 private:
  explicit Buffer(const BufferRelease& release);
  std::unique_ptr<std::byte, BufferRelease> memory_;
};

/// Of parts of a planned buffer, in bytes: a cache line.
constexpr std::size_t alignment = 64;
/// Bytes that `bytes` take there.
constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Planned memory: the owner hands out parts at offsets that were fixed before training;
/// `high_water` is the end of the farthest part that was handed out, to be compared with the plan.
class Arena {
 public:
  Arena() = default;
  Arena(MemoryLedger& ledger, Use use, std::size_t bytes)
      : buffer_(ledger, use, bytes),
        memory_(buffer_.view(DType::u8, {static_cast<std::int64_t>(bytes)})) {}
  /// In memory that something else owns, contiguous.
  explicit Arena(const Tensor& memory) : memory_(memory) {}
  Tensor view(DType type, const Shape& shape, std::size_t offset) {
    const Tensor part(static_cast<std::byte*>(memory_.data()) + offset, type, shape);
    TRIREME_ASSERT(
        offset <= bytes() && part.bytes() <= bytes() - offset && offset % size_of(type) == 0,
        "{} of {} at byte {} of {}", shape.to_string(), name_of(type), offset, bytes());
    high_water_ = std::max(high_water_, offset + aligned(part.bytes()));
    return part;
  }
  std::size_t bytes() const { return memory_ ? memory_.bytes() : 0; }
  std::size_t high_water() const { return high_water_; }

 private:
  Buffer buffer_;
  Tensor memory_;
  std::size_t high_water_ = 0;
};

/// A device's tensor in host memory, which the host reads repeatedly with one wait for many: a copy
/// in staging memory that is allocated once, or the tensor itself where the device is the host.
class Readback {
 public:
  /// `source`, contiguous and in memory of the ledger's device, and `ledger` outlive this; staging
  /// memory is entered there for `use`. Throws Error where there is none.
  Readback(MemoryLedger& ledger, Use use, const Tensor& source);
  /// Queues the copy behind the computation so far.
  void queue();
  /// As they were then, once the device's work has been waited for. Writing them leaves the source
  /// as it is only where the device is not the host.
  const Tensor& values() const { return values_; }

 private:
  Device& device_;
  Tensor source_, values_;
  Buffer staging_;
};

}  // namespace trireme::device
