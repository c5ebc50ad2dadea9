// A parameter server's side where workers push and pull when they are ready. Dean et al., "Large
// Scale Distributed Deep Networks" (2012).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "trireme/data_parallel/async_messages.hpp"
#include "trireme/data_parallel/server_shards.hpp"
#include "trireme/data_parallel/work_queue.hpp"

namespace trireme::data_parallel {

class AsyncServer {
 public:
  /// How updates came about.
  struct Counts {
    std::int64_t updates = 0;
    std::int64_t repeated = 0;  // commits that another worker had made before
    std::map<std::int64_t, std::int64_t> by_staleness;  // updates
    std::int64_t sent = 0;                              // bytes of the model
  };
  struct Options {
    std::int64_t first_update = 0;  // of this start: what the optimizer counts on from
    bool inverse_rate = false;      // the learning rate over 1 + staleness
    std::int64_t most_stale = 0;    // an update that is staler is an error
  };
  /// Calls come from the first ranks of `endpoint`, which must not have started yet.
  AsyncServer(ServerShards& shards, comm::rpc::Endpoint& endpoint, WorkQueue& queue);
  AsyncServer(const AsyncServer&) = delete;
  AsyncServer& operator=(const AsyncServer&) = delete;
  /// Before the endpoint starts.
  void set_options(const Options& options) { options_ = options; }
  /// By the thread that does the work, or when nobody does any.
  const Counts& counts() const { return counts_; }

 private:
  template <class Reply>
  using Call = comm::rpc::Call<Reply>;
  using Nothing = comm::rpc::Nothing;
  void take_gradients(Call<Nothing> call, const async::GroupOfTicket& request);
  void take_commit(Call<std::int64_t> call, const async::Commit& commit);
  void take_pull(Call<std::int64_t> call, std::int64_t group);
  std::int64_t update(int worker, const async::Commit& commit);

  /// What a worker has sent since its last commit: a gradient that is lost, doubled or late is
  /// refused, so that each counts once.
  struct Sender {
    std::int64_t ticket = -1;         // of the gradients that come; −1: none has
    std::int64_t committed = -1;      // the last one
    std::set<std::int64_t> groups{};  // that have begun to come
  };

  ServerShards& shards_;
  WorkQueue& queue_;
  std::map<int, Sender> senders_;  // the service thread's
  Options options_;
  Counts counts_;
  std::set<std::int64_t> done_;  // tickets
};

}  // namespace trireme::data_parallel
