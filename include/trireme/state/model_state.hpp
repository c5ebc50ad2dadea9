// A rank's parameters and gradients in flat buffers, whole or as shards (ZeRO and FSDP) with
// buffers for whole groups, and the views of them that units use. Rajbhandari et al., "ZeRO"
// (2020); Zhao et al., "PyTorch FSDP" (2023).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/model/unit.hpp"
#include "trireme/params/layout.hpp"

namespace trireme::state {

/// The shards of a layout's groups on the `parts` ranks of a shard group, and the offsets of rank
/// `index`'s shards in a buffer that holds them one after the other. Equivalent groups share
/// one list of shards.
class ShardMap {
 public:
  ShardMap(const params::Layout& layout, int parts, int index);
  /// The map of another rank of the shard group.
  ShardMap of_rank(int index) const;
  int index() const { return index_; }
  int parts() const { return parts_; }
  /// Elements of each rank's shard of a group.
  const std::vector<std::int64_t>& counts(int group) const { return at(group).shards->counts; }
  /// This rank's shard, counted from the beginning of the flat buffer.
  const params::Range& own(int group) const { return at(group).own; }
  /// Its first element in the buffer of this rank's shards.
  std::int64_t offset(int group) const { return at(group).offset; }
  /// Elements of that buffer; shards start on 64-byte boundaries of fp32.
  std::int64_t elements() const { return elements_; }
  int groups() const { return static_cast<int>(groups_.size()); }
  std::vector<params::FlatRange> own_ranges() const;

  /// The first group of each set of equivalent groups, and how many those are.
  struct Kind {
    int group = 0, count = 0;
  };
  const std::vector<Kind>& kinds() const { return kinds_; }
  /// Boundaries of a group's shards, from its beginning. [parts + 1]
  const std::vector<std::int64_t>& bounds(int group) const { return at(group).shards->bounds; }

 private:
  struct Shards {
    std::vector<std::int64_t> bounds, counts;
  };
  struct Group {
    std::shared_ptr<const Shards> shards;
    std::int64_t begin = 0;  // in the flat buffer
    params::Range own;
    std::int64_t offset = 0;
  };
  const Group& at(int group) const { return groups_[static_cast<std::size_t>(group)]; }
  void place(int index);
  int parts_, index_ = 0;
  std::vector<Group> groups_;
  std::vector<Kind> kinds_;
  std::int64_t elements_ = 0;
};

struct StateOptions {
  bool train = true;  // with gradients
  /// ZeRO's stage: 1 shards optimizer state, 2 (unless the mode is reproducible) gradients too, 3
  /// parameters too.
  int zero = 0;
  model::Shares shares;
  /// Separate sums of gradients until the step's end: in reproducible mode, which keeps gradients
  /// whole until then, one for each of this rank's groups of sequences; else 1.
  int sets = 1;
  /// Sharded parameters stay gathered from forward to backward (reshard_after_forward = false).
  bool keeps_gathered = false;
  /// Optimizer state and fp32 masters are in host memory, whatever type units read (see Offload).
  bool offload = false;
  /// The optimizer's state and fp32 masters are those of parameter servers.
  bool served = false;
  /// Units read whole fp32 parameters, whatever type they compute in: operations round what they
  /// read, and there is no copy in that type.
  bool reads_masters = false;
  /// State of a parameter server: shards of everything, not gathered or computed with here.
  bool serves = false;

  bool offloaded() const { return train && offload; }
  /// Whether the optimizer's state is here.
  bool updates() const { return train && !served; }
  DType values() const { return reads_masters ? DType::f32 : shares.compute; }
  /// Whether the optimizer updates a copy that units do not read.
  bool has_masters() const { return updates() && (offload || (shares.narrow() && !reads_masters)); }
  bool optimizer_sharded() const { return zero >= 1; }
  bool gradients_sharded() const { return zero >= 2 && (serves || !shares.reproducible); }
  bool values_sharded() const { return zero == 3; }
};

/// Where the whole values of groups are placed while their state is sharded. Groups of neighboring
/// units alternate between two buffers, so that one is filled while the other is read. A group of
/// several units, and every group that is needed for long, has a buffer of its own.
struct GroupBuffers {
  std::vector<std::int64_t> first;  // by group: its first element in the memory of all buffers
  std::vector<int> buffer;          // by group
  int count = 0;                    // of buffers
  std::int64_t elements = 0;        // of all buffers
};

GroupBuffers plan_gather_buffers(const params::Layout& layout, const StateOptions& options);

class ModelState {
 public:
  ModelState(const params::Layout& layout, const ShardMap& shards, const StateOptions& options,
             device::MemoryLedger& ledger);
  const params::Layout& layout() const { return layout_; }
  const ShardMap& shards() const { return shards_; }
  const StateOptions& options() const { return options_; }
  /// Holds everything but offloaded parameters().
  device::Device& device() const { return device_; }
  /// Holds parameters() and the optimizer's state: the host, where they are offloaded.
  device::Device& optimizer_device() const {
    return options_.offloaded() ? device::host_device() : device_;
  }

  /// What units read: whole flat parameters, or gather buffers.
  const model::ParameterViews& values() const { return values_; }
  /// The gradients of set `set` that units add to. In reproducible mode `last_unit` gets a separate
  /// sum for a tied weight whose units are all on this stage.
  const model::ParameterViews& gradients(int set, bool last_unit) const;

  /// What is updated, saved and loaded: flat parameters [layout.elements], or this rank's shards of
  /// them [shards.elements]. Where units read a copy in a narrower type, or the optimizer is
  /// offloaded, these are fp32 masters, held as the optimizer's state is; without training what
  /// units read.
  const Tensor& parameters() const { return masters_ ? masters_ : stored_values_; }
  bool parameters_sharded() const {
    return masters_ ? options_.optimizer_sharded() : values_sharded();
  }
  /// The same of gradients once they are reduced.
  const Tensor& gradients() const { return gradients_; }
  /// Whether units read values that are gathered for them.
  bool values_sharded() const { return options_.values_sharded(); }
  bool has_masters() const { return bool(masters_); }
  bool gradients_sharded() const { return options_.gradients_sharded(); }

  /// A group's whole values where units read them, and this rank's part of its storage.
  Tensor group_values(int group) const;
  Tensor own_values(int group) const;
  /// This rank's part of parameters(), the same elements as own_values.
  Tensor own_parameters(int group) const;
  /// A group's whole gradient of set `set` where units add to it, and where its reduced share goes:
  /// the accumulated shard, or the rank's part of the whole buffer.
  Tensor group_gradient(int group, int set = 0) const;
  /// [layout.elements]; with ZeRO 2 and 3 the gradient buffers.
  Tensor flat_gradients(int set) const;
  Tensor own_gradient(int group) const;
  /// Where whole groups are gathered (values_sharded) and their gradients collected
  /// (gradients_sharded); else there are none.
  const GroupBuffers& gather_buffers() const { return gather_buffers_; }
  const GroupBuffers& gradient_buffers() const { return gradient_buffers_; }

  /// Copies of rows that are not split, beyond the first: gradient copy `copy` (from 0) of `block`.
  Tensor gradient_copy(int block, int set, int copy) const;
  int copies() const { return copies_; }
  /// The last unit's own sum of a group, absent where it has none.
  Tensor tied_gradient(int group, int set) const;
  /// The device's memory from and to which this state is communicated.
  std::vector<Tensor> communicated() const;
  /// Sums that begin a step at zero whatever adds to them: all but flat_gradients and the gradient
  /// buffers.
  const std::vector<Tensor>& other_sums() const { return other_sums_; }

  /// Bytes of a state with these options; `gathered` are gather buffers and gradient buffers of
  /// sharded state.
  struct Bytes {
    std::int64_t parameters = 0, masters = 0, gradients = 0, gathered = 0;
  };
  static Bytes bytes(const params::Layout& layout, const ShardMap& shards,
                     const StateOptions& options);

 private:
  struct Set {
    Tensor flat;    // [layout.elements], or the gradient buffers
    Tensor copies;  // [copies − 1, replicated elements]
    Tensor tied;    // the last unit's sums of tied groups
    model::ParameterViews views, last_views;
  };
  void make_gradients(device::MemoryLedger& ledger);
  Tensor own_part(const Tensor& flat, int group, bool sharded) const;
  /// `whole`: a group's whole values.
  model::ParameterViews views_of(const std::function<Tensor(int group)>& whole) const;

  const params::Layout& layout_;
  device::Device& device_;
  ShardMap shards_;
  StateOptions options_;
  int copies_ = 1;
  std::vector<std::int64_t> replicated_;  // by block: its place among rows not split, or −1
  std::vector<std::int64_t> tied_;        // by group: its place among tied sums, or −1
  GroupBuffers gather_buffers_, gradient_buffers_;
  device::Buffer value_memory_, master_memory_, gathered_memory_, gradient_memory_,
      collected_memory_;
  Tensor stored_values_, masters_, gathered_, gradients_;
  model::ParameterViews values_;
  std::vector<Set> sets_;
  std::vector<Tensor> other_sums_;
};

}  // namespace trireme::state
