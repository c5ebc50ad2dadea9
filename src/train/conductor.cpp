// What the first server does where no worker waits for another: it hands out the work and decides
// when everybody pauses.
#include <algorithm>
#include <cmath>

#include "trireme/checkpoint/tokenizer.hpp"
#include "trireme/optim/optimizer.hpp"

#include "async.hpp"
#include "trainer.hpp"

namespace trireme::train {

namespace async = data_parallel::async;
using data_parallel::Ticket;

namespace {
constexpr int out_of_time = -1;
}

Conductor::Conductor(AsyncJob& job, comm::rpc::Endpoint& endpoint, data_parallel::WorkQueue& queue,
                     Recorder& recorder, Save save)
    : job_(job),
      config_(job.config),
      endpoint_(endpoint),
      queue_(queue),
      recorder_(recorder),
      save_(std::move(save)),
      dataset_(data::Dataset::open(config_.data.path)),
      tokenizer_(data::stored_tokenizer(dataset_.manifest(), dataset_.folder())),
      signals_(parse_signals(config_.train.signals)),
      time_limit_(parse_duration(config_.train.time_limit)),
      begin_(Clock::now()) {
  endpoint.serve(async::ask,
                 [this](comm::rpc::Call<async::Work> call, const async::Outcome& outcome) {
                   queue_.post({"hand out work", [this, call = std::move(call), outcome] {
                                  const int worker = call.caller();
                                  take(worker, outcome);
                                  asking_.emplace(worker, call);
                                  answer();
                                }});
                 });
  endpoint.serve(async::interrupt,
                 [this](comm::rpc::Call<async::Nothing> call, std::int64_t signal) {
                   queue_.post({"hand out work", [this, call, signal]() mutable {
                                  told_ = static_cast<int>(signal);
                                  call.reply({});
                                }});
                 });
  endpoint.serve(async::account,
                 [this](comm::rpc::Call<async::Nothing> call, const std::string& text) {
                   queue_.post({"hand out work", [this, call = std::move(call), text]() mutable {
                                  accounts_[call.caller()] = nlohmann::json::parse(text);
                                  call.reply({});
                                }});
                 });
}

void Conductor::load(const checkpoint::Reader& reader, std::vector<std::string>& notes) {
  take_tokenizer(reader, dataset_, tokenizer_, notes);
}

void Conductor::begin(const Beginning& beginning) {
  const ResumePoint& point = beginning.point;
  peak_ = beginning.peak;
  step_ = point.step;
  samples_ = point.samples;
  states_begin_ = point.states_begin;
  tickets_.emplace(data_parallel::Tickets::Plan{.workers = job_.place.workers,
                                                .batch = config_.train.batch,
                                                .first_step = step_,
                                                .first_sample = samples_,
                                                .staleness = config_.server.max_staleness});
  record_ = std::make_unique<report::RunRecord>(config_.train.output, config_.report);
  if (!config_.train.quiet) {
    const std::string& mode = config_.train.progress;
    progress_ = mode == "auto" ? std::make_unique<report::ProgressLine>()
                               : std::make_unique<report::ProgressLine>(stdout, mode == "live");
  }
  for (const std::string& line : beginning.passed_over) say("passed over: " + line);
  if (point.own) saved_step_ = step_;
  saved_folder_ = point.folder;
  if (!point.folder.empty()) say(fmt::format("resumed from {}: step {}", point.folder, step_));
  for (const std::string& note : point.notes) say("note: " + note);
  begin_record(beginning);
}

void Conductor::say(const std::string& line) {
  if (progress_) progress_->print(line);
}

std::int64_t Conductor::next_fence() const {
  const TrainConfig& train = config_.train;
  std::int64_t fence = train.steps;
  const auto stop_at = [&](std::int64_t every) {
    if (every > 0) fence = std::min(fence, (step_ / every + 1) * every);
  };
  stop_at(train.evaluate_every);
  stop_at(config_.checkpoint.every);
  if (train.stop_after > 0) {
    fence = std::min(fence, step_ - steps_of_attempt_ + train.stop_after);
  }
  return fence;
}

Ending Conductor::run() {
  const TrainConfig& train = config_.train;
  const std::int64_t last =
      train.stop_after > 0 ? std::min(train.steps, step_ + train.stop_after) : train.steps;
  step_begin_ = Clock::now();
  while (step_ < last && stop_ == 0) {
    tickets_->set_fence(next_fence());
    drain();
    const auto due = [&](std::int64_t every) { return every > 0 && step_ % every == 0; };
    if (due(train.evaluate_every) && stop_ == 0) evaluate();
    if (due(config_.checkpoint.every) && stop_ == 0) save(false);
    step_begin_ = Clock::now();
  }
  if (step_ == train.steps) stop_ = 0;  // nothing is left to do
  if (stop_ == 0 && train.evaluate_at_end && evaluated_step_ != step_) evaluate();
  const bool saves = stop_ != 0 || config_.checkpoint.at_end;
  if (saves && saved_step_ != step_) save(true);
  const Ending ending = stop_ == 0 ? Ending::done : Ending::requeue;
  if (stop_ != 0) {
    const std::string why =
        stop_ == out_of_time ? "its time is up" : "signal " + signals_.name_of(stop_);
    record_->write_event(step_, "stop", why);
    say(fmt::format("stopped at step {} of {}: {}; saved: start again to go on (exit code {})",
                    step_, train.steps, why, exit_code(ending)));
  }
  dismiss(ending);
  return ending;
}

void Conductor::look_at_signals() {
  if (stop_ != 0) return;
  stop_ = signals_.caught() != 0 ? signals_.caught() : told_;
  std::optional<double> left = slurm_seconds_left();
  if (time_limit_) {
    const double own = *time_limit_ - seconds_since(begin_);
    left = std::min(left.value_or(own), own);
  }
  if (stop_ == 0 && left && *left < config_.train.time_margin + 3 * longest_step_) {
    stop_ = out_of_time;
  }
  if (stop_ != 0) tickets_->close_fence();
}

void Conductor::drain() {
  answer();
  while (!tickets_->drained()) {
    queue_.turn(0.2, recorder_);
    look_at_signals();
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

void Conductor::take(int worker, const async::Outcome& outcome) {
  if (outcome.number < 0 || lost_.contains(worker)) return;
  const Ticket ticket = tickets_->finish(worker);
  if (ticket.number != outcome.number) {
    throw Error("worker {} tells of ticket {} and was given {}", worker, outcome.number,
                ticket.number);
  }
  if (ticket.kind == Ticket::Kind::train) return note_share(ticket, outcome);
  parts_[ticket.share] = {outcome.loss, outcome.weight};
}

void Conductor::note_share(const Ticket& ticket, const async::Outcome& outcome) {
  Batch& batch = batches_[ticket.step];
  ++batch.shares;
  if (outcome.skipped == 0) {
    skipped_in_a_row_ = 0;
    batch.loss += outcome.loss;
    batch.weight += outcome.weight;
    batch.norms += outcome.norm;
  } else {
    ++batch.skipped;
    if (++skipped_in_a_row_ >= config_.train.skip_limit * job_.place.workers) {
      throw Error(
          "step {}: the last of {} gradients in a row that were not finite; lower "
          "optim.learning_rate, set optim.clip or look at the data; {}",
          ticket.step + 1, skipped_in_a_row_, last_good(saved_folder_));
    }
  }
  // In their order, whoever was first.
  for (auto whole = batches_.find(step_);
       whole != batches_.end() && whole->second.shares == job_.place.workers;
       whole = batches_.find(step_)) {
    write_batch(whole->second);
    batches_.erase(whole);
  }
}

void Conductor::write_batch(const Batch& batch) {
  const double seconds = seconds_since(step_begin_);
  step_begin_ = Clock::now();
  const std::int64_t tokens = config_.train.batch * config_.model.sequence;
  const double rate = optim::learning_rate(config_.optim, step_, config_.train.steps);
  ++step_;
  ++steps_of_attempt_;
  samples_ += config_.train.batch;
  trained_seconds_ += seconds;
  longest_step_ = std::max(longest_step_, seconds);
  const auto used = static_cast<double>(job_.place.workers - batch.skipped);
  last_loss_ = batch.loss / batch.weight;
  const double speed = static_cast<double>(tokens) / seconds;
  const report::StepMetrics metrics{
      .step = step_,
      .tokens = samples_ * config_.model.sequence,
      .loss = last_loss_,
      .gradient_norm = batch.norms / used,
      .learning_rate = rate,
      .seconds = seconds,
      .tokens_per_second = speed,
      .mfu = peak_ > 0 ? speed * job_.model.flops_per_token() / peak_ : 0,
      .skipped = used > 0 ? "" : std::string(name_of(Verdict::not_finite))};
  record_->write_step(metrics);
  if (!progress_) return;
  const bool due = step_ % config_.train.log_every == 0 || step_ == config_.train.steps ||
                   steps_of_attempt_ == 1 || batch.skipped > 0;
  if (!progress_->terminal() && !due) return;
  const double left = trained_seconds_ / static_cast<double>(steps_of_attempt_) *
                      static_cast<double>(config_.train.steps - step_);
  progress_->update(report::step_line(metrics, config_.train.steps, left));
}

void Conductor::evaluate() {
  evaluated_step_ = step_;
  const auto reader = dataset_.reader(data::SplitName::valid);
  if (reader->tokens() <= config_.model.sequence) {
    return say(fmt::format("no evaluation: the validation split has {} tokens, a window needs {}",
                           reader->tokens(), config_.model.sequence + 1));
  }
  record_->begin_evaluation(step_);
  parts_.clear();
  tickets_->evaluate(job_.place.workers);
  drain();
  parallel::LossSum sum;
  for (const auto& [part, own] : parts_) {
    sum.loss += own.loss;
    sum.weight += own.weight;
  }
  last_evaluation_ = sum.mean();
  const auto tokens = static_cast<std::int64_t>(sum.weight);
  record_->write_evaluation(step_, sum.mean(), tokens);
  say(fmt::format("step {}  validation loss {:.4f} over {} tokens", step_, sum.mean(), tokens));
}

void Conductor::save(bool last) {
  const comm::Watchdog::Pause pause(job_.watchdog);
  const Section section(recorder_, "checkpoint");
  checkpoint::State state{.step = step_,
                          .samples = samples_,
                          .seed = static_cast<std::uint64_t>(config_.train.seed),
                          .config = job_.resolved,
                          .versions = versions(),
                          .extra = nlohmann::json::object()};
  if (states_begin_ > 0) state.extra["states_begin"] = states_begin_;
  checkpoint::keep_tokenizer(state, tokenizer_);
  try {
    const std::string folder = save_(state);
    saved_step_ = step_;
    saved_folder_ = folder;
    record_->write_event(step_, "save", folder);
    say("saved " + folder);
    prune();
  } catch (const AgreedError& error) {  // of the servers, not of all ranks
    if (last || config_.checkpoint.on_failure == "stop") throw Error("{}", error.what());
    record_->write_event(step_, "save failed", error.what());
    say(fmt::format("warning: {}; training goes on", error.what()));
  }
}

void Conductor::prune() {
  try {
    checkpoint::prune(config_.train.output, config_.checkpoint.keep, step_);
  } catch (const Error& error) {  // nothing is lost by it
    say(fmt::format("warning: {}; tried again after the next save", error.what()));
  }
}

void Conductor::dismiss(Ending ending) {
  const auto gone = [this] { return static_cast<int>(accounts_.size()) >= tickets_->alive(); };
  while (!gone()) {
    for (auto& [worker, call] : asking_) {
      call.reply({.ticket = {}, .ending = static_cast<std::int64_t>(ending)});
    }
    asking_.clear();
    queue_.turn(0.2, recorder_);
  }
}

void Conductor::lose(int worker, const std::string& why) {
  if (accounts_.contains(worker)) return;  // it has done all it had to
  asking_.erase(worker);
  lost_[worker] = why;
  const auto left = tickets_->lose(worker);
  const std::string line = fmt::format("worker rank {} is lost: {}", worker, why);
  record_->write_event(step_, "lost", line);
  if (!config_.server.tolerate_failures) {
    throw Error("{}; look there for its last words, or set server.tolerate_failures", line);
  }
  if (tickets_->alive() == 0) throw Error("{}, and it was the last one", line);
  say(fmt::format("warning: {}; {} workers go on{}", line, tickets_->alive(),
                  left ? ", one of them with what it had begun" : ""));
  answer();
}

}  // namespace trireme::train
