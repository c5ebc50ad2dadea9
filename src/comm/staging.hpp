// Operations of the host on tensors of a device: they work on copies in host memory.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"

#include "local.hpp"
#include "operations.hpp"

namespace trireme::comm {

/// Blocks of a device's staging memory that operations take and give back. It grows to what is in
/// use at once and is entered in the ledger as communication. Thread-safe.
class StagingPool {
 public:
  explicit StagingPool(device::MemoryLedger& ledger) : ledger_(ledger) {}
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;
  ~StagingPool();
  /// `bytes` of staging memory of the ledger's device. Throws Error where there is not so much.
  std::byte* take(std::size_t bytes);
  void give_back(std::byte* block);

 private:
  device::MemoryLedger& ledger_;
  std::mutex mutex_;
  std::multimap<std::size_t, std::byte*> free_;  // by size
  std::map<std::byte*, std::size_t> sizes_;      // of all blocks
};

/// The tensors of one operation, staged. Where the stream's device is the host, or MPI reads the
/// device's memory itself (`direct`), they are staged as themselves.
class Staging {
 public:
  Staging(const std::shared_ptr<StagingPool>& pool, device::Stream& stream, bool direct)
      : pool_(pool), stream_(stream), direct_(direct || stream.device().is_host()) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();
  /// Where the staged tensors are.
  Place place() const {
    if (direct_) return {stream_.device(), stream_.queue()};
    return {device::host_device(), device::host_device()};
  }
  /// `tensor` in host memory, contiguous, with its values when the operation begins.
  Tensor bring(const Tensor& tensor);
  /// Host memory for `tensor`, which gets what is there when the operation has ended.
  Tensor room_for(const Tensor& tensor);
  /// After the operation, `staged` is copied to `to`.
  void take_away(const Tensor& to, const Tensor& staged);
  /// Enqueues the operation, on the staged tensors, between its copies.
  device::Event enqueue(std::unique_ptr<device::Operation> operation);

 private:
  Tensor room(const Tensor& tensor);
  std::shared_ptr<StagingPool> pool_;
  device::Stream& stream_;
  bool direct_;
  std::vector<std::byte*> blocks_;
  std::vector<LocalCopy> in_, out_;
};

}  // namespace trireme::comm
