#include "trireme/train/trainer.hpp"

#include <algorithm>
#include <utility>

#include "trireme/comm/agree.hpp"
#include "trireme/core/text.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/train/step_prediction.hpp"

namespace trireme::train {

namespace {

parallel::ReplicaOptions options_of(Job& job, const comm::Grid& grid, Method& method) {
  const RunConfig& config = job.config;
  parallel::ReplicaOptions options =
      replica_options(config, stage_options(config, grid.shape(), job.plan.facts), job.threads);
  options.watchdog = &job.watchdog;
  options.make_ops = job.computes.make_ops(config.device.time_products);
  method.configure(options);
  return options;
}

/// Whether a rank is of this one's place on the data axis.
std::function<bool(int)> shares_batch(const comm::Grid& grid) {
  constexpr auto data = static_cast<std::size_t>(comm::Axis::data);
  return [shape = grid.shape(), own = grid.coordinate(comm::Axis::data)](int rank) {
    return shape.coordinates(rank)[data] == own;
  };
}

StopSources stop_sources(const TrainConfig& config, const Method& method) {
  StopSources sources = stop_sources(config);
  sources.signal = [own = sources.signal, &method] { return own() != 0 ? own() : method.signal(); };
  return sources;
}

}  // namespace

Trainer::Trainer(Job& job, comm::Grid& grid, Method& method)
    : job_(job),
      grid_(grid),
      method_(method),
      corpus_(data::Corpus::open(job.config.data.path, job.config.model.sequence)),
      validation_(corpus_.splits(data::SplitName::valid)),
      reporter_(job, grid.world().rank() == 0),
      predicted_step_(predict_step()),
      replica_(job.model, options_of(job, grid, method), grid, job.recorder, job.ledger),
      account_(grid, job.recorder),
      stop_policy_(job.config.train, stop_sources(job.config.train, method)),
      checkpointer_(job, corpus_, reporter_),
      faults_(parse_faults(job.config.train.inject), grid.world().rank(), shares_batch(grid)),
      health_(job.config.train.outlier, job.config.precision.compute == "fp16") {
  method_.attach(replica_);
  predicted_ = predict_memory();
}

Ending Trainer::run() {
  try {
    begin();
    const int stop = train_steps();
    return stop == 0 ? complete() : stop_early(stop);
  } catch (const std::exception& error) {
    reporter_.failed(position_.step, error.what());
    throw;
  }
}

void Trainer::begin() {
  const Environment environment = probe_environment(job_, method_.everyone());
  job_.lock_output(method_.everyone());
  method_.open();
  std::vector<std::string> passed_over;
  const std::string folder =
      find_resume(job_.config, grid_.world(), passed_over);  // before anything is written
  if (folder.empty()) check_end();
  comm::agree(grid_.world(), [&] {
    if (!reporter_.is_root()) return;
    checkpointer_.take_tokenizer();
    reporter_.open();
  });
  for (const std::string& line : passed_over) reporter_.warn("passed over: " + line);
  replica_.initialize();
  if (!folder.empty()) {
    resume(folder);
    check_end();
  }
  const double peak = measure_peak();
  replica_.settle_choices(job_.config.data.document_mask);
  replica_.connect_stages();
  begin_record(environment, peak);
  job_.starting.reset();
  grid_.world().barrier();  // from which the traces of all ranks count their time
  account_.begin();
  replica_.begin_trace();
  checkpointer_.restart_clock();
}

void Trainer::check_end() const {
  const TrainConfig& train = job_.config.train;
  const std::int64_t left = std::max<std::int64_t>(0, train.steps - position_.step);
  corpus_.check_end(job_.config.data, position_.samples + left * train.batch);
}

nlohmann::json Trainer::predict_step() {
  nlohmann::json predicted;
  const std::string& source = job_.config.train.predict;
  if (source == "off") return predicted;
  const parallel::ReplicaOptions options = options_of(job_, grid_, method_);
  plan::Machine machine;
  if (source == "quick") {
    report::PhaseProgress progress(reporter_.progress(), "measure the machine");
    machine = measure_machine(job_, options, grid_.shape());
  }
  comm::agree(grid_.world(), [&] {
    if (!reporter_.is_root()) return;
    if (source != "quick") {
      machine = read_machine(source, job_.computes.on_host(), job_.session.node_size());
    }
    predicted = predict_step_time(machine, source, job_.model, options, grid_.shape(),
                                  job_.config.data.document_mask);
  });
  return predicted;
}

void Trainer::resume(std::string folder) {
  ResumePoint point;
  load_newest(
      job_.config, grid_.world(), std::move(folder),
      [&](const checkpoint::Reader& reader) {
        // A damaged checkpoint may have been read in part before.
        health_ = Health(job_.config.train.outlier, job_.config.precision.compute == "fp16");
        std::vector<std::string> notes;
        method_.load(reader, health_, notes);
        point = resume_point(job_.config, reader);
        point.notes.insert(point.notes.begin(), notes.begin(), notes.end());
        point.blend_change = corpus_.resume(point.position.samples, point.blend, point.data,
                                            reader.folder().string());
        corpus_.resume_packed(point.packed);
        if (reporter_.is_root()) checkpointer_.take_tokenizer(reader, point.notes);
      },
      [this](const std::string& line) { reporter_.warn("passed over: " + line); },
      reporter_.progress());
  position_ = point.position;
  replica_.refresh(point.rounded_for);
  checkpointer_.resumed(point);
}

double Trainer::measure_peak() {
  report::PhaseProgress progress(reporter_.progress(), "measure the peak of matrix products");
  return agree_on_peak(job_.config, grid_.world(), grid_.world().size(), &replica_, &progress);
}

int Trainer::train_steps() {
  const TrainConfig& train = job_.config.train;
  const data::DataConfig& data = job_.config.data;
  const std::int64_t length = job_.config.model.sequence, first = position_.step;
  const std::int64_t last =
      train.stop_after > 0 ? std::min(train.steps, first + train.stop_after) : train.steps;
  method_.begin_steps(corpus_.epoch_samples(data));
  if (first >= last) return 0;
  data::Loader loader(corpus_.windows(data, static_cast<std::uint64_t>(train.seed)),
                      {.micro_batch = train.micro_batch,
                       .length = length,
                       .document_mask = data.document_mask,
                       .prefetch = data.prefetch},
                      train.batch, grid_.coordinate(comm::Axis::data),
                      grid_.shape().of(comm::Axis::data), position_.samples);
  Requests agreed;
  while ((position_.step < last && agreed.stop == 0) || !period_.results.empty()) {
    if (!step(loader)) continue;
    agreed = period_.requests;
    report_steps();
    if (due(train.evaluate_every) && agreed.stop == 0) evaluate();
    if (agreed.unwritten == 0) settle_save(Failure::warns);
    if (due(job_.config.checkpoint.every) || agreed.save > 0) save(Failure::warns);
    period_ = {};
  }
  settle_save(Failure::warns);
  return position_.step == train.steps ? 0 : static_cast<int>(agreed.stop);
}

bool Trainer::step(data::Loader& loader) {
  const auto begin = Recorder::Clock::now();
  const auto batches = load_batches(loader);
  compute(batches);
  job_.watchdog.beat("optimizer");
  const Section section(job_.recorder, "optimizer");
  const StepResult result = agree_on_step();
  const double rate = update(result);
  const bool synchronized = method_.synchronize(period_, position_);
  if (synchronized && due(job_.config.train.check_every)) check_placement();
  const double seconds = seconds_since(begin);
  stop_policy_.note_step(seconds);
  const bool sound = result.outcome == StepOutcome::sound;
  period_.metrics.push_back({.step = position_.step,
                             .tokens = position_.samples * job_.config.model.sequence,
                             .loss = result.loss.mean(),
                             .gradient_norm = result.gradient_norm,
                             .learning_rate = rate,
                             .seconds = seconds,
                             .skipped = sound ? "" : std::string(name_of(result.outcome))});
  return synchronized;
}

std::vector<parallel::HostMicrobatch> Trainer::load_batches(data::Loader& loader) {
  job_.watchdog.beat("load data", position_.step + 1);
  const Section section(job_.recorder, "load data");
  const TrainConfig& train = job_.config.train;
  const std::int64_t count = train.batch / grid_.shape().of(comm::Axis::data) / train.micro_batch;
  std::vector<parallel::HostMicrobatch> batches;
  for (std::int64_t i = 0; i < count; ++i) {
    data::Batch batch = loader.next();
    account_.count_padding(batch.padding);
    faults_.into_batch(batch, position_.step + 1);
    batches.emplace_back(std::move(batch));
  }
  return batches;
}

void Trainer::compute(const std::vector<parallel::HostMicrobatch>& batches) {
  replica_.engine().set_loss_scale(health_.loss_scale());
  const auto begin = Recorder::Clock::now();
  replica_.start(batches);
  faults_.slow_down(seconds_since(begin));
  faults_.into_gradients(replica_, position_.step + 1);
}

StepResult Trainer::agree_on_step() {
  // The step's one wait for the device. The host decides here whether the step counts: a loss or a
  // norm that is not finite, and in fp16 an overflow, must not reach the weights.
  const parallel::StepSums sums = replica_.finish();
  const double loss = sums.loss.mean(), norm = sums.gradient_norm / health_.loss_scale();
  const bool root = reporter_.is_root();
  // The most of any rank: of what ranks know apart from each other, and of what all should see
  // alike.
  double word[] = {static_cast<double>(health_.judge(loss, norm)),
                   static_cast<double>(stop_policy_.wanted(root, checkpointer_.longest_seconds())),
                   root && checkpointer_.minutes_over() ? 1.0 : 0.0,
                   checkpointer_.unwritten() ? 1.0 : 0.0};
  {
    const Section section(job_.recorder, "agree on the step");
    method_.members().all_reduce(Tensor(word, {4}), comm::Reduction::max, agreement_stream_).wait();
  }
  period_.requests = {.stop = static_cast<std::int64_t>(word[1]),
                      .save = static_cast<std::int64_t>(word[2]),
                      .unwritten = static_cast<std::int64_t>(word[3])};
  return {sums.loss, norm, static_cast<StepOutcome>(word[0])};
}

double Trainer::update(const StepResult& result) {
  const optim::OptimConfig& optim = job_.config.optim;
  const TrainConfig& train = job_.config.train;
  const double scale = health_.loss_scale();
  health_.note(result.outcome, result.loss.mean(), result.gradient_norm);
  period_.skipped_in_a_row = std::max(period_.skipped_in_a_row, health_.skipped_in_a_row());
  const double rate = optim::learning_rate(optim, position_.step, train.steps);
  if (result.outcome == StepOutcome::sound) {
    replica_.update(rate, position_.step - position_.states_begin,
                    optim::clip_factor(result.gradient_norm, optim.clip) / scale);
    checkpointer_.note_sound(position_.step + 1);
    faults_.into_weights(replica_, position_.step + 1, static_cast<std::uint64_t>(train.seed));
  } else {
    replica_.skip();
  }
  ++position_.step;
  position_.samples += train.batch;
  period_.results.push_back(result);
  return rate;
}

bool Trainer::due(std::int64_t every) const {
  return multiple_between(every, position_.step - std::ssize(period_.results), position_.step);
}

void Trainer::check_placement() {
  const bool checks =
      select<bool>("train.check", job_.config.train.check, {{"none", false}, {"placement", true}});
  if (!checks || checked_step_ == position_.step) return;
  job_.watchdog.beat("check placement");
  const Section section(job_.recorder, "check placement");
  parallel::check_replicas(replica_, grid_, position_.step, method_.alike());
  checked_step_ = position_.step;
}

void Trainer::report_steps() {
  stop_policy_.end_period();
  method_.merge(period_);
  for (const report::StepMetrics& metrics : period_.metrics) reporter_.step(metrics);
  if (const std::string& refusal = replica_.engine().graphs().refusal(); !refusal.empty()) {
    reporter_.warn_of_graphs(fmt::format("device.graphs: {}; training continues without", refusal));
  }
  const std::int64_t skipped = period_.skipped_in_a_row;
  if (skipped < job_.config.train.skip_limit) return;
  settle_save(Failure::warns);  // of a step before: as good as any
  throw AgreedError(
      "step {}: the last of {} in a row whose update was skipped (last loss {}, gradient "
      "norm {}); lower optim.learning_rate, set optim.clip or look at the data; {}",
      position_.step, counted(skipped, "step"), reporter_.last().loss,
      reporter_.last().gradient_norm, checkpointer_.last_good());
}

void Trainer::evaluate() {
  const Section section(job_.recorder, "evaluate");
  if (validation_.empty()) {
    return reporter_.no_evaluation(position_.step, corpus_.most_tokens(data::SplitName::valid));
  }
  reporter_.begin_evaluation(position_.step);
  std::vector<parallel::LossSum> sums;
  {
    const StepAccount::Pause pause(account_, true);
    report::PhaseProgress progress(reporter_.progress(), "evaluate");
    for (const data::Corpus::Split& split : validation_) {
      sums.push_back(evaluate_split(replica_, *split.reader, job_.config.train.evaluate_samples,
                                    job_.config.data.document_mask, grid_, job_.watchdog,
                                    progress));
    }
  }
  const Evaluation found = evaluation_of(corpus_, validation_, sums, position_.samples);
  if (found.all.weight == 0) {
    return reporter_.no_evaluation(position_.step, corpus_.most_tokens(data::SplitName::valid));
  }
  reporter_.evaluation(position_.step, found);
}

void Trainer::save(Failure failure) {
  settle_save(failure);  // one at a time
  check_placement();     // what is damaged must not become the good checkpoint
  const comm::Watchdog::Pause unwatched(job_.watchdog);
  const Section section(job_.recorder, "checkpoint");
  const StepAccount::Pause pause(account_, false);
  checkpoint::State state = checkpointer_.state_at(position_, health_.to_json());
  if (job_.config.precision.rounding == "stochastic") {
    state.extra["rounded_for"] = replica_.rounded_for();
  }
  method_.keep(state, health_);
  const bool background = job_.config.checkpoint.async && failure == Failure::warns;
  checkpointer_.save(state, failure, [&] { return method_.save(state, background); });
}

void Trainer::settle_save(Failure failure) {
  if (!checkpointer_.pending()) return;
  const comm::Watchdog::Pause unwatched(job_.watchdog);
  const Section section(job_.recorder, "checkpoint");
  const StepAccount::Pause pause(account_, false);
  checkpointer_.settle(failure, position_.step);
}

Ending Trainer::stop_early(int stop) {
  if (!checkpointer_.saved(position_.step)) save(Failure::stops);
  reporter_.stop(position_.step, stop_policy_.reason(stop));
  finish(Ending::requeue);
  return Ending::requeue;
}

Ending Trainer::complete() {
  const std::int64_t step = position_.step;
  if (reporter_.steps() == 0) {
    reporter_.print(fmt::format("already at step {} of {}; raise train.steps to continue", step,
                                job_.config.train.steps));
  }
  if (reporter_.evaluates_at_end() && !reporter_.evaluated(step)) evaluate();
  if (job_.config.checkpoint.at_end && !checkpointer_.saved(step)) save(Failure::stops);
  checkpointer_.require_saved();
  finish(Ending::done);
  return Ending::done;
}

}  // namespace trireme::train
