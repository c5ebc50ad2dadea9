// A worker's side of training in which no worker waits for another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data_parallel/async_messages.hpp"
#include "trireme/data_parallel/server_link.hpp"
#include "trireme/state/update.hpp"

namespace trireme::data_parallel {

/// Pulls the model before a ticket's work, pushes gradients as backward finishes them, and commits
/// them. Its grid is this rank alone: norms and losses are its own.
class AsyncWorker final : public ServerLink {
 public:
  AsyncWorker(const Parts& parts, device::MemoryLedger& ledger);

  /// What the next gradients are for.
  void begin(std::int64_t ticket) { ticket_ = ticket; }
  /// Pulls the newest model.
  void fetch() override;
  void start_norm(ops::Ops& ops) override;
  double finish_norm() override;
  /// Commits, whatever `step`, which each server counts; returns when all have updated.
  void update(double learning_rate, std::int64_t step, double gradient_scale) override;
  /// Has the servers drop the gradients.
  void skip() override;

  /// Of the last update, at the first server.
  std::int64_t staleness() const { return staleness_; }

 private:
  void commit(async::Commit commit);
  comm::rpc::Future<comm::rpc::Nothing> push(const ServerPart& part,
                                             std::span<const std::byte> gradient) override;

  std::unique_ptr<comm::Communicator> alone_;
  state::GradientNorm norm_;
  std::vector<std::int64_t> versions_;  // by server, of the model that was pulled
  std::int64_t ticket_ = -1, staleness_ = 0;
};

}  // namespace trireme::data_parallel
