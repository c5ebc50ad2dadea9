#include "trainer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "trireme/comm/agree.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/placement.hpp"
#include "trireme/plan/memory.hpp"
#include "trireme/plan/peak.hpp"

namespace trireme::train {

Trainer::Trainer(comm::Session& session, comm::Grid& grid, const ComputeDevice& computes,
                 device::MemoryLedger& ledger, RunConfig config, const LayoutFacts& facts,
                 const config::Fields& fields, Servers* servers)
    : session_(session),
      grid_(grid),
      servers_(servers),
      job_(servers != nullptr ? servers->session : session),
      everyone_(servers != nullptr ? servers->everyone : grid.world()),
      data_group_(grid.group(comm::Axis::data)),
      members_(trains_alone(config) ? grid.model_group() : grid.world()),
      computes_(computes),
      ledger_(ledger),
      config_(std::move(config)),
      resolved_(fields.to_json()),
      provenance_(fields.provenance()),
      threads_(threads_of_rank(config_.parallel, job_)),
      watchdog_(std::make_unique<comm::Watchdog>(job_, config_.train.watchdog)),
      dataset_(data::Dataset::open(config_.data.path)),
      valid_reader_(dataset_.reader(data::SplitName::valid)),
      model_(config_.model),
      replica_(model_,
               {.stage = stage_options(config_, grid.shape(), facts),
                .optim = config_.optim,
                .threads = threads_,
                .bucket_elements = bucket_elements(config_),
                .overlap = config_.parallel.overlap,
                .seed = static_cast<std::uint64_t>(config_.train.seed),
                .stochastic_rounding = config_.precision.rounding == "stochastic",
                .watchdog = watchdog_.get(),
                .make_ops = computes.make_ops(config_.device.time_products),
                .make_method = make_method(),
                .trace = config_.train.trace,
                .graphs = config_.device.graphs,
                .alone = trains_alone(config_)},
               grid, recorder_, ledger),
      averaging_(trains_alone(config_)
                     ? std::make_unique<data_parallel::Averaging>(
                           config_.average, replica_, data_group_, bucket_elements(config_), ledger)
                     : nullptr),
      predicted_(plan::predict_memory(
          replica_.stage(),
          {.optim = config_.optim,
           .threads = threads_,
           .host = computes.device().is_host(),
           .cuda = computes.on_cuda() ? std::optional(cuda_work(config_)) : std::nullopt,
           .shape = grid.shape(),
           .rank = session.rank(),
           .backends = grid.backends(),
           .bucket_elements = bucket_elements(config_),
           .snapshots = servers == nullptr &&  // who save what they hold
                        (config_.checkpoint.in_background() ||
                         !replica_.state().optimizer_device().is_host()),
           .average = average_of(config_),
           .servers = servers != nullptr ? std::optional(servers->place) : std::nullopt})),
      health_(config_.train.outlier),
      loss_scale_(config_.precision.compute == "fp16"),
      time_limit_(parse_duration(config_.train.time_limit)),
      faults_(parse_faults(config_.train.inject)),
      signals_(parse_signals(config_.train.signals)),
      begin_(Clock::now()) {}

void Trainer::say(const std::string& line) {
  if (progress_) progress_->print(line);
}

Ending Trainer::run() {
  auto starting = std::make_optional<comm::Watchdog::Pause>(*watchdog_);
  environment_ = probe_environment(job_, everyone_, threads_);
  if (servers_ != nullptr) {
    servers_->endpoint.start();
    servers_->open = true;
  }
  std::vector<std::string> broken;
  const std::string folder =
      find_resume(config_, grid_.world(), broken);  // before anything is written
  comm::agree(grid_.world(), [&] {
    if (!is_root()) return;
    tokenizer_ = data::stored_tokenizer(dataset_.manifest(), dataset_.folder());
    record_ = std::make_unique<report::RunRecord>(config_.train.output, config_.report);
    if (config_.train.quiet) return;
    const std::string& mode = config_.train.progress;
    progress_ = mode == "auto" ? std::make_unique<report::ProgressLine>()
                               : std::make_unique<report::ProgressLine>(stdout, mode == "live");
  });
  for (const std::string& line : broken) say("passed over: " + line);
  replica_.initialize();
  if (!folder.empty()) resume(folder);
  if (averaging_) averaging_->begin();
  first_step_ = met_step_ = met_before_ = step_;
  peak_ = agree_on_peak(config_, grid_.world(), session_.size(),
                        [this] { return measure_peak(replica_, config_); });
  replica_.settle_choices(config_.data.document_mask);
  begin_record();
  starting.reset();
  grid_.world().barrier();  // from which the traces of all ranks count their time
  recorder_.reset();
  replica_.begin_trace();
  grid_.reset_traffic();
  if (servers_ != nullptr) servers_->worker->reset_traffic();
  saved_at_ = Clock::now();
  train_steps();
  if (stop_ != 0) {
    if (saved_step_ != step_) save(Failure::stops);
    const std::string why = reason(stop_);
    record([&](report::RunRecord& run) { run.write_event(step_, "stop", why); });
    finish(Ending::requeue);
    const bool never = config_.checkpoint.resume == "never";
    say(fmt::format("stopped at step {} of {}: {}; saved: start again{} to go on (exit code {})",
                    step_, config_.train.steps, why, never ? " with --resume auto" : "",
                    exit_code(Ending::requeue)));
    return Ending::requeue;
  }
  if (config_.train.evaluate_at_end && evaluated_step_ != step_) evaluate();
  if (config_.checkpoint.at_end && saved_step_ != step_) save(Failure::stops);
  finish(Ending::done);
  return Ending::done;
}

void Trainer::train_steps() {
  const TrainConfig& train = config_.train;
  const std::int64_t last =
      train.stop_after > 0 ? std::min(train.steps, step_ + train.stop_after) : train.steps;
  auto reader = dataset_.reader(data::SplitName::train);
  const data::Sampler sampler(reader->tokens(), config_.model.sequence,
                              config_.data.group_mb * (1 << 20) / 2,
                              static_cast<std::uint64_t>(train.seed), config_.data.shuffle);
  if (step_ >= last) return;
  data::Loader loader(std::move(reader), sampler,
                      {.micro_batch = train.micro_batch,
                       .length = config_.model.sequence,
                       .document_mask = config_.data.document_mask,
                       .prefetch = config_.data.prefetch},
                      train.batch, data_group_.rank(), data_group_.size(), samples_);
  const data_parallel::AverageSchedule averages(config_.average, train.batch,
                                                sampler.windows_per_epoch(), train.steps);
  while ((step_ < last && stop_ == 0) || met_step_ < step_) {
    const bool meets = !averaging_ || averages.due(step_ + 1, samples_ + train.batch);
    unshown_.push_back(step(loader, meets));
    if (!meets) continue;
    met_before_ = std::exchange(met_step_, step_);
    show_steps();
    stop_if_unhealthy();
    if (due(train.evaluate_every) && stop_ == 0) evaluate();
    if (save_written_) settle_save(Failure::warns);
    if (due(config_.checkpoint.every) || save_due_) save(Failure::warns);
  }
  settle_save(Failure::warns);
  if (step_ == train.steps) stop_ = 0;  // nothing is left to do
}

parallel::MakeMethod Trainer::make_method() {
  if (servers_ == nullptr) return {};
  return [this](const parallel::Stage& stage, const state::ModelState& state, ops::Ops& ops,
                device::MemoryLedger& ledger) {
    auto worker = std::make_unique<data_parallel::ServedWorker>(
        data_parallel::ServedWorker::Parts{stage, state, ops, servers_->endpoint, recorder_,
                                           servers_->place},
        ledger);
    servers_->worker = worker.get();
    return worker;
  };
}

int Trainer::stop_wanted() const {
  if (const int signal = signals_.caught(); signal != 0) return signal;
  if (servers_ != nullptr && servers_->worker->signal() != 0) return servers_->worker->signal();
  if (!is_root()) return 0;
  std::optional<double> left = slurm_seconds_left();
  if (time_limit_) {
    const double own = *time_limit_ - seconds_since(begin_);
    left = std::min(left.value_or(own), own);
  }
  // Until the next time to stop; steps and saves are not always as quick as they were.
  const double longest = std::max(longest_period_, seconds_of(unshown_));
  const double needed = config_.train.time_margin + 1.5 * (longest + save_seconds_);
  return left && *left < needed ? stop_for_time : 0;
}

std::string Trainer::reason(int stop) const {
  return stop == stop_for_time ? "its time is up" : "signal " + signals_.name_of(stop);
}

Verdict Trainer::agree_on_step(Verdict own) {
  const std::int64_t minutes_over =
      config_.checkpoint.every_minutes > 0 && is_root() &&
      seconds_since(saved_at_) >= 60 * config_.checkpoint.every_minutes;
  // The most of any rank: of what ranks know apart from each other, and of what all should see
  // alike.
  double word[] = {static_cast<double>(own), static_cast<double>(stop_wanted()),
                   static_cast<double>(minutes_over),
                   pending_save_ && !pending_save_->written() ? 1.0 : 0.0};
  {
    const Section section(recorder_, "agree on the step");
    members_.all_reduce(Tensor(word, {4}), comm::Reduction::max, agreement_stream_).wait();
  }
  pending_requests_ = {.stop = static_cast<std::int64_t>(word[1]),
                       .save_due = static_cast<std::int64_t>(word[2]),
                       .unwritten = static_cast<std::int64_t>(word[3])};
  if (!averaging_) grant(pending_requests_);
  return static_cast<Verdict>(word[0]);
}

void Trainer::grant(const PendingRequests& wishes) {
  stop_ = static_cast<int>(wishes.stop);
  save_due_ = wishes.save_due > 0;
  save_written_ = pending_save_ && wishes.unwritten == 0;
}

void Trainer::stop_if_unhealthy() {
  const std::int64_t skipped = std::exchange(skipped_in_a_row_, 0);
  if (skipped < config_.train.skip_limit) return;
  settle_save(Failure::warns);  // of a step before: as good as any
  throw AgreedError(
      "step {}: the last of {} steps in a row whose update was skipped (last loss {}, gradient "
      "norm {}); lower optim.learning_rate, set optim.clip or look at the data; {}",
      step_, skipped, last_loss_, last_norm_, last_good(saved_folder_));
}

report::StepMetrics Trainer::step(data::Loader& loader, bool meets) {
  const auto begin = Clock::now();
  std::vector<parallel::HostMicrobatch> batches;
  watchdog_->beat("load data", step_ + 1);
  {
    const Section section(recorder_, "load data");
    const std::int64_t count = config_.train.batch / data_group_.size() / config_.train.micro_batch;
    for (std::int64_t i = 0; i < count; ++i) {
      data::Batch batch = loader.next();
      inject_into_batch(batch);
      batches.emplace_back(std::move(batch));
    }
  }
  replica_.engine().set_loss_scale(loss_scale_.value());
  const auto computing = Clock::now();
  replica_.start(batches);
  slow_down(slowness(faults_, session_.rank()), seconds_since(computing));
  inject_into_gradients();

  watchdog_->beat("optimizer");
  const Section section(recorder_, "optimizer");
  const double scale = loss_scale_.value();
  // The step's one wait for the device. The host decides here whether the step counts: a loss or a
  // norm that is not finite, and in fp16 an overflow, must not reach the weights.
  const parallel::StepSums sums = replica_.finish();
  const parallel::LossSum& sum = sums.loss;
  const double norm = sums.gradient_norm / scale;
  const Verdict verdict = agree_on_step(health_.judge(sum.mean(), norm, loss_scale_.may_shrink()));
  health_.note(verdict, sum.mean(), norm);
  skipped_in_a_row_ = std::max(skipped_in_a_row_, health_.skipped_in_a_row());
  if (verdict <= Verdict::overflow) loss_scale_.note(verdict == Verdict::overflow);
  const double rate = optim::learning_rate(config_.optim, step_, config_.train.steps);
  if (verdict == Verdict::sound) {
    replica_.update(rate, step_ - states_begin_,
                    optim::clip_factor(norm, config_.optim.clip) / scale);
    inject_into_weights();
  } else {
    replica_.skip();
  }
  ++step_;
  samples_ += config_.train.batch;
  if (averaging_) {
    own_steps_.push_back({sum, norm, static_cast<std::int64_t>(verdict)});
    if (meets) average();
  }
  if (meets && step_ / config_.train.check_every > met_step_ / config_.train.check_every) {
    check_placement();
  }

  const std::int64_t tokens = config_.train.batch * config_.model.sequence;
  const double seconds = seconds_since(begin);
  attempt_tokens_ += tokens;
  step_seconds_.push_back(seconds);
  const double speed = static_cast<double>(tokens) / seconds;
  return {.step = step_,
          .tokens = samples_ * config_.model.sequence,
          .loss = sum.mean(),
          .gradient_norm = norm,
          .learning_rate = rate,
          .seconds = seconds,
          .tokens_per_second = speed,
          .mfu = peak_ > 0 ? speed * model_.flops_per_token() / peak_ : 0,
          .skipped = verdict == Verdict::sound ? "" : std::string(name_of(verdict))};
}

void Trainer::check_placement() {
  if (config_.train.check != "placement" || checked_step_ == step_) return;
  watchdog_->beat("check placement");
  const Section section(recorder_, "check placement");
  parallel::check_replicas(replica_, grid_, step_,
                           own_states() ? parallel::Alike::parameters : parallel::Alike::state);
  checked_step_ = step_;
}

void Trainer::record(const std::function<void(report::RunRecord&)>& write) {
  if (!is_root()) return;
  try {
    write(*record_);
  } catch (const Error& error) {
    if (!std::exchange(record_fails_, true)) {
      say(fmt::format("warning: {}; training goes on, and its record lacks lines from here on",
                      error.what()));
    }
  }
}

void Trainer::show(const report::StepMetrics& metrics) {
  if (!is_root()) return;
  record([&](report::RunRecord& run) { run.write_step(metrics); });
  const std::string& refusal = replica_.engine().graphs().refusal();
  if (!refusal.empty() && !std::exchange(graphs_refused_, true)) {
    warn(fmt::format("device.graphs: {}; training goes on without", refusal));
  }
  if (!progress_) return;
  const std::int64_t step = metrics.step;
  const bool wanted = step % config_.train.log_every == 0 || step == config_.train.steps ||
                      step == first_step_ + 1 || !metrics.skipped.empty();
  if (!progress_->terminal() && !wanted) return;
  // The median of the last steps: the first one and a disturbed one do not count for much.
  const std::size_t window = std::min<std::size_t>(step_seconds_.size(), 25);
  std::vector<double> recent(step_seconds_.end() - static_cast<std::ptrdiff_t>(window),
                             step_seconds_.end());
  std::nth_element(recent.begin(), recent.begin() + static_cast<std::ptrdiff_t>(window / 2),
                   recent.end());
  const double left = recent[window / 2] * static_cast<double>(config_.train.steps - step);
  progress_->update(report::step_line(metrics, config_.train.steps, left));
}

void Trainer::evaluate() {
  count_traffic();
  const Section section(recorder_, "evaluate");
  evaluated_step_ = step_;
  if (valid_reader_->tokens() <= config_.model.sequence) {
    say(fmt::format("no evaluation: the validation split has {} tokens, a window needs {}",
                    valid_reader_->tokens(), config_.model.sequence + 1));
    return;
  }
  record([&](report::RunRecord& run) { run.begin_evaluation(step_); });
  const auto before = recorder_.seconds();
  const parallel::LossSum sum =
      evaluate_split(replica_, *valid_reader_, config_.train.evaluate_samples,
                     config_.data.document_mask, data_group_, watchdog_.get());
  grid_.reset_traffic();  // the steps' alone is told
  for (const auto& [name, seconds] : recorder_.seconds()) {
    const auto earlier = before.find(name);
    evaluating_[name] += seconds - (earlier == before.end() ? 0 : earlier->second);
  }
  last_evaluation_ = sum.mean();
  if (!is_root()) return;
  record([&](report::RunRecord& run) {
    run.write_evaluation(step_, sum.mean(), static_cast<std::int64_t>(sum.weight));
  });
  say(fmt::format("step {}  validation loss {:.4f} over {} tokens", step_, sum.mean(),
                  static_cast<std::int64_t>(sum.weight)));
}

double agree_on_peak(const RunConfig& config, comm::Communicator& world, int workers,
                     const std::function<double()>& measure) {
  const std::string& peak = config.train.peak;
  if (peak == "none") return 0;
  if (peak != "measured") return std::strtod(peak.c_str(), nullptr) * 1e9 * workers;
  // All ranks at once, as they will train.
  world.barrier();
  return world.all_reduce(measure ? measure() : 0.0, comm::Reduction::sum);
}

double measure_peak(parallel::Replica& replica, const RunConfig& config) {
  return plan::measure_peak(replica.ops(), replica.state().device(),
                            replica.stage().options().compute, replica.stage().model(),
                            config.train.micro_batch * config.model.sequence,
                            plan::PeakEffort::quick);
}

}  // namespace trireme::train
