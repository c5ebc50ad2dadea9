// The part of a model that one parameter server holds: shards of parameters and optimizer state,
// a slot for every worker's gradients, their sum, and the update. Li et al., "Scaling Distributed
// Machine Learning with the Parameter Server" (2014). Without messages, which are
// parameter_server.hpp's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/state/model_state.hpp"
#include "trireme/state/update.hpp"

namespace trireme::data_parallel {

/// How many workers and servers there are, and which server this is.
struct ServerPlace {
  int workers = 1, servers = 1;
  int index = 0;                 // of this server
  DType gradients = DType::f32;  // as workers send them: f32 or bf16
};

/// What one server holds of one group.
struct ServerPart {
  int server = 0;  // index
  int group = 0;
  params::Range elements;  // of the flat buffer
};
/// All of them by group, then by server; none is empty.
std::vector<ServerPart> server_parts(const params::Layout& layout, int servers);
/// Where a worker's units read the part, of the type that they read.
Tensor values_of(const state::ModelState& worker, const ServerPart& part);

/// A server's share of a step: contributions come in, in any order; once a group's are there, their
/// sum is taken as all-reduce takes it (device/reduce_tree.cpp), so that it has the same bits; bf16
/// is added in fp32 and not rounded again. Servers cut every group of parameters as ZeRO's ranks
/// do, at blocks of the norm.
class ServerShards {
 public:
  /// `worker`: what a worker does, whose layout and type are served; it must outlive this. On the
  /// host.
  ServerShards(const parallel::Stage& worker, const ServerPlace& place,
               const optim::OptimConfig& optim, int threads, device::MemoryLedger& ledger);

  const ServerPlace& place() const { return place_; }
  const state::ModelState& state() const { return state_; }
  const state::ShardMap& shards() const { return state_.shards(); }
  optim::Optimizer& optimizer() { return optimizer_; }
  int groups() const { return shards().groups(); }
  /// Whether this server holds anything of the group.
  bool holds(int group) const { return shards().own(group).size() > 0; }
  /// What a message of `bytes` from `rank` about a group is of: the slot of a worker's gradient, or
  /// the values that workers read. Throws Error where the message does not fit.
  Tensor slot_for(int rank, std::int64_t group, std::size_t bytes) const;
  Tensor values_for(int rank, std::int64_t group, std::size_t bytes) const;
  /// Throws Error where `rank` is no worker.
  void check_worker(int rank) const;
  /// Elements of all groups that this server holds.
  std::int64_t held() const;

  /// First values of what it holds, of seed `seed`.
  void initialize(std::uint64_t seed);
  /// Recomputes what workers read, after something other than an update wrote parameters.
  void refresh();

  /// Where a worker's gradient of a group comes to, [elements held of it] of the type that is sent.
  Tensor slot(int worker, int group) const;
  /// The worker's gradient of the group is in its slot. True once all workers' are. Throws Error
  /// for a second one in a step.
  bool arrived(int worker, int group);
  /// Adds up a group of which all have arrived. True after the last of this server's groups.
  bool add(int group);
  /// Throws Error that names a group of which the worker has sent nothing in this step.
  void require_all_of(int worker) const;
  /// Whether all groups are added.
  bool complete() const { return missing_ == 0; }

  /// Norm over all servers' sums once all are complete. Collective over them; the same bits as
  /// all-reduce's in reproducible mode.
  double norm(comm::Communicator& servers);
  /// See DataParallel::update.
  void update(double learning_rate, std::int64_t step, double gradient_scale);
  /// The same with the gradients of one worker, of all groups. Consumes them, and does not wait for
  /// other workers' gradients.
  void update_from(int worker, double learning_rate, std::int64_t step, double gradient_scale);
  /// Forgets that gradients of one worker have come.
  void drop(int worker);
  /// Empties the slots for the next step.
  void end_step();
  /// What workers read of the group after an update: this server's part, of the type that they
  /// compute in.
  Tensor values(int group) const { return state_.own_values(group); }

  /// What such a server holds: its state as ModelState names it, and bytes of slots.
  static state::StateOptions state_options(const parallel::Stage& worker);
  static std::int64_t slot_bytes(const state::ShardMap& shards, const ServerPlace& place);

 private:
  void check_group(std::int64_t group) const;
  bool sums_in_place() const { return place_.gradients == DType::f32; }

  ServerPlace place_;
  int threads_;
  std::unique_ptr<ops::Ops> ops_;
  state::ModelState state_;
  optim::Optimizer optimizer_;
  state::GradientNorm norm_;
  std::vector<optim::UpdateRange> ranges_;
  device::Buffer slot_buffer_;
  Tensor slots_;  // [workers whose gradients are not received in place, shard]
  std::vector<std::vector<char>> came_;  // by group and worker, in this step
  int missing_ = 0;                      // groups that are not added yet
};

}  // namespace trireme::data_parallel
