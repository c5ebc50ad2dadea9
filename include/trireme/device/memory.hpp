// Owned memory, and the ledger that knows what every byte of it is for.
#pragma once

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

/// Bytes that a rank holds now and at most, by use, and the device on which it computes.
/// Thread-safe.
class MemoryLedger {
 public:
  explicit MemoryLedger(Device& device = host_device()) : device_(device) {}
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;
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

}  // namespace trireme::device
