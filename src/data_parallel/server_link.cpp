#include "trireme/data_parallel/server_link.hpp"

#include <algorithm>
#include <limits>

namespace trireme::data_parallel {

using comm::rpc::Future;
using messages::bytes_of;
using messages::Nothing;

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
  std::vector<Future<std::int64_t>> futures;
  for (int s = 0; s < parts_.place.servers; ++s) {
    commit.version = versions_[static_cast<std::size_t>(s)];
    futures.push_back(parts_.endpoint.call(messages::commit, rank_of(s), commit));
  }
  for (const auto& future : futures) future.get();
  staleness_ = futures.front().get();
}

}  // namespace trireme::data_parallel
