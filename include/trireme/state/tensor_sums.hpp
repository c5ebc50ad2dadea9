// Gradients with separate summands along the tensor axis: rows that are not split, summed per tile
// of the leaf's rows (reproducible mode) or per rank's rows (sequence parallelism); and key/value
// heads that several tiles hold.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/model/unit.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::state {

class TensorSums {
 public:
  TensorSums(const ModelState& state, device::MemoryLedger& ledger);
  /// Adds up the summands of `group` in set `set`, with the same bits on every rank that holds it.
  /// Collective over the tensor group. In reproducible mode the bits do not depend on its size. A
  /// tied weight's second sum is added too.
  void join(int group, int set, ops::Ops& ops, const model::TensorGroup& tensor) const;
  /// Bytes of the buffer through which values pass.
  static std::int64_t bytes(const params::Layout& layout, const model::Shares& shares);
  /// Elements that a group sends over the tensor axis at most.
  static std::int64_t largest_message(const params::Layout& layout, const model::Shares& shares);

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
  static Pack plan(const params::Layout& layout, const params::Group& group,
                   const model::Shares& shares);

  const ModelState& state_;
  std::vector<Pack> packs_;  // by group
  device::Buffer buffer_;    // [tiles, largest pack]
};

}  // namespace trireme::state
