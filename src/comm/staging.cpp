#include "staging.hpp"

#include <algorithm>
#include <bit>
#include <thread>
#include <utility>

#include "trireme/core/error.hpp"

namespace trireme::comm {

namespace {

/// An operation of the host between copies from and to the device.
class StagedOperation final : public device::Operation {
 public:
  StagedOperation(std::unique_ptr<device::Operation> inner, device::Queue& queue,
                  std::vector<LocalCopy> in, std::vector<LocalCopy> out,
                  std::shared_ptr<StagingPool> pool, std::vector<std::byte*> blocks)
      : inner_(std::move(inner)),
        queue_(queue),
        in_(std::move(in)),
        out_(std::move(out)),
        pool_(std::move(pool)),
        blocks_(std::move(blocks)) {}
  ~StagedOperation() override {
    inner_.reset();
    finish_copies();
    for (std::byte* block : blocks_) pool_->give_back(block);
  }

  void start() override { run(in_); }
  bool test() override {
    if (phase_ == Phase::in) {
      if (fence_ && !fence_->reached()) return false;
      inner_->start();
      phase_ = Phase::inner;
    }
    if (phase_ == Phase::inner) {
      if (!inner_->test()) return false;
      run(out_);
      phase_ = Phase::out;
    }
    return !fence_ || fence_->reached();
  }
  std::uint64_t steps() const override {
    return inner_->steps() + static_cast<std::uint64_t>(phase_);
  }

 private:
  enum class Phase : std::uint8_t { in, inner, out };
  /// Where the operation was dropped, the device may still be copying; it waits for nobody.
  void finish_copies() noexcept {
    try {
      while (fence_ && !fence_->reached()) std::this_thread::yield();
    } catch (...) {  // NOLINT(bugprone-empty-catch): a device that has failed copies no more
    }
  }
  void run(const std::vector<LocalCopy>& copies) {
    for (const LocalCopy& copy : copies) copy.run(queue_);
    fence_ = queue_.fence();
  }
  std::unique_ptr<device::Operation> inner_;
  device::Queue& queue_;
  std::vector<LocalCopy> in_, out_;
  std::shared_ptr<StagingPool> pool_;
  std::vector<std::byte*> blocks_;
  std::shared_ptr<device::Fence> fence_;
  Phase phase_ = Phase::in;
};

}  // namespace

StagingPool::~StagingPool() {
  for (const auto& [block, bytes] : sizes_) {
    ledger_.device().release_staging(block);
    ledger_.add(device::Use::communication, -static_cast<std::int64_t>(bytes));
  }
}

std::byte* StagingPool::take(std::size_t bytes) {
  // Powers of two, so that blocks fit what comes later.
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
  const std::lock_guard lock(mutex_);
  if (const auto found = free_.find(size); found != free_.end()) {
    std::byte* const block = found->second;
    free_.erase(found);
    return block;
  }
  auto* const block = static_cast<std::byte*>(ledger_.device().allocate_staging(size));
  if (block == nullptr) {
    throw Error("memory: {} bytes to stage a message: the system has not that much", size);
  }
  sizes_.emplace(block, size);
  ledger_.add(device::Use::communication, static_cast<std::int64_t>(size));
  return block;
}

void StagingPool::give_back(std::byte* block) {
  const std::lock_guard lock(mutex_);
  free_.emplace(sizes_.at(block), block);
}

Staging::~Staging() {
  for (std::byte* block : blocks_) pool_->give_back(block);
}

Tensor Staging::room(const Tensor& tensor) {
  if (direct_) return tensor;
  blocks_.push_back(pool_->take(tensor.bytes()));
  return {blocks_.back(), tensor.type(), tensor.shape()};
}

Tensor Staging::bring(const Tensor& tensor) {
  const Tensor staged = room(tensor);
  if (!direct_) in_.push_back({bytes_of(staged), bytes_of(tensor), tensor.bytes()});
  return staged;
}

Tensor Staging::room_for(const Tensor& tensor) {
  const Tensor staged = room(tensor);
  take_away(tensor, staged);
  return staged;
}

void Staging::take_away(const Tensor& to, const Tensor& staged) {
  if (!direct_) out_.push_back({bytes_of(to), bytes_of(staged), to.bytes()});
}

device::Event Staging::enqueue(std::unique_ptr<device::Operation> operation) {
  if (direct_) return stream_.enqueue(std::move(operation));
  return stream_.enqueue(std::make_unique<StagedOperation>(
      std::move(operation), stream_.queue(), std::exchange(in_, {}), std::exchange(out_, {}), pool_,
      std::exchange(blocks_, {})));
}

}  // namespace trireme::comm
