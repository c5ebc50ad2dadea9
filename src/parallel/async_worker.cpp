#include "trireme/parallel/async_worker.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "trireme/parallel/served_worker.hpp"
#include "trireme/parallel/server_messages.hpp"

namespace trireme::parallel {

using comm::rpc::Future;
using comm::rpc::Nothing;
using messages::bytes_of;

namespace {

double seconds_since(Recorder::Clock::time_point begin) {
  return std::chrono::duration<double>(Recorder::Clock::now() - begin).count();
}

}  // namespace

/// The gradients of one bucket on their way.
class AsyncWorker::Push final : public device::Operation {
 public:
  Push(AsyncWorker& worker, const params::Range& elements) : worker_(worker), elements_(elements) {}
  void start() override {
    for (const ServerPart& part : worker_.shards_) {
      if (part.elements.begin < elements_.begin || part.elements.end > elements_.end) continue;
      const Tensor gradient = worker_.outgoing_.slice(0, part.elements.begin, part.elements.end);
      worker_.sent_ += static_cast<std::int64_t>(gradient.bytes());
      futures_.push_back(
          worker_.parts_.endpoint.call(async::push, worker_.parts_.place.workers + part.server,
                                       {worker_.ticket_, part.group}, bytes_of(gradient)));
    }
  }
  bool test() override {
    const auto over = [](const Future<Nothing>& future) { return future.ready(); };
    if (!std::all_of(futures_.begin(), futures_.end(), over)) return false;
    for (const Future<Nothing>& future : futures_) future.get();
    return true;
  }

 private:
  AsyncWorker& worker_;
  params::Range elements_;
  std::vector<Future<Nothing>> futures_;
};

AsyncWorker::AsyncWorker(const Parts& parts, device::MemoryLedger& ledger)
    : parts_(parts),
      shards_(server_parts(parts.stage.layout(), parts.place.servers)),
      alone_(comm::make_self_communicator()),
      norm_(parts.state, parts.stage.shards(), true, ledger),
      versions_(static_cast<std::size_t>(parts.place.servers)) {
  const params::Layout& layout = parts.stage.layout();
  TRIREME_ASSERT(parts.state.options().served && ledger.device().is_host(),
                 "a worker whose state is its own, or not in host memory");
  outgoing_ = parts.state.gradients();
  if (parts.place.gradients == DType::f32) return;
  staging_ = device::Buffer(
      ledger, device::Use::communication,
      static_cast<std::size_t>(ServedWorker::staging_bytes(parts.stage, parts.place.gradients)));
  outgoing_ = staging_.view(parts.place.gradients, {layout.elements()});
}

void AsyncWorker::fetch() {
  const Section section(parts_.recorder, "wait for servers");
  const auto begin = Recorder::Clock::now();
  std::vector<Future<std::int64_t>> futures;
  for (const ServerPart& part : shards_) {
    const Tensor values = values_of(parts_.state, part);
    futures.push_back(parts_.endpoint.call(async::pull, parts_.place.workers + part.server,
                                           part.group, {}, bytes_of(values)));
  }
  // Of what came in several pieces the oldest counts.
  std::fill(versions_.begin(), versions_.end(), std::numeric_limits<std::int64_t>::max());
  for (std::size_t i = 0; i < futures.size(); ++i) {
    std::int64_t& version = versions_[static_cast<std::size_t>(shards_[i].server)];
    version = std::min(version, futures[i].get());
    received_ += static_cast<std::int64_t>(futures[i].bulk_bytes());
  }
  seconds_ += seconds_since(begin);
}

device::Event AsyncWorker::reduce(const params::Range& elements, device::Stream& stream) {
  if (staging_.bytes() > 0) {
    parts_.ops.copy(outgoing_.slice(0, elements.begin, elements.end),
                    parts_.state.gradients().slice(0, elements.begin, elements.end));
  }
  return stream.enqueue(std::make_unique<Push>(*this, elements));
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
