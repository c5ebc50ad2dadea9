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
  if (options_.watchdog != nullptr) queue_.watch(*options_.watchdog);
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
    queue_.post({"end", [this, text] { ended_ = text; }});
  });
}

ParameterServer::~ParameterServer() { endpoint_.close(0); }

void ParameterServer::take_gradients(Call<Nothing> call, const messages::GroupOfStep& request) {
  const int worker = call.caller();
  const auto group = static_cast<int>(request.group);
  const Tensor slot = shards_.slot_for(worker, request.group, call.bulk_bytes());
  {
    const Lock lock(mutex_);
    if (request.step != step_) {
      throw Error("a gradient of step {} in step {}", request.step, step_);
    }
  }
  call.receive(bytes_of(slot), [this, worker, group](Call<Nothing> whole) {
    bool all = false;
    {
      const Lock lock(mutex_);
      all = shards_.arrived(worker, group);
    }
    whole.reply({});
    if (all) queue_.post({"add gradients", [this, group] { add(group); }});
  });
}

void ParameterServer::take_question(Call<messages::NormOfStep> call, std::int64_t step) {
  shards_.check_worker(call.caller());
  const Lock lock(mutex_);
  if (step != step_) throw Error("asked for the norm of step {} in step {}", step, step_);
  shards_.require_all_of(call.caller());
  questions_.push_back(std::move(call));
  if (norm_) queue_.post({"answer", [] {}});
}

void ParameterServer::take_settlement(Call<Nothing> call, const messages::Settlement& settlement) {
  shards_.check_worker(call.caller());
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
  queue_.post({"optimizer", [this] { finish_step(); }, true});
}

void ParameterServer::take_pull(Call<Nothing> call, const messages::GroupOfStep& request) {
  shards_.values_for(call.caller(), request.group, call.room());
  Pull pull{std::move(call), static_cast<int>(request.group)};
  {
    const Lock lock(mutex_);
    if (request.step != step_ && request.step != step_ + 1) {
      throw Error("asked for the model after {} steps, after {}", request.step, step_);
    }
    if (request.step > step_) {
      pulls_.push_back(std::move(pull));
      return;
    }
    // What comes after the step is done; the first model is no step's.
    if (request.step > 0) sent_ += static_cast<std::int64_t>(pull.call.room());
  }
  answer(std::move(pull));
}

void ParameterServer::take_work(Call<std::string> call, const std::string& name) {
  shards_.check_worker(call.caller());
  const auto found = options_.jobs.find(name);
  if (found == options_.jobs.end()) throw Error("there is no work {}", name);
  const Job& job = found->second;
  const auto text = std::make_shared<std::vector<std::byte>>(call.bulk_bytes());
  call.receive(*text, [this, text, &job](Call<std::string> whole) {
    queue_.post({"work", [whole, text, &job]() mutable {
                   std::string outcome;
                   try {
                     outcome = fmt::format("+{}", job(*text));
                   } catch (const Error& error) {
                     outcome = std::string("-") + error.what();
                   }
                   whole.reply(outcome);
                 }});
  });
}

void ParameterServer::add(int group) {
  if (!shards_.add(group)) return;
  const double norm = shards_.norm(servers_);
  const Lock lock(mutex_);
  norm_ = norm;
}

void ParameterServer::finish_step() {
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
    for (const Pull& pull : pulls) sent_ += static_cast<std::int64_t>(pull.call.room());
  }
  for (Call<Nothing>& call : settled) call.reply({});
  for (Pull& pull : pulls) answer(std::move(pull));
}

void ParameterServer::answer(Pull pull) {
  queue_.begin_reading();
  pull.call.reply({}, bytes_of(shards_.values(pull.group)), [this] { queue_.end_reading(); });
}

std::string ParameterServer::serve() {
  endpoint_.start();
  while (!ended_) {
    queue_.turn(3600, recorder_);
    std::vector<Call<messages::NormOfStep>> questions;
    messages::NormOfStep reply;
    {
      const Lock lock(mutex_);
      if (!norm_) continue;
      questions.swap(questions_);
      reply.norm = *norm_;
    }
    reply.signal = options_.signal ? options_.signal() : 0;
    for (Call<messages::NormOfStep>& question : questions) question.reply(reply);
  }
  return *ended_;
}

}  // namespace trireme::data_parallel
