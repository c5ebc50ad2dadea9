// A worker's side of training in which nobody keeps step.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/rpc.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/parallel/async_messages.hpp"
#include "trireme/parallel/data_parallel.hpp"
#include "trireme/parallel/server_shards.hpp"
#include "trireme/parallel/server_staging.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/state/update.hpp"

namespace trireme::parallel {

/// Pulls the model before a ticket's work, pushes gradients as backward finishes them, and commits
/// them. Its grid is this rank alone: norms and losses are its own.
class AsyncWorker final : public DataParallel {
 public:
  /// What it works on, which outlives it; the servers are the ranks after place.workers of the
  /// started endpoint. The state is `served` and whole.
  struct Parts {
    const Stage& stage;
    const state::ModelState& state;
    ops::Ops& ops;
    comm::rpc::Endpoint& endpoint;
    Recorder& recorder;
    ServerPlace place;
  };
  AsyncWorker(const Parts& parts, device::MemoryLedger& ledger);

  /// What the next gradients are for.
  void begin(std::int64_t ticket) { ticket_ = ticket; }
  /// Pulls the newest model.
  void fetch() override;
  device::Event reduce(const params::Range& elements, device::Stream& stream) override;
  void start_norm(ops::Ops& ops) override;
  double finish_norm() override;
  /// Commits, whatever `step`, which each server counts; returns when all have updated.
  void update(double learning_rate, std::int64_t step, double gradient_scale) override;
  /// Has the servers drop the gradients.
  void skip() override;

  /// Of the last update, at the first server.
  std::int64_t staleness() const { return staleness_; }
  std::int64_t sent() const { return sent_; }          // bytes of gradients
  std::int64_t received() const { return received_; }  // of the model
  double seconds() const { return seconds_; }          // of waiting

 private:
  void commit(async::Commit commit);
  /// Starts to send the gradients of a bucket, which are in host memory.
  Push::Futures push(const params::Range& elements);
  Parts parts_;
  std::vector<ServerPart> shards_;
  ServerStaging staging_;
  std::unique_ptr<comm::Communicator> alone_;
  state::GradientNorm norm_;
  std::vector<std::int64_t> versions_;  // by server, of the model that was pulled
  std::int64_t ticket_ = -1, staleness_ = 0, sent_ = 0, received_ = 0;
  double seconds_ = 0;
};

}  // namespace trireme::parallel
