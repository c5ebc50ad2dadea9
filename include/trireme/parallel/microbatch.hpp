// Loaded batches as tensors for the units.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/model/unit.hpp"

namespace trireme::parallel {

/// Part `number` of `count` equal ones of a micro-batch.
model::Microbatch part_of(const model::Microbatch& batch, int number, int count);

/// A batch; its views are tensors in host memory. Copies share it.
class HostMicrobatch {
 public:
  explicit HostMicrobatch(data::Batch batch);
  /// The pairs of chunks of each sequence that `part` says, one after the other as sequences.
  HostMicrobatch cut(const model::ContextPart& part) const;
  const model::Microbatch& view() const { return view_; }
  double weight(int leaf = 0, int count = 1) const;  // Σ weights of a leaf

 private:
  struct Contents {
    data::Batch batch;
    std::vector<std::int64_t> rows{};
    bool all_counted = false;       // every weight is 1
    std::int64_t whole_length = 0;  // of the sequences, where they were cut
    std::vector<std::int32_t> key_positions{}, key_documents{};
  };
  explicit HostMicrobatch(std::shared_ptr<Contents> contents);
  std::shared_ptr<Contents> contents_;
  model::Microbatch view_;
};

/// `count` copies of a micro-batch of `sequences` of `length` tokens, all zero and counted, in one
/// document each, with their numbers (`documents`) or without.
std::vector<HostMicrobatch> blank_batches(int count, std::int64_t sequences, std::int64_t length,
                                          bool documents);

/// The micro-batches of a step in the device's memory: the host's own views, or copies of them.
/// Those of one shape have the same addresses in every step.
class DeviceBatches {
 public:
  /// Memory for `count` micro-batches of `sequences` of `length` tokens, with documents or without;
  /// none where the device is the host. `part`: of the sequences. `planned`: nobody reads what is
  /// taken.
  DeviceBatches(int count, std::int64_t sequences, std::int64_t length,
                const model::ContextPart& part, device::MemoryLedger& ledger, bool planned = false);
  DeviceBatches(const DeviceBatches&) = delete;
  DeviceBatches& operator=(const DeviceBatches&) = delete;
  /// Queues copies. The device must have finished with what was taken before. `factor`: see
  /// UnitContext::gradient_factor.
  void take(std::span<const HostMicrobatch> batches, double factor = 0);
  void take(const HostMicrobatch& batch) { take({&batch, 1}); }
  /// Refers to one that is in the device's memory already.
  void use(const model::Microbatch& batch) { views_ = {batch}; }
  const Tensor& factor() const { return factor_; }  // f32 [1] in the device's memory
  const model::Microbatch& operator[](int index) const {
    return views_[static_cast<std::size_t>(index)];
  }
  /// Bytes on a device that is not the host, and as much again of staging memory.
  static std::size_t bytes(int count, std::int64_t sequences, std::int64_t length,
                           const model::ContextPart& part);

 private:
  device::Device& device_;
  bool planned_;
  std::size_t batch_bytes_ = 0;      // of one micro-batch
  device::Buffer buffer_, staging_;  // the factor, then the micro-batches
  float host_factor_ = 0;
  Tensor factor_;
  std::vector<model::Microbatch> views_;
};

}  // namespace trireme::parallel
