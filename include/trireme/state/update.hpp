// From a rank's gradients to the update: joins separate sums, computes the norm, and lists the
// ranges that are updated.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/model/unit.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::state {

/// Gradients with separate summands along the tensor axis: rows that are not split, summed per tile
/// of the leaf's rows (reproducible mode) or per rank's rows (sequence parallelism); and key/value
/// heads that several tiles hold.
class TensorSums {
 public:
  /// Holds nothing where the state is not trained.
  TensorSums(const ModelState& state, device::MemoryLedger& ledger);
  /// Adds up the summands of `group` in set `set`, with the same bits on every rank that holds it.
  /// Collective over the tensor and the key/value group. In reproducible mode the bits do not
  /// depend on its size. A tied weight's second sum is added too.
  void join(int group, int set, ops::Ops& ops, const model::TensorGroup& tensor) const;
  /// Bytes of the buffer through which values pass.
  static std::int64_t bytes(const params::Layout& layout, const model::Shares& shares);
  /// Elements that are summed: of rows that are not split, over the tensor group, and of shared
  /// heads, over the key/value group.
  struct Messages {
    std::int64_t rows = 0, heads = 0;
  };
  static Messages messages_of(const params::Layout& layout, const params::Group& group,
                              const model::Shares& shares);
  /// The most of any group.
  static Messages largest_messages(const params::Layout& layout, const model::Shares& shares);

 private:
  struct Piece {
    int tile = 0;             // local
    std::int64_t offset = 0;  // in the group
    std::int64_t packed = 0;
    std::int64_t elements = 0;
  };
  struct Pack {
    std::vector<Piece> pieces;
    std::int64_t elements = 0;
  };
  struct Packs {
    Pack rows, heads;
  };
  static Packs plan(const params::Layout& layout, const params::Group& group,
                    const model::Shares& shares);
  void sum(const Pack& pack, const Tensor& whole, ops::Ops& ops, comm::Communicator& ranks,
           device::Stream& stream) const;

  const ModelState& state_;
  std::vector<Packs> packs_;  // by group
  device::Buffer buffer_;     // [tiles, largest pack]
};

/// This rank's own ranges in flat order, cut where weight decay begins or ends. The gaps between
/// blocks hold zeros and stay so. `indexed`: with the elements' indices in the whole model (all
/// rows of the table one after another), and so cut wherever these do not continue.
std::vector<optim::UpdateRange> update_ranges(const ModelState& state, bool indexed = false);

/// √Σ g² over every logical parameter once, whatever the layout.
class GradientNorm {
 public:
  /// Partial sums are kept in `ledger`'s device, and once more in staging memory where that is not
  /// the host. `counting` divides gradients that several data ranks hold among them, so that each
  /// element is read once. `counts`: false on ranks whose shard is counted in another shard group.
  GradientNorm(const ModelState& state, const ShardMap& counting, bool counts,
               device::MemoryLedger& ledger);
  /// Queues this rank's partial sums, after the gradients are final.
  void start(ops::Ops& ops);
  /// The norm, once the device's work has been waited for (device::wait_for). Collective over
  /// `world`; the same bits on every rank, and in every layout in reproducible mode.
  double finish(comm::Communicator& world);
  /// Partial sums that the ranks exchange: one, or in reproducible mode one per params::norm_block
  /// elements of every tile.
  static std::int64_t partial_sums(const params::ParameterTable& table,
                                   const model::Shares& shares);

 private:
  struct Part {
    Tensor gradient;     // [n]
    params::Range sums;  // where its squares go: one, or one for each block
  };
  void add(const Part& part);
  std::vector<Part> parts_;
  device::Buffer buffer_;
  Tensor sums_;            // f64
  device::Readback read_;  // of them, where the ranks add them up: the host waits for it anyway
  device::Stream stream_;  // of the host
};

}  // namespace trireme::state
