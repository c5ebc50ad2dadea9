#include "trireme/data_parallel/server_link.hpp"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

namespace trireme::data_parallel {

using comm::rpc::Future;
using messages::bytes_of;
using messages::Nothing;

std::int64_t ServerStaging::bytes(const state::StateOptions& options, const params::Layout& layout,
                                  DType gradients, bool host) {
  const auto sent = static_cast<std::int64_t>(size_of(gradients));
  const auto read = static_cast<std::int64_t>(size_of(options.shares.compute));
  const std::int64_t narrow = gradients == DType::f32 ? 0 : sent;
  return layout.elements() * (narrow + (host ? 0 : std::max(sent, read)));
}

ServerStaging::ServerStaging(const state::ModelState& state, ops::Ops& ops, DType gradients,
                             device::MemoryLedger& ledger)
    : state_(state), ops_(ops), device_(ledger.device()), gradients_(gradients) {
  using device::Buffer;
  using device::Use;
  const state::StateOptions& options = state.options();
  TRIREME_ASSERT(options.served && !state.values_sharded(), "a worker whose state is its own");
  const params::Layout& layout = state.layout();
  const Shape flat{layout.elements()};
  const std::int64_t narrow = bytes(options, layout, gradients, true);
  const std::int64_t staged = bytes(options, layout, gradients, device_.is_host()) - narrow;
  if (narrow > 0) {
    narrow_buffer_ = Buffer(ledger, Use::communication, static_cast<std::size_t>(narrow));
    narrow_ = narrow_buffer_.view(gradients, flat);
  }
  if (device_.is_host()) {
    outgoing_ = narrow_ ? narrow_ : state.gradients();
    return;
  }
  staging_buffer_ = Buffer::staging(ledger, Use::communication, static_cast<std::size_t>(staged));
  outgoing_ = staging_buffer_.view(gradients, flat);
  incoming_ = staging_buffer_.view(options.shares.compute, flat);
  copies_ = device_.make_queue();
}

ServerStaging::~ServerStaging() {
  try {
    device_.synchronize();  // it reads what came last
  } catch (...) {           // NOLINT(bugprone-empty-catch): the next computation reports it
  }
}

std::shared_ptr<device::Fence> ServerStaging::take(const params::Range& elements) {
  Tensor from = state_.gradients().slice(0, elements.begin, elements.end);
  if (narrow()) {
    const Tensor rounded = narrow_.slice(0, elements.begin, elements.end);
    ops_.copy(rounded, from);
    from = rounded;
  }
  if (!copies_) return nullptr;
  // After what computes them, and after what reads the model that came to the same memory.
  if (const auto computed = device_.fence()) copies_->follow(*computed);
  const Tensor to = outgoing(elements);
  copies_->copy(to.data(), from.data(), from.bytes());
  return copies_->fence();
}

Tensor ServerStaging::outgoing(const params::Range& elements) const {
  return outgoing_.slice(0, elements.begin, elements.end);
}

void ServerStaging::begin_receiving() {
  while (delivered_ && !delivered_->reached()) {
    device_.check();
    std::this_thread::yield();
  }
  delivered_.reset();
}

Tensor ServerStaging::incoming(const ServerPart& part) const {
  if (!copies_) return values_of(state_, part);
  return incoming_.slice(0, part.elements.begin, part.elements.end);
}

void ServerStaging::deliver(const ServerPart& part) {
  if (!copies_) return;
  const Tensor to = values_of(state_, part);
  device_.copy(to.data(), incoming(part).data(), to.bytes());
  delivered_ = device_.fence();
}

bool Push::test() {
  if (send_) {
    if (ready_ && !ready_->reached()) return false;
    std::exchange(send_, {})();
  }
  const auto over = [](const auto& future) { return future.ready(); };
  if (!std::all_of(futures_.begin(), futures_.end(), over)) return false;
  for (const auto& future : futures_) future.get();
  futures_.clear();  // and keeps its memory
  return true;
}

ServerLink::ServerLink(const Parts& parts, device::MemoryLedger& ledger)
    : parts_(parts),
      versions_(static_cast<std::size_t>(parts.place.servers)),
      shards_(server_parts(parts.stage.layout(), parts.place.servers)),
      staging_(parts.state, parts.ops, parts.place.gradients, ledger) {}

ServerLink::Bucket& ServerLink::bucket_of(const params::Range& elements) {
  const auto [at, fresh] = buckets_.try_emplace({elements.begin, elements.end});
  Bucket& bucket = at->second;
  if (!fresh) return bucket;
  for (const ServerPart& part : shards_) {
    if (part.elements.begin < elements.begin || part.elements.end > elements.end) continue;
    bucket.parts.push_back(part);
  }
  bucket.futures.reserve(bucket.parts.size());
  return bucket;
}

device::Event ServerLink::reduce(const params::Range& elements, const Tensor& /*gradient*/,
                                 device::Stream& stream) {
  Bucket& bucket = bucket_of(elements);
  return stream.enqueue(
      std::make_unique<Push>(staging_.take(elements), bucket.futures, [this, &bucket] {
        for (const ServerPart& part : bucket.parts) {
          const Tensor gradient = staging_.outgoing(part.elements);
          sent_ += static_cast<std::int64_t>(gradient.bytes());
          bucket.futures.push_back(parts_.endpoint.call(messages::push, rank_of(part.server),
                                                        {number_, part.group}, bytes_of(gradient)));
        }
      }));
}

ServerLink::Pulled ServerLink::pull() {
  staging_.begin_receiving();
  Pulled futures;
  for (const ServerPart& part : shards_) {
    futures.push_back(parts_.endpoint.call(messages::pull, rank_of(part.server),
                                           {number_, part.group}, {},
                                           bytes_of(staging_.incoming(part))));
  }
  return futures;
}

std::int64_t ServerLink::take(const Pulled& pulled) {
  std::int64_t bytes = 0;
  std::fill(versions_.begin(), versions_.end(), std::numeric_limits<std::int64_t>::max());
  for (std::size_t i = 0; i < pulled.size(); ++i) {
    std::int64_t& version = versions_[static_cast<std::size_t>(shards_[i].server)];
    version = std::min(version, pulled[i].get());
    bytes += static_cast<std::int64_t>(staging_.incoming(shards_[i]).bytes());
    staging_.deliver(shards_[i]);
  }
  return bytes;
}

void ServedWorker::fetch() {
  const Section section(parts_.recorder, "wait for servers");
  take(pull());
}

double ServedWorker::finish_norm() {
  const Waiting waiting(*this);
  const auto futures = call_all(messages::norm, number_);
  double norm = 0;
  signal_ = 0;
  for (std::size_t s = 0; s < futures.size(); ++s) {
    const messages::NormOfStep answer = futures[s].get();
    const bool alike = answer.norm == norm || (answer.norm != answer.norm && norm != norm);
    if (s > 0 && !alike) {
      throw Error("servers 0 and {} know gradient norms {} and {} of one step", s, norm,
                  answer.norm);
    }
    norm = answer.norm;
    signal_ = std::max(signal_, static_cast<int>(answer.signal));
  }
  return norm;
}

void ServedWorker::settle(const messages::Settlement& settlement) {
  const Waiting waiting(*this);
  const auto settled = call_all(messages::settle, settlement);
  ++number_;
  const Pulled pulled = settlement.update != 0 ? pull() : Pulled();
  for (const Future<Nothing>& future : settled) future.get();
  received_ += take(pulled);
}

void ServedWorker::update(double learning_rate, std::int64_t step, double gradient_scale) {
  settle({.step = number_,
          .update = 1,
          .number = step,
          .learning_rate = learning_rate,
          .gradient_scale = gradient_scale});
}

std::string ServedWorker::work(const std::string& name, const std::string& text) {
  const Section section(parts_.recorder, "wait for servers");
  const auto futures = call_all(messages::work, name, std::as_bytes(std::span(text)));
  std::string first, fault;
  for (std::size_t s = 0; s < futures.size(); ++s) {
    const std::string outcome = futures[s].get();
    if (outcome.starts_with('-') && fault.empty()) fault = outcome.substr(1);
    if (s == 0) first = outcome.substr(1);
  }
  if (!fault.empty()) throw Error("{}", fault);
  return first;
}

void ServedWorker::end(const std::string& text) {
  for (const auto& future : call_all(messages::end, text)) future.get();
}

AsyncWorker::AsyncWorker(const Parts& parts, device::MemoryLedger& ledger)
    : ServerLink(parts, ledger),
      alone_(comm::make_self_communicator()),
      norm_(parts.state, parts.stage.shards(), true, ledger) {}

void AsyncWorker::fetch() {
  const Waiting waiting(*this);
  received_ += take(pull());
}

void AsyncWorker::commit(messages::Commit commit) {
  const Waiting waiting(*this);
  commit.ticket = number_;
  std::vector<Future<Nothing>> futures;
  for (int s = 0; s < parts_.place.servers; ++s) {
    commit.version = versions_[static_cast<std::size_t>(s)];
    futures.push_back(parts_.endpoint.call(messages::commit, rank_of(s), commit));
  }
  for (const auto& future : futures) future.get();
}

}  // namespace trireme::data_parallel
