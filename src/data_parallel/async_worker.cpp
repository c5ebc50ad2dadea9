#include "trireme/data_parallel/async_worker.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "trireme/data_parallel/server_messages.hpp"

namespace trireme::data_parallel {

using comm::rpc::Future;
using comm::rpc::Nothing;
using messages::bytes_of;

AsyncWorker::AsyncWorker(const Parts& parts, device::MemoryLedger& ledger)
    : ServerLink(parts, ledger),
      alone_(comm::make_self_communicator()),
      norm_(parts.state, parts.stage.shards(), true, ledger),
      versions_(static_cast<std::size_t>(parts.place.servers)) {}

void AsyncWorker::fetch() {
  const Waiting waiting(*this);
  std::vector<Future<std::int64_t>> futures;
  staging_.begin_receiving();
  for (const ServerPart& part : shards_) {
    futures.push_back(parts_.endpoint.call(async::pull, rank_of(part.server), part.group, {},
                                           bytes_of(staging_.incoming(part))));
  }
  // Of what came in several pieces the oldest counts.
  std::fill(versions_.begin(), versions_.end(), std::numeric_limits<std::int64_t>::max());
  for (std::size_t i = 0; i < futures.size(); ++i) {
    std::int64_t& version = versions_[static_cast<std::size_t>(shards_[i].server)];
    version = std::min(version, futures[i].get());
    received_ += static_cast<std::int64_t>(futures[i].bulk_bytes());
    staging_.deliver(shards_[i]);
  }
}

Future<Nothing> AsyncWorker::push(const ServerPart& part, std::span<const std::byte> gradient) {
  return parts_.endpoint.call(async::push, rank_of(part.server), {ticket_, part.group}, gradient);
}

void AsyncWorker::start_norm(ops::Ops& ops) { norm_.start(ops); }

double AsyncWorker::finish_norm() { return norm_.finish(*alone_); }

void AsyncWorker::commit(async::Commit commit) {
  const Waiting waiting(*this);
  commit.ticket = ticket_;
  std::vector<Future<std::int64_t>> futures;
  for (int s = 0; s < parts_.place.servers; ++s) {
    commit.version = versions_[static_cast<std::size_t>(s)];
    futures.push_back(parts_.endpoint.call(async::commit, rank_of(s), commit));
  }
  for (const auto& future : futures) future.get();
  staleness_ = futures.front().get();
}

void AsyncWorker::update(double learning_rate, std::int64_t /*step*/, double gradient_scale) {
  commit({.learning_rate = learning_rate, .gradient_scale = gradient_scale});
}

void AsyncWorker::skip() { commit({.use = 0}); }

}  // namespace trireme::data_parallel
