// An optimizer whose state is in host memory while a device computes. Gradients are copied to the
// host as they become final, the CPU updates fp32 masters and moments, and what units read is
// copied back. Ren et al., "ZeRO-Offload" (2021).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::state {

/// Copies of gradients overlap with computation, on a queue of their own. The update takes the
/// groups in the order of their copies, `chunk` elements at a time: while the CPU updates one
/// chunk, the one before is copied back. Its bits do not depend on `chunk`, and equal those of an
/// update on the device where both have the same operations.
class Offload {
 public:
  /// `state`, which is offloaded, and `ledger` must outlive it; `threads` of the CPU update.
  /// `indexed`: see update_ranges.
  Offload(const ModelState& state, int threads, std::int64_t chunk, device::MemoryLedger& ledger,
          bool indexed = false);
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;
  ~Offload();

  /// Before anything is written into gradients: computation from now on comes after their copies.
  void begin_step();
  /// Starts to copy a group's own gradient, which is final once computation and `stream` have done
  /// what they were given. The event is done when the copy is queued.
  device::Event take(int group, device::Stream& stream);
  /// Copies all own gradients a second time, after computation has changed them; their events are
  /// done.
  void retake();
  /// Optimizer::update of all own ranges, of whose groups each was taken since begin_step and whose
  /// event is done. Waits for copies of gradients, not for those of the results: computation
  /// that is queued from now on comes after them.
  void update(optim::Optimizer& optimizer, double learning_rate, std::int64_t step,
              double gradient_scale);
  /// Derives what units read from own masters that something other than an update has written, as
  /// Optimizer::round.
  void refresh(const optim::Optimizer& optimizer, std::int64_t updates);

  /// Bytes of staging memory: own gradients in fp32, and two chunks of results.
  static std::int64_t bytes(const ShardMap& shards, const StateOptions& options,
                            std::int64_t chunk);

 private:
  struct Chunk {                             // neighboring elements of one group's share
    Tensor values;                           // [n], what units read, on the device
    std::vector<optim::UpdateRange> ranges;  // of all of them; `rounded` is absent
  };
  struct Slot {
    Tensor values;  // [most elements of a chunk], staging memory
    std::shared_ptr<device::Fence> sent;
  };
  void wait_for(const std::shared_ptr<device::Fence>& fence);
  /// Copies back what `fill` writes of a chunk into a slot, which the ranges refer to.
  using Fill = std::function<void(std::span<const optim::UpdateRange> ranges)>;
  void send(const Chunk& chunk, const Fill& fill);

  const ModelState& state_;
  device::Device& device_;
  std::unique_ptr<ops::Ops> cpu_;
  device::Buffer gradient_buffer_, slot_buffer_;
  std::vector<Tensor> gradients_;           // by group: the host's copy of its own gradient
  std::vector<std::vector<Chunk>> chunks_;  // by group
  std::array<Slot, 2> slots_;
  std::size_t next_slot_ = 0;
  std::vector<int> taken_;                                // groups, in their order
  std::vector<std::shared_ptr<device::Fence>> arrivals_;  // by group; null: it has arrived
  std::unique_ptr<device::Queue> copies_;                 // ends first: it waits for its work
};

}  // namespace trireme::state
