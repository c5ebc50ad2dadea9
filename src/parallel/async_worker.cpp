#include "trireme/parallel/async_worker.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "trireme/parallel/server_messages.hpp"

namespace trireme::parallel {

using comm::rpc::Future;
using messages::bytes_of;

namespace {

double seconds_since(Recorder::Clock::time_point begin) {
  return std::chrono::duration<double>(Recorder::Clock::now() - begin).count();
}

}  // namespace

AsyncWorker::AsyncWorker(const Parts& parts, device::MemoryLedger& ledger)
    : parts_(parts),
      shards_(server_parts(parts.stage.layout(), parts.place.servers)),
      staging_(parts.state, parts.ops, parts.place.gradients, ledger),
      alone_(comm::make_self_communicator()),
      norm_(parts.state, parts.stage.shards(), true, ledger),
      versions_(static_cast<std::size_t>(parts.place.servers)) {}

void AsyncWorker::fetch() {
  const Section section(parts_.recorder, "wait for servers");
  const auto begin = Recorder::Clock::now();
  std::vector<Future<std::int64_t>> futures;
  staging_.begin_receiving();
  for (const ServerPart& part : shards_) {
    futures.push_back(parts_.endpoint.call(async::pull, parts_.place.workers + part.server,
                                           part.group, {}, bytes_of(staging_.incoming(part))));
  }
  // Of what came in several pieces the oldest counts.
  std::fill(versions_.begin(), versions_.end(), std::numeric_limits<std::int64_t>::max());
  for (std::size_t i = 0; i < futures.size(); ++i) {
    std::int64_t& version = versions_[static_cast<std::size_t>(shards_[i].server)];
    version = std::min(version, futures[i].get());
    received_ += static_cast<std::int64_t>(futures[i].bulk_bytes());
    staging_.deliver(shards_[i]);
  }
  seconds_ += seconds_since(begin);
}

device::Event AsyncWorker::reduce(const params::Range& elements, device::Stream& stream) {
  std::shared_ptr<device::Fence> ready = staging_.take(elements);
  return stream.enqueue(
      std::make_unique<Push>(std::move(ready), [this, elements] { return push(elements); }));
}

Push::Futures AsyncWorker::push(const params::Range& elements) {
  Push::Futures futures;
  for (const ServerPart& part : shards_) {
    if (part.elements.begin < elements.begin || part.elements.end > elements.end) continue;
    const Tensor gradient = staging_.outgoing(part.elements);
    sent_ += static_cast<std::int64_t>(gradient.bytes());
    futures.push_back(parts_.endpoint.call(async::push, parts_.place.workers + part.server,
                                           {ticket_, part.group}, bytes_of(gradient)));
  }
  return futures;
}

void AsyncWorker::start_norm(ops::Ops& ops) { norm_.start(ops); }

double AsyncWorker::finish_norm() { return norm_.finish(*alone_); }

void AsyncWorker::commit(async::Commit commit) {
  const Section section(parts_.recorder, "wait for servers");
  const auto begin = Recorder::Clock::now();
  commit.ticket = ticket_;
  std::vector<Future<std::int64_t>> futures;
  for (int s = 0; s < parts_.place.servers; ++s) {
    commit.version = versions_[static_cast<std::size_t>(s)];
    futures.push_back(parts_.endpoint.call(async::commit, parts_.place.workers + s, commit));
  }
  for (const auto& future : futures) future.get();
  staleness_ = futures.front().get();
  seconds_ += seconds_since(begin);
}

void AsyncWorker::update(double learning_rate, std::int64_t /*step*/, double gradient_scale) {
  commit({.learning_rate = learning_rate, .gradient_scale = gradient_scale});
}

void AsyncWorker::skip() { commit({.use = 0}); }

}  // namespace trireme::parallel
