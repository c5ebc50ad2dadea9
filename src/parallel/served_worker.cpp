#include "trireme/parallel/served_worker.hpp"

#include <algorithm>
#include <utility>

namespace trireme::parallel {

using comm::rpc::Future;
using comm::rpc::Nothing;
using messages::bytes_of;

namespace {

/// Counts the time from its construction to its end, beside the recorder's section.
class Waiting {
 public:
  Waiting(Recorder& recorder, double& seconds)
      : section_(recorder, "wait for servers"), seconds_(seconds) {}
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() { seconds_ += std::chrono::duration<double>(Recorder::Clock::now() - begin_).count(); }

 private:
  Section section_;
  Recorder::Clock::time_point begin_ = Recorder::Clock::now();
  double& seconds_;
};

}  // namespace

ServedWorker::ServedWorker(const Parts& parts, device::MemoryLedger& ledger)
    : parts_(parts),
      shards_(server_parts(parts.stage.layout(), parts.place.servers)),
      staging_(parts.state, parts.ops, parts.place.gradients, ledger) {}

ServedWorker::Pulled ServedWorker::pull(std::int64_t step) {
  staging_.begin_receiving();
  Pulled futures;
  for (const ServerPart& part : shards_) {
    futures.push_back(parts_.endpoint.call(messages::pull, parts_.place.workers + part.server,
                                           {step, part.group}, {},
                                           bytes_of(staging_.incoming(part))));
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

device::Event ServedWorker::reduce(const params::Range& elements, device::Stream& stream) {
  struct Message {
    int server = 0;
    messages::GroupOfStep request;
    Tensor gradient;
  };
  std::shared_ptr<device::Fence> ready = staging_.take(elements);
  std::vector<Message> list;
  for (const ServerPart& part : shards_) {
    if (part.elements.begin < elements.begin || part.elements.end > elements.end) continue;
    list.push_back({parts_.place.workers + part.server,
                    {step_, part.group},
                    staging_.outgoing(part.elements)});
    sent_ += static_cast<std::int64_t>(list.back().gradient.bytes());
  }
  return stream.enqueue(std::make_unique<Push>(
      std::move(ready), [&endpoint = parts_.endpoint, list = std::move(list)] {
        Push::Futures futures;
        for (const Message& message : list) {
          futures.push_back(endpoint.call(messages::push, message.server, message.request,
                                          bytes_of(message.gradient)));
        }
        return futures;
      }));
}

void ServedWorker::start_norm(ops::Ops& /*ops*/) {}

double ServedWorker::finish_norm() {
  const Waiting waiting(parts_.recorder, seconds_);
  std::vector<Future<messages::NormOfStep>> futures;
  for (int s = 0; s < parts_.place.servers; ++s) {
    futures.push_back(parts_.endpoint.call(messages::norm, parts_.place.workers + s, step_));
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
  const Waiting waiting(parts_.recorder, seconds_);
  std::vector<Future<Nothing>> settled;
  for (int s = 0; s < parts_.place.servers; ++s) {
    settled.push_back(parts_.endpoint.call(messages::settle, parts_.place.workers + s, settlement));
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
    futures.push_back(parts_.endpoint.call(messages::work, parts_.place.workers + s, name,
                                           std::as_bytes(std::span(text))));
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
    parts_.endpoint.call(messages::end, parts_.place.workers + s, text).get();
  }
}

}  // namespace trireme::parallel
