#include "trireme/data_parallel/served_worker.hpp"

#include <algorithm>
#include <utility>

namespace trireme::data_parallel {

using comm::rpc::Future;
using comm::rpc::Nothing;
using messages::bytes_of;

ServedWorker::ServedWorker(const Parts& parts, device::MemoryLedger& ledger)
    : ServerLink(parts, ledger) {}

ServedWorker::Pulled ServedWorker::pull(std::int64_t step) {
  staging_.begin_receiving();
  Pulled futures;
  for (const ServerPart& part : shards_) {
    futures.push_back(parts_.endpoint.call(messages::pull, rank_of(part.server), {step, part.group},
                                           {}, bytes_of(staging_.incoming(part))));
  }
  return futures;
}

std::int64_t ServedWorker::take(const Pulled& pulled) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < pulled.size(); ++i) {
    pulled[i].get();
    bytes += static_cast<std::int64_t>(pulled[i].bulk_bytes());
    staging_.deliver(shards_[i]);
  }
  return bytes;
}

void ServedWorker::fetch() {
  const Section section(parts_.recorder, "wait for servers");
  take(pull(step_));
}

Future<Nothing> ServedWorker::push(const ServerPart& part, std::span<const std::byte> gradient) {
  return parts_.endpoint.call(messages::push, rank_of(part.server), {step_, part.group}, gradient);
}

void ServedWorker::start_norm(ops::Ops& /*ops*/) {}

double ServedWorker::finish_norm() {
  const Waiting waiting(*this);
  std::vector<Future<messages::NormOfStep>> futures;
  for (int s = 0; s < parts_.place.servers; ++s) {
    futures.push_back(parts_.endpoint.call(messages::norm, rank_of(s), step_));
  }
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
  std::vector<Future<Nothing>> settled;
  for (int s = 0; s < parts_.place.servers; ++s) {
    settled.push_back(parts_.endpoint.call(messages::settle, rank_of(s), settlement));
  }
  ++step_;
  const Pulled pulled = settlement.update != 0 ? pull(step_) : Pulled();
  for (const Future<Nothing>& future : settled) future.get();
  received_ += take(pulled);
}

void ServedWorker::update(double learning_rate, std::int64_t step, double gradient_scale) {
  settle({.step = step_,
          .update = 1,
          .number = step,
          .learning_rate = learning_rate,
          .gradient_scale = gradient_scale});
}

void ServedWorker::skip() { settle({.step = step_}); }

std::string ServedWorker::work(const std::string& name, const std::string& text) {
  const Section section(parts_.recorder, "wait for servers");
  std::vector<Future<std::string>> futures;
  for (int s = 0; s < parts_.place.servers; ++s) {
    futures.push_back(
        parts_.endpoint.call(messages::work, rank_of(s), name, std::as_bytes(std::span(text))));
  }
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
  for (int s = 0; s < parts_.place.servers; ++s) {
    parts_.endpoint.call(messages::end, rank_of(s), text).get();
  }
}

}  // namespace trireme::data_parallel
