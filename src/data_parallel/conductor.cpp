#include "conductor.hpp"

#include <algorithm>

#include "trireme/core/text.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/train/health.hpp"

namespace trireme::data_parallel {

using namespace train;

Conductor::Conductor(AsyncJob& job, comm::rpc::Endpoint& endpoint, WorkQueue& queue, Save save)
    : job_(job),
      config_(job.config),
      queue_(queue),
      save_(std::move(save)),
      corpus_(data::Corpus::open(config_.data.path, config_.model.sequence)),
      reporter_(job, true),
      checkpointer_(job, corpus_, reporter_),
      stop_policy_(config_.train, sources()) {
  checkpointer_.take_tokenizer();
  serve(endpoint);
}

StopSources Conductor::sources() {
  StopSources sources = stop_sources(config_.train);
  sources.signal = [this, own = sources.signal] { return own() != 0 ? own() : interrupted_; };
  return sources;
}

void Conductor::serve(comm::rpc::Endpoint& endpoint) {
  endpoint.serve(messages::ask,
                 [this](comm::rpc::Call<messages::Work> call, const messages::Outcome& outcome) {
                   queue_.post({"hand out work", [this, call = std::move(call), outcome] {
                                  const int worker = call.caller();
                                  take(worker, outcome);
                                  asking_.emplace(worker, call);
                                  answer();
                                }});
                 });
  endpoint.serve(messages::interrupt,
                 [this](comm::rpc::Call<messages::Nothing> call, std::int64_t signal) {
                   queue_.post({"hand out work", [this, call, signal]() mutable {
                                  interrupted_ = static_cast<int>(signal);
                                  call.reply({});
                                }});
                 });
  endpoint.serve(messages::account,
                 [this](comm::rpc::Call<messages::Nothing> call, const std::string& text) {
                   queue_.post({"hand out work", [this, call = std::move(call), text]() mutable {
                                  accounts_[call.caller()] = nlohmann::json::parse(text);
                                  call.reply({});
                                }});
                 });
}

void Conductor::begin(const Beginning& beginning) {
  const ResumePoint& point = beginning.point;
  position_ = point.position;
  resume_blend(point);
  first_step_ = position_.step;
  const ServerPlace& place = job_.place;
  tickets_.emplace(Tickets::Plan{.workers = place.workers,
                                 .batch = config_.train.batch,
                                 .first_step = position_.step,
                                 .first_sample = position_.samples,
                                 .staleness = config_.server.max_staleness});
  reporter_.open();
  for (const std::string& line : beginning.passed_over) reporter_.warn("passed over: " + line);
  if (!point.folder.empty()) checkpointer_.resumed(point);
  reporter_.begin({.step = position_.step,
                   .samples = position_.samples,
                   .peak = beginning.peak,
                   .layout = fmt::format("{}, {}", job_.plan.shape.to_string(),
                                         counted(place.servers, "parameter server")),
                   .place = {{"tensor", 1},
                             {"pipeline", 1},
                             {"data", place.workers},
                             {"servers", place.servers}},
                   .predicted_memory = beginning.predicted_memory,
                   .extra = {},
                   .lines = {fmt::format(
                       "{} and {}; {} a rank; batch {} sequences = {} tokens, a worker's "
                       "share {}; micro-batch {}",
                       counted(place.workers, "worker"), counted(place.servers, "parameter server"),
                       counted(job_.threads, "thread"), config_.train.batch,
                       config_.train.batch * config_.model.sequence,
                       config_.train.batch / place.workers, config_.train.micro_batch)},
                   .warnings = {},
                   .notes = {}},
                  beginning.environment, corpus_);
}

void Conductor::resume_blend(const ResumePoint& point) {
  // Workers read their samples in the order of the blend as it is now.
  const nlohmann::json now = corpus_.kept(position_.samples);
  corpus_.resume(position_.samples, point.blend, point.data);
  if (corpus_.kept(position_.samples) != now) {
    throw Error(
        "data.path = {}: a blend cannot change within a run of data_parallel.method = {}; use the "
        "weights and sources of its beginning",
        config_.data.path, config_.data_parallel.method);
  }
  const std::int64_t left = std::max<std::int64_t>(0, config_.train.steps - position_.step);
  corpus_.check_end(config_.data, position_.samples + left * config_.train.batch);
}

std::int64_t Conductor::next_fence() const {
  const TrainConfig& train = config_.train;
  std::int64_t fence = train.steps;
  const auto stop_at = [&](std::int64_t every) {
    if (every > 0) fence = std::min(fence, (position_.step / every + 1) * every);
  };
  stop_at(train.evaluate_every);
  stop_at(config_.checkpoint.every);
  if (train.stop_after > 0) fence = std::min(fence, first_step_ + train.stop_after);
  return fence;
}

Ending Conductor::run() {
  using Failure = Checkpointer::Failure;
  const TrainConfig& train = config_.train;
  const std::int64_t last =
      train.stop_after > 0 ? std::min(train.steps, first_step_ + train.stop_after) : train.steps;
  step_begin_ = Recorder::Clock::now();
  checkpointer_.restart_clock();
  while (position_.step < last && stop_ == 0) {
    const std::int64_t before = position_.step;
    tickets_->set_fence(next_fence());
    drain();
    const auto due = [&](std::int64_t every) {
      return stop_ == 0 && multiple_between(every, before, position_.step);
    };
    if (due(train.evaluate_every)) evaluate();
    const bool late = stop_ == 0 && checkpointer_.minutes_over();
    if (due(config_.checkpoint.every) || (late && !checkpointer_.saved(position_.step))) {
      save(Failure::warns);
    } else if (late) {
      checkpointer_.restart_clock();
    }
    step_begin_ = Recorder::Clock::now();
  }
  if (position_.step == train.steps) stop_ = 0;  // nothing is left to do
  if (reporter_.steps() == 0 && stop_ == 0) {
    reporter_.print(fmt::format("already at step {} of {}; raise train.steps to continue",
                                position_.step, train.steps));
  }
  if (stop_ == 0 && reporter_.evaluates_at_end() && !reporter_.evaluated(position_.step)) {
    evaluate();
  }
  const bool saves = stop_ != 0 || config_.checkpoint.at_end;
  if (saves && !checkpointer_.saved(position_.step)) save(Failure::stops);
  try {
    checkpointer_.require_saved();
  } catch (const AgreedError& error) {  // of the servers, not of all ranks
    throw Error("{}", error.what());
  }
  const Ending ending = stop_ == 0 ? Ending::done : Ending::requeue;
  if (stop_ != 0) reporter_.stop(position_.step, stop_policy_.reason(stop_));
  dismiss(ending);
  return ending;
}

void Conductor::drain() {
  answer();
  while (!tickets_->drained()) {
    queue_.turn(0.2, job_.recorder);
    if (stop_ == 0) stop_ = stop_policy_.wanted(true, checkpointer_.longest_seconds());
    if (stop_ != 0 || checkpointer_.minutes_over()) tickets_->close_fence();
  }
}

void Conductor::answer() {
  for (auto next = asking_.begin(); next != asking_.end();) {
    const auto ticket = tickets_->next(next->first);
    if (!ticket) {
      ++next;
      continue;
    }
    // A share of a batch moves the model as far as its share of an update of all would.
    const double rate =
        optim::learning_rate(config_.optim, ticket->step, config_.train.steps) / job_.place.workers;
    next->second.reply({.ticket = *ticket, .learning_rate = rate});
    next = asking_.erase(next);
  }
}

void Conductor::take(int worker, const messages::Outcome& outcome) {
  if (outcome.number < 0 || lost_.contains(worker)) return;
  const Ticket ticket = tickets_->finish(worker);
  if (ticket.number != outcome.number) {
    throw Error("worker {} reports ticket {} and was given {}", worker, outcome.number,
                ticket.number);
  }
  if (ticket.kind == Ticket::Kind::train) return note_share(ticket, outcome);
  parts_[ticket.share] = {outcome.loss, outcome.weight};
}

void Conductor::note_share(const Ticket& ticket, const messages::Outcome& outcome) {
  Batch& batch = batches_[ticket.step];
  ++batch.shares;
  if (outcome.skipped == 0) {
    skipped_in_a_row_ = 0;
    checkpointer_.note_sound(ticket.step + 1);
    batch.loss += outcome.loss;
    batch.weight += outcome.weight;
    batch.norms += outcome.norm;
  } else {
    ++batch.skipped;
    if (++skipped_in_a_row_ >= config_.train.skip_limit * job_.place.workers) {
      throw Error(
          "step {}: the last of {} gradients in a row that were not finite; lower "
          "optim.learning_rate, set optim.clip or look at the data; {}",
          ticket.step + 1, skipped_in_a_row_, checkpointer_.last_good());
    }
  }
  // In their order, whoever was first.
  for (auto whole = batches_.find(position_.step);
       whole != batches_.end() && whole->second.shares == job_.place.workers;
       whole = batches_.find(position_.step)) {
    report_batch(whole->second);
    batches_.erase(whole);
  }
}

void Conductor::report_batch(const Batch& batch) {
  const double seconds = seconds_since(step_begin_);
  step_begin_ = Recorder::Clock::now();
  // A stop waits for the batches that are under way, which are two at least.
  stop_policy_.note_step(2 * seconds);
  stop_policy_.end_period();
  const double rate = optim::learning_rate(config_.optim, position_.step, config_.train.steps);
  ++position_.step;
  position_.samples += config_.train.batch;
  const auto used = static_cast<double>(job_.place.workers - batch.skipped);
  reporter_.step({.step = position_.step,
                  .tokens = position_.samples * config_.model.sequence,
                  .loss = batch.loss / batch.weight,
                  .gradient_norm = batch.norms / used,
                  .learning_rate = rate,
                  .seconds = seconds,
                  .skipped = used > 0 ? "" : std::string(name_of(StepOutcome::not_finite))},
                 batch.skipped > 0);
}

void Conductor::evaluate() {
  const std::vector<data::Corpus::Split> splits = corpus_.splits(data::SplitName::valid);
  if (splits.empty()) {
    return reporter_.no_evaluation(position_.step, corpus_.most_tokens(data::SplitName::valid));
  }
  reporter_.begin_evaluation(position_.step);
  std::vector<parallel::LossSum> sums;
  for (std::size_t split = 0; split < splits.size(); ++split) {
    parts_.clear();
    tickets_->evaluate(job_.place.workers, static_cast<std::int64_t>(split));
    drain();
    parallel::LossSum& sum = sums.emplace_back();
    for (const auto& [part, own] : parts_) {
      sum.loss += own.loss;
      sum.weight += own.weight;
    }
  }
  reporter_.evaluation(position_.step, evaluation_of(corpus_, splits, sums, position_.samples));
}

void Conductor::save(Checkpointer::Failure failure) {
  const comm::Watchdog::Pause unwatched(job_.watchdog);
  const Section section(job_.recorder, "checkpoint");
  const checkpoint::State state = checkpointer_.state_at(position_, nlohmann::json::object());
  try {
    checkpointer_.save(state, failure, [&] { return StartedSave{save_(state), nullptr}; });
  } catch (const AgreedError& error) {  // of the servers, not of all ranks
    throw Error("{}", error.what());
  }
}

void Conductor::dismiss(Ending ending) {
  const auto gone = [this] { return static_cast<int>(accounts_.size()) >= tickets_->alive(); };
  while (!gone()) {
    for (auto& [worker, call] : asking_) {
      call.reply({.ticket = {}, .ending = static_cast<std::int64_t>(ending)});
    }
    asking_.clear();
    queue_.turn(0.2, job_.recorder);
  }
}

void Conductor::lose(int worker, const std::string& why) {
  if (accounts_.contains(worker)) return;  // it has done all it had to
  asking_.erase(worker);
  lost_[worker] = why;
  const auto left = tickets_->lose(worker);
  const std::string line = fmt::format("worker rank {} is lost: {}", worker, why);
  reporter_.event(position_.step, "lost", line);
  if (!config_.server.tolerate_failures) {
    throw Error("{}; look there for its last words, or set server.tolerate_failures", line);
  }
  if (tickets_->alive() == 0) throw Error("{}, and it was the last one", line);
  reporter_.warn(fmt::format("{}; {} workers continue{}", line, tickets_->alive(),
                             left ? ", one of them with what it had begun" : ""));
  answer();
}

nlohmann::json Conductor::staleness_json(const AsyncServer::Counts& counts) const {
  nlohmann::json histogram = nlohmann::json::array();
  double sum = 0;
  std::int64_t most = 0;
  for (const auto& [staleness, updates] : counts.by_staleness) {
    while (static_cast<std::int64_t>(histogram.size()) < staleness) histogram.push_back(0);
    histogram.push_back(updates);
    sum += static_cast<double>(staleness * updates);
    most = staleness;
  }
  const auto updates = static_cast<double>(std::max<std::int64_t>(1, counts.updates));
  return {{"updates", counts.updates},
          {"histogram", histogram},
          {"mean", sum / updates},
          {"most", most},
          {"bound", Tickets::most_stale(job_.place.workers, config_.server.max_staleness)},
          {"repeated_commits", counts.repeated}};
}

void Conductor::finish(const std::vector<nlohmann::json>& servers,
                       const AsyncServer::Counts& counts) {
  RunSummary summary;
  for (const auto& [worker, account] : accounts_) summary.ranks.push_back(account);
  summary.ranks.insert(summary.ranks.end(), servers.begin(), servers.end());
  std::vector<nlohmann::json> sections;
  for (const nlohmann::json& rank : summary.ranks) {
    sections.push_back(rank.at("sections"));
    summary.resident = std::max(summary.resident, rank.at("resident_peak").get<std::int64_t>());
  }
  summary.sections = report::section_table(sections);
  summary.memory = memory_of(summary.ranks);
  const nlohmann::json staleness = staleness_json(counts);
  nlohmann::json lost = nlohmann::json::object();
  for (const auto& [worker, why] : lost_) lost[std::to_string(worker)] = why;
  summary.extra = {{"staleness", staleness}, {"lost_workers", lost}};
  std::string line;
  for (std::size_t s = 0; s < staleness.at("histogram").size(); ++s) {
    const auto updates = staleness.at("histogram")[s].get<std::int64_t>();
    if (updates > 0) line += fmt::format("  {}: {}", s, updates);
  }
  summary.lines.push_back(fmt::format(
      "staleness of {} updates, as updates: times{}; mean {:.2f}, at most {} of {}", counts.updates,
      line, staleness.at("mean").get<double>(), staleness.at("most").get<std::int64_t>(),
      staleness.at("bound").get<std::int64_t>()));
  for (const auto& [worker, why] : lost_) {
    summary.lines.push_back(fmt::format("lost: worker rank {}: {}", worker, why));
  }
  reporter_.finish(std::move(summary));
}

}  // namespace trireme::data_parallel
