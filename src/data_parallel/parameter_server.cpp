#include "trireme/data_parallel/parameter_server.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace trireme::data_parallel {

using messages::bytes_of;

namespace {

/// An error ends the run on this side, and the caller gets its text.
template <class Call, class Run>
void or_fail(Call& call, const Run& run) {
  try {
    run();
  } catch (const std::exception& error) {
    call.fail(error.what());
    throw;
  }
}

}  // namespace

void WorkQueue::post(Item item) {
  {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
  }
  changed_.notify_all();
}

void WorkQueue::begin_reading() {
  const std::lock_guard lock(mutex_);
  ++readers_;
}

void WorkQueue::end_reading() {
  {
    const std::lock_guard lock(mutex_);
    --readers_;
  }
  changed_.notify_all();
}

bool WorkQueue::turn(double seconds, Recorder& recorder) {
  Item item;
  {
    std::optional<comm::Watchdog::Pause> idle;
    if (watchdog_ != nullptr) idle.emplace(*watchdog_);
    std::optional<Section> waiting;
    if (waiting_ != nullptr) waiting.emplace(recorder, waiting_);
    std::unique_lock lock(mutex_);
    const auto ready = [this] {
      return !items_.empty() && (readers_ == 0 || !items_.front().waits_for_readers);
    };
    if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), ready)) return false;
    item = std::move(items_.front());
    items_.pop_front();
  }
  if (watchdog_ != nullptr) watchdog_->beat(item.name);
  const Section section(recorder, item.name);
  item.run();
  return true;
}

ParameterServer::ParameterServer(ServerShards& shards, comm::rpc::Endpoint& endpoint,
                                 comm::Communicator& servers, Recorder& recorder, Options options)
    : shards_(shards),
      endpoint_(endpoint),
      servers_(servers),
      recorder_(recorder),
      options_(std::move(options)) {
  if (options_.watchdog != nullptr) queue_.watch(*options_.watchdog);
  using Self = ParameterServer;
  endpoint_.serve(messages::push, std::bind_front(&Self::take_gradients, this));
  endpoint_.serve(messages::norm, std::bind_front(&Self::take_question, this));
  endpoint_.serve(messages::settle, std::bind_front(&Self::take_settlement, this));
  endpoint_.serve(messages::pull, std::bind_front(&Self::take_pull, this));
  endpoint_.serve(messages::work, std::bind_front(&Self::take_work, this));
  endpoint_.serve(messages::end, [this](Call<Nothing> call, const std::string& text) {
    call.reply({});
    queue_.post({"end", [this, text] { ended_ = text; }});
  });
}

void ParameterServer::take_gradients(Call<Nothing> call, const messages::GroupOf& request) {
  const int worker = call.caller();
  const auto group = static_cast<int>(request.group);
  const Tensor slot = shards_.slot_for(worker, request.group, call.bulk_bytes());
  {
    const Lock lock(mutex_);
    if (request.number != step_) {
      throw Error("a gradient of step {} in step {}", request.number, step_);
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

void ParameterServer::take_pull(Call<std::int64_t> call, const messages::GroupOf& request) {
  shards_.values_for(call.caller(), request.group, call.capacity());
  Pull pull{std::move(call), static_cast<int>(request.group)};
  {
    const Lock lock(mutex_);
    if (request.number != step_ && request.number != step_ + 1) {
      throw Error("asked for the model after {} steps, after {}", request.number, step_);
    }
    if (request.number > step_) {
      pulls_.push_back(std::move(pull));
      return;
    }
    // What comes after the step is done; the first model is no step's.
    if (request.number > 0) sent_ += static_cast<std::int64_t>(pull.call.capacity());
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
    for (const Pull& pull : pulls) sent_ += static_cast<std::int64_t>(pull.call.capacity());
  }
  for (Call<Nothing>& call : settled) call.reply({});
  for (Pull& pull : pulls) answer(std::move(pull));
}

void ParameterServer::answer(Pull pull) {
  queue_.begin_reading();
  pull.call.reply(0, bytes_of(shards_.values(pull.group)), [this] { queue_.end_reading(); });
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

AsyncServer::AsyncServer(ServerShards& shards, comm::rpc::Endpoint& endpoint, WorkQueue& queue)
    : shards_(shards), queue_(queue) {
  endpoint.serve(messages::push, std::bind_front(&AsyncServer::take_gradients, this));
  endpoint.serve(messages::commit, std::bind_front(&AsyncServer::take_commit, this));
  endpoint.serve(messages::pull, std::bind_front(&AsyncServer::take_pull, this));
}

void AsyncServer::take_gradients(Call<Nothing> call, const messages::GroupOf& request) {
  const int worker = call.caller();
  const auto group = static_cast<int>(request.group);
  const Tensor slot = shards_.slot_for(worker, request.group, call.bulk_bytes());
  // Before anything is received: what came first must stay as it is until it is used.
  Sender& sender = senders_[worker];
  if (request.number == sender.committed) {
    throw Error("a gradient of ticket {}, which worker {} has committed", request.number, worker);
  }
  if (sender.ticket >= 0 && request.number != sender.ticket) {
    throw Error("a gradient of ticket {} while worker {} sends those of ticket {}", request.number,
                worker, sender.ticket);
  }
  if (!sender.groups.insert(request.group).second) {
    throw Error("a second gradient of group {} for ticket {}", request.group, request.number);
  }
  sender.ticket = request.number;
  call.receive(bytes_of(slot), [this, worker, group](Call<Nothing> whole) {
    // On the same thread as the commit that follows, whose own work clears it again.
    queue_.post({"take gradients", [this, worker, group, whole]() mutable {
                   or_fail(whole, [&] {
                     shards_.arrived(worker, group);
                     whole.reply({});
                   });
                 }});
  });
}

void AsyncServer::take_commit(Call<Nothing> call, const messages::Commit& commit) {
  const int worker = call.caller();
  shards_.check_worker(worker);
  Sender& sender = senders_[worker];
  if (commit.ticket != sender.ticket) {
    throw Error("a commit of ticket {}, of which worker {} has sent nothing", commit.ticket,
                worker);
  }
  sender = {.committed = commit.ticket};
  queue_.post({"optimizer",
               [this, worker, commit, call = std::move(call)]() mutable {
                 or_fail(call, [&] {
                   update(worker, commit);
                   call.reply({});
                 });
               },
               true});
}

void AsyncServer::take_pull(Call<std::int64_t> call, const messages::GroupOf& request) {
  shards_.values_for(call.caller(), request.group, call.capacity());
  const auto g = static_cast<int>(request.group);
  queue_.post({"send the model", [this, g, call = std::move(call)]() mutable {
                 const Tensor values = shards_.values(g);
                 counts_.sent += static_cast<std::int64_t>(values.bytes());
                 queue_.begin_reading();
                 call.reply(counts_.updates, bytes_of(values), [this] { queue_.end_reading(); });
               }});
}

void AsyncServer::update(int worker, const messages::Commit& commit) {
  shards_.require_all_of(worker);
  const bool repeated = done_.contains(commit.ticket);
  if (repeated || commit.use == 0) {
    shards_.drop(worker);
    if (repeated) ++counts_.repeated;
    return;
  }
  const std::int64_t staleness = counts_.updates - commit.version;
  if (staleness < 0 || staleness > options_.most_stale) {
    throw Error(
        "ticket {}: a gradient of worker {} is {} updates old: server.max_staleness allows {}",
        commit.ticket, worker, staleness, options_.most_stale);
  }
  const double rate = options_.inverse_rate
                          ? commit.learning_rate / static_cast<double>(1 + staleness)
                          : commit.learning_rate;
  shards_.update_from(worker, rate, options_.first_update + counts_.updates, commit.gradient_scale);
  done_.insert(commit.ticket);
  // No ticket is under way for longer than each worker in turn could hold it.
  done_.erase(done_.begin(), done_.lower_bound(commit.ticket - shards_.place().workers *
                                                                   (options_.most_stale + 1)));
  ++counts_.updates;
  ++counts_.by_staleness[staleness];
}

}  // namespace trireme::data_parallel
