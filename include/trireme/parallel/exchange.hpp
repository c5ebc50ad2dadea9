// What data-parallel ranks exchange about parameters and gradients: gathers of sharded parameters,
// reductions of gradients by ZeRO's policy, and the spreading of updated parameters. Everything is
// started on one stream, in the order of the program, and overlaps with compute.
#pragma once

#include <memory>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/model/unit.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/parallel/data_parallel.hpp"
#include "trireme/parallel/lowering.hpp"
#include "trireme/state/model_state.hpp"
#include "trireme/state/offload.hpp"
#include "trireme/state/tensor_sums.hpp"

namespace trireme::parallel {

/// The communicators that a replica's state needs.
struct StateGroups {
  comm::Communicator& data;       // the whole data axis
  comm::Communicator& shard;      // ranks among which state is sharded
  comm::Communicator& replica;    // ranks that hold equal shards
  comm::Communicator& embedding;  // first and last stage
};

/// Gradients that are whole everywhere are handed over in buckets of neighboring groups: the
/// elements [begin, end) once group `group` is whole.
struct Bucket {
  params::Range elements;
  int group = 0;
};
/// The buckets of a program's reductions, none smaller than `elements` where its neighbors are
/// contiguous and follow one another; exchanged groups stand alone.
std::vector<Bucket> plan_buckets(const Program& program, const params::Layout& layout,
                                 std::int64_t elements);

class StateExchange {
 public:
  /// `method` is given every bucket as soon as it is whole; shards of gradients are reduced here.
  /// `offload`, where there is one, is given every gradient as soon as it is final. `lent`: by
  /// group, whose gradients hold something else until they are needed; see StagePlan.
  StateExchange(const state::ModelState& state, const Program& program, ops::Ops& ops,
                const StateGroups& groups, const model::TensorGroup& tensor, DataParallel& method,
                Recorder& recorder, device::MemoryLedger& ledger, std::int64_t bucket_elements,
                state::Offload* offload = nullptr, const std::vector<bool>& lent = {});

  /// Zeroes all gradient sums but those that are lent.
  void begin_step();
  /// Starts to make a group's parameters whole.
  void gather(int group);
  /// Waits until the parameters of a unit are there.
  void need_values(int unit);
  /// Makes room for the gradients of a unit, zeroed where nothing was added yet.
  void need_gradients(int unit);
  /// Starts to reduce a group's gradient, which this rank has finished (of this micro-batch, where
  /// gradients are sharded).
  void reduce(int group);
  /// Adds the other stage's gradient of a tied weight; then as reduce.
  void exchange(int group);
  /// Waits for everything; afterwards state.own_gradient(group) is final for every group.
  void finish();
  /// After an update of own shards: makes whole parameters whole again.
  void spread();

  device::Stream& stream() { return stream_; }

 private:
  void join(int group);
  void start_reduction(int group);
  void settle(int room);
  void conclude(int group);
  void take(int group);
  struct Gathered {
    int group = -1;
    device::Event ready;
  };
  struct Collected {
    int group = -1;         // whose gradients the room collects
    int reducing = -1;      // whose reduction is under way
    device::Event reduced;  // carries the reduction's error, if it failed
  };

  const state::ModelState& state_;
  ops::Ops& ops_;
  StateGroups groups_;
  model::TensorGroup tensor_;
  DataParallel& method_;
  Recorder& recorder_;
  bool times_;  // on the host; marks would hold up what a device queues
  state::TensorSums sums_;
  state::Offload* offload_;
  std::vector<bool> lent_;   // by group; empty: none
  std::vector<bool> given_;  // by group: lent, and not back yet in this step
  std::vector<Bucket> buckets_;
  std::vector<int> reductions_;       // by group, of a step
  std::vector<int> left_;             // by group, those still to come
  std::vector<Gathered> values_;      // by room
  std::vector<Collected> gradients_;  // by room
  std::vector<device::Event> pending_;
  device::Stream stream_;
};

}  // namespace trireme::parallel
