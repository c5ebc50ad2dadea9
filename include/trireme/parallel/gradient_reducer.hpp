// The way of a gradient from backward to the optimizer, for every ZeRO stage: ARCHITECTURE.md, "The
// life of a gradient".
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/model/unit.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/parallel/data_parallel.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/params/layout.hpp"
#include "trireme/state/model_state.hpp"
#include "trireme/state/offload.hpp"
#include "trireme/state/update.hpp"

namespace trireme::parallel {

/// What one call of DataParallel::reduce takes: elements of the flat buffer, once the gradient of
/// `group`, the last of them in backward, is ready.
struct Bucket {
  params::Range elements;
  int group = 0;
};
/// ZeRO 0: neighboring groups in the order in which a program reduces them, until a bucket has
/// `elements`. A weight that is tied between stages has a bucket of its own.
std::vector<Bucket> plan_buckets(const Program& program, const params::Layout& layout,
                                 std::int64_t elements);

/// By action and leaf (no leaf where an action adds to no gradient): whether its products are the
/// first to add to their weights' gradients since these were reduced, and so may write them
/// (model::UnitContext::writes_gradients). Each set of gradients has its own first ones.
std::vector<std::vector<bool>> find_writers(const Stage& stage);

class GradientReducer {
 public:
  struct Parts {  // which outlive it
    const state::ModelState& state;
    const Stage& stage;
    ops::Ops& ops;
    model::TensorGroup& tensor;
    comm::Communicator& context;    // ranks that have the other parts of the sequences
    GradientSums shard;             // ranks among which state is sharded
    comm::Communicator& embedding;  // the first and the last stage
    DataParallel& method;
    state::Offload* offload;  // null: the optimizer is not offloaded
    Recorder& recorder;
    device::Stream& stream;  // of all collectives of parameters and gradients
    std::int64_t bucket_elements;
  };
  GradientReducer(const Parts& parts, device::MemoryLedger& ledger);

  /// Zeroes all gradients but those that activations alias, and those that products write.
  void begin_step();
  /// Before a unit adds to its gradients: zeroes those whose memory held something else, likewise.
  /// `writes`: of the action, for its first leaf.
  void prepare(int unit, bool writes);
  /// Whether the products of an action of the program write gradients of weights.
  bool writes(std::size_t action, int leaf) const;
  /// Starts to reduce a group's gradient. This rank has added all of it, or with ZeRO 2 and 3 all
  /// of one micro-batch.
  void reduce(int group);
  /// The same of a weight that is tied between stages, with the other stage's gradient.
  void reduce_tied(int group);
  /// Waits for everything. Afterwards state.own_gradient(group) is final for every group.
  void finish();

 private:
  /// A buffer that collects whole gradients of one group after another (ZeRO 2 and 3).
  struct Collected {
    int group = -1;           // whose gradient units add to
    int scattering = -1;      // whose reduce-scatter is in progress
    device::Event scattered;  // carries the error of a reduce-scatter that failed
  };
  std::vector<std::vector<bool>> find_written_first() const;
  std::vector<std::vector<params::Range>> plan_zeros() const;
  void zero_set(int set);
  /// Elements of a group that are zeroed before an action adds to them: all, or those that its
  /// products do not write.
  std::vector<params::Range> zeros_of(int group, bool writes) const;
  void add_up(int group);
  void scatter(int group);
  void accumulate(Collected& buffer);
  void count_contribution(int group);
  void hand_over(int group);
  void timed(const std::function<void()>& start);
  Tensor shard_of(int group) const;
  Collected& buffer_of(int group);

  const state::ModelState& state_;
  Parts parts_;
  ops::Ops& ops_;
  state::TensorSums sums_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<bool>> writers_;  // see find_writers
  // By set and group: the first products of a step that add to its gradient write it.
  std::vector<std::vector<bool>> written_first_;
  std::vector<std::vector<params::Range>> zeros_;  // by group: all but weights of products
  std::vector<bool> unzeroed_;      // by group: activations still alias it (StagePlan::aliased)
  std::vector<int> reductions_;     // by group, of a step
  std::vector<int> left_;           // by group, those still to come
  std::vector<Collected> buffers_;  // see ModelState::gradient_buffers
  std::vector<device::Event> pending_;
};

}  // namespace trireme::parallel
