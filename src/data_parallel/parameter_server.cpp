#include "trireme/data_parallel/parameter_server.hpp"

#include <memory>
#include <utility>

namespace trireme::data_parallel {

using messages::bytes_of;

ParameterServer::ParameterServer(ServerShards& shards, comm::rpc::Endpoint& endpoint,
                                 comm::Communicator& servers, Recorder& recorder, Options options)
    : shards_(shards),
      endpoint_(endpoint),
      servers_(servers),
      recorder_(recorder),
      options_(std::move(options)) {
  endpoint_.serve(messages::push, [this](Call<Nothing> call, const messages::GroupOfStep& request) {
    take_gradients(std::move(call), request);
  });
  endpoint_.serve(messages::norm,
                  [this](Call<messages::NormOfStep> call, const std::int64_t& step) {
                    take_question(std::move(call), step);
                  });
  endpoint_.serve(messages::settle,
                  [this](Call<Nothing> call, const messages::Settlement& settlement) {
                    take_settlement(std::move(call), settlement);
                  });
  endpoint_.serve(messages::pull, [this](Call<Nothing> call, const messages::GroupOfStep& request) {
    take_pull(std::move(call), request);
  });
  endpoint_.serve(messages::work, [this](Call<std::string> call, const std::string& name) {
    take_work(std::move(call), name);
  });
  endpoint_.serve(messages::end, [this](Call<Nothing> call, const std::string& text) {
    call.reply({});
    post("end", [this, text] {
      const Lock lock(mutex_);
      ended_ = text;
    });
  });
}

ParameterServer::~ParameterServer() { endpoint_.close(0); }

void ParameterServer::check_worker(int rank) const {
  if (rank < shards_.place().workers) return;
  throw Error("rank {} is no worker: the first {} are", rank, shards_.place().workers);
}

void ParameterServer::check_group(std::int64_t group) const {
  const bool held =
      group >= 0 && group < shards_.groups() && shards_.holds(static_cast<int>(group));
  if (!held) throw Error("group {} is not this server's", group);
}

void ParameterServer::take_gradients(Call<Nothing> call, const messages::GroupOfStep& request) {
  const int worker = call.caller();
  check_worker(worker);
  check_group(request.group);
  const auto group = static_cast<int>(request.group);
  {
    const Lock lock(mutex_);
    if (request.step != step_) {
      throw Error("a gradient of step {} in step {}", request.step, step_);
    }
  }
  const Tensor room = shards_.room(worker, group);
  if (call.bulk_bytes() != room.bytes()) {
    throw Error("{} bytes of gradients for group {}, of which this server has {}",
                call.bulk_bytes(), group, room.bytes());
  }
  call.receive(bytes_of(room), [this, worker, group](Call<Nothing> whole) {
    bool all = false;
    {
      const Lock lock(mutex_);
      all = shards_.arrived(worker, group);
    }
    whole.reply({});
    if (all) post("add gradients", [this, group] { add(group); });
  });
}

void ParameterServer::take_question(Call<messages::NormOfStep> call, std::int64_t step) {
  check_worker(call.caller());
  const Lock lock(mutex_);
  if (step != step_) throw Error("asked for the norm of step {} in step {}", step, step_);
  shards_.require_all_of(call.caller());
  questions_.push_back(std::move(call));
  if (!norm_) return;
  works_.push_back({"answer", [] {}});
  changed_.notify_all();
}

void ParameterServer::take_settlement(Call<Nothing> call, const messages::Settlement& settlement) {
  check_worker(call.caller());
  const Lock lock(mutex_);
  if (settlement.step != step_ || !norm_) {
    throw Error("a settlement of step {} in step {}{}", settlement.step, step_,
                norm_ ? "" : " before its gradients are added");
  }
  if (!settled_.empty() && settlement != settlement_) {
    throw Error("step {}: worker {} settles another update than those before it", step_,
                call.caller());
  }
  settlement_ = settlement;
  settled_.push_back(std::move(call));
  if (static_cast<int>(settled_.size()) < shards_.place().workers) return;
  works_.push_back({"optimizer", [this] { finish_step(); }});
  changed_.notify_all();
}

void ParameterServer::take_pull(Call<Nothing> call, const messages::GroupOfStep& request) {
  check_worker(call.caller());
  check_group(request.group);
  Pull pull{std::move(call), static_cast<int>(request.group)};
  if (pull.call.room() != shards_.values(pull.group).bytes()) {
    throw Error("room for {} bytes of group {}, of which this server has {}", pull.call.room(),
                pull.group, shards_.values(pull.group).bytes());
  }
  {
    const Lock lock(mutex_);
    if (request.step != step_ && request.step != step_ + 1) {
      throw Error("asked for the model after {} steps, after {}", request.step, step_);
    }
    if (request.step > step_) {
      pulls_.push_back(std::move(pull));
      return;
    }
    ++sending_;
    // What comes after the step is done; the first model is no step's.
    if (request.step > 0) sent_ += static_cast<std::int64_t>(pull.call.room());
  }
  answer(std::move(pull));
}

void ParameterServer::take_work(Call<std::string> call, const std::string& name) {
  check_worker(call.caller());
  const auto found = options_.jobs.find(name);
  if (found == options_.jobs.end()) throw Error("there is no work {}", name);
  const Job& job = found->second;
  const auto text = std::make_shared<std::vector<std::byte>>(call.bulk_bytes());
  call.receive(*text, [this, text, &job](Call<std::string> whole) {
    post("work", [whole, text, &job]() mutable {
      std::string outcome;
      try {
        outcome = fmt::format("+{}", job(*text));
      } catch (const Error& error) {
        outcome = std::string("-") + error.what();
      }
      whole.reply(outcome);
    });
  });
}

void ParameterServer::post(const char* name, std::function<void()> work) {
  {
    const Lock lock(mutex_);
    works_.push_back({name, std::move(work)});
  }
  changed_.notify_all();
}

void ParameterServer::add(int group) {
  if (!shards_.add(group)) return;
  const double norm = shards_.norm(servers_);
  const Lock lock(mutex_);
  norm_ = norm;
}

void ParameterServer::finish_step() {
  {
    // What was sent of the last model has arrived, or the workers would not be here; but its
    // memory is ours again only now.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return sending_ == 0; });
  }
  if (settlement_.update != 0) {
    shards_.update(settlement_.learning_rate, settlement_.number, settlement_.gradient_scale);
  }
  std::vector<Call<Nothing>> settled;
  std::vector<Pull> pulls;
  {
    const Lock lock(mutex_);
    shards_.end_step();
    ++step_;
    norm_.reset();
    settled.swap(settled_);
    pulls.swap(pulls_);
    sending_ += static_cast<int>(pulls.size());
    for (const Pull& pull : pulls) sent_ += static_cast<std::int64_t>(pull.call.room());
  }
  for (Call<Nothing>& call : settled) call.reply({});
  for (Pull& pull : pulls) answer(std::move(pull));
}

void ParameterServer::answer(Pull pull) {
  pull.call.reply({}, bytes_of(shards_.values(pull.group)), [this] {
    {
      const Lock lock(mutex_);
      --sending_;
    }
    changed_.notify_all();
  });
}

std::string ParameterServer::serve() {
  endpoint_.start();
  for (;;) {
    Work work{};
    std::vector<Call<messages::NormOfStep>> questions;
    messages::NormOfStep reply;
    {
      std::optional<comm::Watchdog::Pause> idle;
      if (options_.watchdog != nullptr) idle.emplace(*options_.watchdog);
      const Section section(recorder_, "wait for workers");
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ended_ || !works_.empty(); });
      if (ended_) return *ended_;
      work = std::move(works_.front());
      works_.pop_front();
    }
    if (options_.watchdog != nullptr) options_.watchdog->beat(work.name);
    {
      const Section section(recorder_, work.name);
      work.run();
    }
    {
      const Lock lock(mutex_);
      if (!norm_) continue;
      questions.swap(questions_);
      reply.norm = *norm_;
    }
    reply.signal = options_.signal ? options_.signal() : 0;
    for (Call<messages::NormOfStep>& question : questions) question.reply(reply);
  }
}

}  // namespace trireme::data_parallel
