#include "trireme/device/memory.hpp"

#include <iterator>

namespace trireme::device {

std::string_view name_of(Use use) {
  constexpr std::string_view names[] = {"parameters", "gradients",     "optimizer", "stash",
                                        "workspace",  "communication", "gathered",  "batch",
                                        "snapshot",   "offloaded"};
  const auto index = static_cast<std::size_t>(use);
  TRIREME_ASSERT(index < std::size(names), "memory use {}", index);
  return names[index];
}

void MemoryLedger::add(Use use, std::int64_t bytes) {
  const auto index = static_cast<std::size_t>(use);
  const std::int64_t now = held_[index].fetch_add(bytes) + bytes;
  TRIREME_ASSERT(now >= 0, "{} bytes held for {}", now, name_of(use));
  if (bytes > 0) ++times_added_[index];
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

std::uint64_t MemoryLedger::times_added(Use use) const {
  return times_added_[static_cast<std::size_t>(use)].load();
}

Buffer::Buffer(MemoryLedger& ledger, Use use, std::size_t bytes, Device& device)
    : Buffer(BufferRelease{&ledger, &device, use, false, bytes}) {}

void Buffer::grow(MemoryLedger& ledger, Use use, std::size_t bytes, Device& device) {
  if (bytes <= this->bytes()) return;
  *this = Buffer();
  *this = Buffer(ledger, use, aligned(bytes), device);
}

Buffer Buffer::staging(MemoryLedger& ledger, Use use, std::size_t bytes) {
  return Buffer(BufferRelease{&ledger, &ledger.device(), use, true, bytes});
}

Buffer::Buffer(const BufferRelease& release) : memory_(nullptr, release) {
  const auto& [ledger, device, use, staging, bytes] = release;
  // An empty buffer gives tensors that are present, too.
  const std::size_t taken = bytes > 0 ? bytes : 1;
  void* const memory = staging ? device->allocate_staging(taken) : device->allocate(taken);
  if (memory == nullptr) {
    const bool of_system = staging || device->is_host();
    throw Error("memory: {} bytes for {}: {} has not that much{}", bytes, name_of(use),
                of_system ? "the system" : device->name(),
                staging ? " that can be pinned; start fewer ranks on a node, or use a smaller batch"
                        : "; use a smaller model or batch");
  }
  memory_.reset(static_cast<std::byte*>(memory));
  ledger->add(use, static_cast<std::int64_t>(bytes));
}

void BufferRelease::operator()(std::byte* memory) const {
  staging ? device->release_staging(memory) : device->release(memory);
  ledger->add(use, -static_cast<std::int64_t>(bytes));
}

Tensor Buffer::view(DType type, const Shape& shape, std::size_t offset) const {
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(type);
  TRIREME_ASSERT(offset <= this->bytes() && bytes <= this->bytes() - offset,
                 "{} of {} at byte {} of a buffer of {}", shape.to_string(), trireme::name_of(type),
                 offset, this->bytes());
  TRIREME_ASSERT(offset % size_of(type) == 0, "byte {} for {}", offset, trireme::name_of(type));
  return {data() + offset, type, shape};
}

Readback::Readback(MemoryLedger& ledger, Use use, const Tensor& source)
    : device_(ledger.device()), source_(source), values_(source) {
  TRIREME_ASSERT(source.contiguous(), "a strided tensor {}", source.shape().to_string());
  if (device_.is_host()) return;
  staging_ = Buffer::staging(ledger, use, source.bytes());
  values_ = staging_.view(source.type(), source.shape());
}

void Readback::queue() {
  if (staging_.data() != nullptr) device_.copy(staging_.data(), source_.data(), source_.bytes());
}

}  // namespace trireme::device
