#include "trireme/device/memory.hpp"

#include <iterator>
#include <utility>

namespace trireme::device {

std::string_view name_of(Use use) {
  constexpr std::string_view names[] = {"parameters", "gradients", "optimizer",
                                        "stash",      "workspace", "communication",
                                        "gathered",   "batch",     "snapshot"};
  const auto index = static_cast<std::size_t>(use);
  TRIREME_ASSERT(index < std::size(names), "memory use {}", index);
  return names[index];
}

void MemoryLedger::add(Use use, std::int64_t bytes) {
  const auto index = static_cast<std::size_t>(use);
  const std::int64_t now = held_[index].fetch_add(bytes) + bytes;
  TRIREME_ASSERT(now >= 0, "{} bytes held for {}", now, name_of(use));
  std::int64_t peak = peak_[index].load();
  while (peak < now && !peak_[index].compare_exchange_weak(peak, now)) {
  }
}

std::int64_t MemoryLedger::held(Use use) const {
  return held_[static_cast<std::size_t>(use)].load();
}

std::int64_t MemoryLedger::peak(Use use) const {
  return peak_[static_cast<std::size_t>(use)].load();
}

Buffer::Buffer(MemoryLedger& ledger, Use use, std::size_t bytes, Device& device)
    : ledger_(&ledger), device_(&device), use_(use), bytes_(bytes) {
  // An empty buffer gives tensors that are present, too.
  data_ = static_cast<std::byte*>(device.allocate(bytes > 0 ? bytes : 1));
  if (data_ == nullptr) {
    throw Error("memory: {} bytes for {}: {} has not that much; use a smaller model or batch",
                bytes, name_of(use), device.is_host() ? "the system" : device.name());
  }
  ledger.add(use, static_cast<std::int64_t>(bytes));
}

Buffer::Buffer(Buffer&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)),
      device_(other.device_),
      use_(other.use_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer moved(std::move(other));
  std::swap(ledger_, moved.ledger_);
  std::swap(device_, moved.device_);
  std::swap(use_, moved.use_);
  std::swap(data_, moved.data_);
  std::swap(bytes_, moved.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  device_->release(data_);
  ledger_->add(use_, -static_cast<std::int64_t>(bytes_));
}

Tensor Buffer::view(DType type, const Shape& shape, std::size_t offset) const {
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(type);
  TRIREME_ASSERT(offset <= bytes_ && bytes <= bytes_ - offset,
                 "{} of {} at byte {} of a buffer of {}", shape.to_string(), trireme::name_of(type),
                 offset, bytes_);
  TRIREME_ASSERT(offset % size_of(type) == 0, "byte {} for {}", offset, trireme::name_of(type));
  return {data_ + offset, type, shape};
}

}  // namespace trireme::device
