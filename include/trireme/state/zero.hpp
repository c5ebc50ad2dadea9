// ZeRO and FSDP: which of a rank's state is whole on every data rank and which is cut into shards.
// Rajbhandari et al., "ZeRO" (2020); Zhao et al., "PyTorch FSDP" (2023).
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/params/layout.hpp"

namespace trireme::state {

enum class Held : std::uint8_t { whole, sharded };

/// One row of the policy table.
struct ZeroPolicy {
  Held parameters = Held::whole;
  Held gradients = Held::whole;
  Held optimizer = Held::whole;
  bool operator==(const ZeroPolicy&) const = default;
};

/// Stage 0 (DDP) to 3 (FSDP).
const ZeroPolicy& zero_policy(int stage);

/// The shards of a layout's groups on the `parts` ranks of a shard group, and the offsets of rank
/// `index`'s shards in a buffer that holds them one after the other.
class ShardMap {
 public:
  ShardMap(const params::Layout& layout, int parts, int index);
  int parts() const { return parts_; }
  int index() const { return index_; }
  /// Elements of each rank's shard of a group.
  const std::vector<std::int64_t>& counts(int group) const { return at(group).counts; }
  /// This rank's shard, counted from the beginning of the flat buffer.
  const params::Range& own(int group) const { return at(group).own; }
  /// Its first element in the buffer of this rank's shards.
  std::int64_t offset(int group) const { return at(group).offset; }
  /// Elements of that buffer; shards start on 64-byte boundaries of fp32.
  std::int64_t elements() const { return elements_; }
  int groups() const { return static_cast<int>(groups_.size()); }
  /// All of this rank's shards.
  std::vector<params::FlatRange> own_ranges() const;

 private:
  struct Group {
    std::vector<std::int64_t> counts;
    params::Range own;
    std::int64_t offset = 0;
  };
  const Group& at(int group) const { return groups_[static_cast<std::size_t>(group)]; }
  int parts_, index_;
  std::vector<Group> groups_;
  std::int64_t elements_ = 0;
};

}  // namespace trireme::state
