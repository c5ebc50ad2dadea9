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

/// The gradients of one bucket on their way to the servers, one message for each part.
class ServedWorker::Push final : public device::Operation {
 public:
  struct Message {
    int server = 0;
    messages::GroupOfStep request;
    Tensor gradient;
  };
  Push(comm::rpc::Endpoint& endpoint, std::vector<Message> messages)
      : endpoint_(endpoint), messages_(std::move(messages)) {}
  void start() override {
    for (const Message& message : messages_) {
      futures_.push_back(endpoint_.call(messages::push, message.server, message.request,
                                        bytes_of(message.gradient)));
    }
  }
  bool test() override {
    const auto over = [](const Future<Nothing>& future) { return future.ready(); };
    if (!std::all_of(futures_.begin(), futures_.end(), over)) return false;
    for (const Future<Nothing>& future : futures_) future.get();
    return true;
  }

 private:
  comm::rpc::Endpoint& endpoint_;
  std::vector<Message> messages_;
  std::vector<Future<Nothing>> futures_;
};

std::int64_t ServedWorker::staging_bytes(const Stage& stage, DType gradients) {
  if (gradients == DType::f32) return 0;
  return stage.layout().elements() * static_cast<std::int64_t>(size_of(gradients));
}

ServedWorker::ServedWorker(const Parts& parts, device::MemoryLedger& ledger)
    : parts_(parts), shards_(server_parts(parts.stage.layout(), parts.place.servers)) {
  const params::Layout& layout = parts.stage.layout();
  TRIREME_ASSERT(parts.state.options().served && ledger.device().is_host(),
                 "a worker whose state is its own, or not in host memory");
  if (parts.place.gradients == DType::f32) {
    outgoing_ = parts.state.gradients();
    return;
  }
  staging_ =
      device::Buffer(ledger, device::Use::communication,
                     static_cast<std::size_t>(staging_bytes(parts.stage, parts.place.gradients)));
  outgoing_ = staging_.view(parts.place.gradients, {layout.elements()});
}

std::vector<Future<Nothing>> ServedWorker::pull(std::int64_t step) {
  std::vector<Future<Nothing>> futures;
  for (const ServerPart& part : shards_) {
    const Tensor values = values_of(parts_.state, part);
    futures.push_back(parts_.endpoint.call(messages::pull, parts_.place.workers + part.server,
                                           {step, part.group}, {}, bytes_of(values)));
  }
  return futures;
}

void ServedWorker::fetch() {
  const Section section(parts_.recorder, "wait for servers");
  for (const auto& future : pull(step_)) future.get();
}

device::Event ServedWorker::reduce(const params::Range& elements, device::Stream& stream) {
  if (staging_.bytes() > 0) {
    parts_.ops.copy(outgoing_.slice(0, elements.begin, elements.end),
                    parts_.state.gradients().slice(0, elements.begin, elements.end));
  }
  std::vector<Push::Message> list;
  for (const ServerPart& part : shards_) {
    if (part.elements.begin < elements.begin || part.elements.end > elements.end) continue;
    list.push_back({parts_.place.workers + part.server,
                    {step_, part.group},
                    outgoing_.slice(0, part.elements.begin, part.elements.end)});
    sent_ += static_cast<std::int64_t>(list.back().gradient.bytes());
  }
  return stream.enqueue(std::make_unique<Push>(parts_.endpoint, std::move(list)));
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
  std::vector<Future<Nothing>> futures;
  for (int s = 0; s < parts_.place.servers; ++s) {
    futures.push_back(parts_.endpoint.call(messages::settle, parts_.place.workers + s, settlement));
  }
  ++step_;
  if (settlement.update != 0) {
    for (Future<Nothing>& future : pull(step_)) futures.push_back(std::move(future));
  }
  for (const Future<Nothing>& future : futures) {
    future.get();
    received_ += static_cast<std::int64_t>(future.bulk_bytes());
  }
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
