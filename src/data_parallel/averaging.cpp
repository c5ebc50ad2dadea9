#include "trireme/data_parallel/averaging.hpp"

#include <algorithm>
#include <cstring>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/core/pairwise.hpp"
#include "trireme/data_parallel/memory.hpp"
#include "trireme/train/account.hpp"

namespace trireme::data_parallel {

using namespace train;

namespace {

using States = AverageConfig::States;
constexpr const char* outer_momentum_name = "average.outer_momentum";

/// What a worker sends to the others of its period, before its results.
struct Notice {
  Requests requests;
  std::int64_t skipped_in_a_row = 0;
};

}  // namespace

bool AverageSchedule::due(std::int64_t step, std::int64_t samples) const {
  if (step >= last_step) return true;
  if (config.per_epoch == 0) return step % config.every == 0;
  const auto parts = [&](std::int64_t seen) { return seen * config.per_epoch / windows; };
  return parts(samples) > parts(samples - batch);
}

std::int64_t Averaging::outer_bytes(const AverageConfig& config, const params::Layout& layout) {
  const std::int64_t buffers = config.has_outer() ? 2 : 0;
  return buffers * layout.elements() * std::int64_t{sizeof(float)};
}

std::int64_t Averaging::summed_buffers(const AverageConfig& config, std::int64_t states) {
  return 1 + (config.states() == States::average ? states : 0);
}

Averaging::Averaging(const AverageConfig& config, parallel::Replica& replica,
                     comm::Communicator& workers, std::int64_t bucket_elements,
                     device::MemoryLedger& ledger)
    : config_(config),
      replica_(replica),
      workers_(workers),
      bucket_elements_(bucket_elements),
      stream_(ledger.device()) {
  const params::Layout& layout = replica.stage().layout();
  const auto bytes = static_cast<std::size_t>(outer_bytes(config, layout));
  if (bytes == 0) return;
  outer_buffer_ = device::Buffer(ledger, device::Use::optimizer, bytes);
  last_ = outer_buffer_.view(DType::f32, {layout.elements()});
  momentum_ = outer_buffer_.view(DType::f32, {layout.elements()}, bytes / 2);
}

void Averaging::begin() {
  if (last_) replica_.ops().copy(last_, replica_.state().parameters());
}

void Averaging::sum(const Tensor& flat, double factor) {
  std::vector<device::Event> sums;
  for (std::int64_t at = 0; at < flat.elements(); at += bucket_elements_) {
    const Tensor bucket = flat.slice(0, at, std::min(at + bucket_elements_, flat.elements()));
    sums.push_back(workers_.all_reduce(bucket, comm::Reduction::sum, stream_));
  }
  for (const device::Event& event : sums) event.wait();
  replica_.ops().scale(flat, static_cast<float>(factor));
}

/// Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), in
/// the form of DiLoCo's reference: with gradient g = last model − mean, momentum u ← μu + g and
/// model ← model − η(g + μu).
void Averaging::step_outer() {
  ops::Ops& ops = replica_.ops();
  const Tensor& parameters = replica_.state().parameters();
  const double rate = config_.outer_learning_rate, momentum = config_.outer_momentum;
  ops.add(parameters, last_, parameters);  // the gradient: these are minus the mean
  ops.sgd(last_, momentum_, parameters, static_cast<float>(rate * momentum),
          static_cast<float>(momentum), 0, 1);
  ops.scale(parameters, static_cast<float>(-rate));
  ops.add(last_, last_, parameters);
  ops.copy(parameters, last_);
}

void Averaging::average(std::int64_t updates) {
  const double share = 1.0 / workers_.size();
  sum(replica_.state().parameters(), last_ ? -share : share);
  if (last_) step_outer();
  for (const auto& state : replica_.optimizer().states()) {
    switch (config_.states()) {
      case States::keep:
        break;
      case States::average:
        sum(state.flat, share);
        break;
      case States::reset:
        replica_.ops().fill(state.flat, 0);
        break;
    }
  }
  replica_.refresh(updates);
}

void IndependentWorkers::attach(parallel::Replica& replica) {
  Method::attach(replica);
  averaging_.emplace(job_.config.average, replica, workers_, bucket_elements(job_.config),
                     job_.ledger);
}

void IndependentWorkers::configure(plan::MemoryQuestion& question) const {
  add_method_memory(question, job_.config, replica().stage(), {});
}

void IndependentWorkers::begin_steps(std::int64_t windows) {
  const TrainConfig& train = job_.config.train;
  schedule_.emplace(AverageSchedule{job_.config.average, train.batch, windows, train.steps});
  averaging_->begin();
}

bool IndependentWorkers::synchronize(Period& period, Position& position) {
  if (!schedule_->due(position.step, position.samples)) return false;
  const auto begin = Recorder::Clock::now();
  exchange(period);
  {
    job_.watchdog.beat("average weights");
    const Section section(job_.recorder, "average weights");
    averaging_->average(position.step);
    replica().wait();  // so that its time is the average's
  }
  if (job_.config.average.states() == States::reset) position.states_begin = position.step;
  ++averages_;
  seconds_ += seconds_since(begin);
  return true;
}

void IndependentWorkers::exchange(Period& period) {
  job_.watchdog.beat("wait for workers");
  const Section section(job_.recorder, "wait for workers");
  // A worker that waits for a slower one has not stalled; that one is watched.
  const comm::Watchdog::Pause unwatched(job_.watchdog);
  const Notice own{period.requests, period.skipped_in_a_row};
  const std::size_t steps = period.results.size() * sizeof(StepResult);
  std::vector<std::uint8_t> bytes(sizeof own + steps);
  std::memcpy(bytes.data(), &own, sizeof own);
  std::memcpy(bytes.data() + sizeof own, period.results.data(), steps);
  const auto all = workers_.all_gather_bytes(bytes);
  results_.assign(all.size(), period.results);
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    TRIREME_ASSERT(all[worker].size() == bytes.size(), "worker {} sends {} bytes, expected {}",
                   worker, all[worker].size(), bytes.size());
    Notice theirs;
    std::memcpy(&theirs, all[worker].data(), sizeof theirs);
    std::memcpy(results_[worker].data(), all[worker].data() + sizeof theirs, steps);
    const auto take_largest = [](std::int64_t& most, std::int64_t value) {
      most = std::max(most, value);
    };
    take_largest(period.requests.stop, theirs.requests.stop);
    take_largest(period.requests.save, theirs.requests.save);
    take_largest(period.requests.unwritten, theirs.requests.unwritten);
    take_largest(period.skipped_in_a_row, theirs.skipped_in_a_row);
  }
}

void IndependentWorkers::merge(Period& period) const { merge_workers(period.metrics, results_); }

void merge_workers(std::vector<report::StepMetrics>& metrics,
                   const std::vector<std::vector<StepResult>>& results) {
  double seconds = 0;
  for (const report::StepMetrics& step : metrics) seconds += step.seconds;
  const auto workers = static_cast<std::int64_t>(results.size());
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    std::vector<parallel::LossSum> sums;
    double norms = 0;
    auto most_severe = StepOutcome::sound;
    std::int64_t skipped = 0;
    for (const std::vector<StepResult>& worker : results) {
      const StepResult& step = worker[i];
      sums.push_back(step.loss);
      norms += step.gradient_norm;
      most_severe = std::max(most_severe, step.outcome);
      skipped += step.outcome == StepOutcome::sound ? 0 : 1;
    }
    add_pairwise(workers, [&](std::int64_t to, std::int64_t from) {
      parallel::LossSum& sum = sums[static_cast<std::size_t>(to)];
      sum.loss += sums[static_cast<std::size_t>(from)].loss;
      sum.weight += sums[static_cast<std::size_t>(from)].weight;
    });
    metrics[i].seconds = seconds / static_cast<double>(metrics.size());
    metrics[i].loss = sums.front().mean();
    metrics[i].gradient_norm = norms / static_cast<double>(workers);
    metrics[i].skipped = skipped == 0 ? ""
                                      : fmt::format("{} (by {} of {} workers)",
                                                    name_of(most_severe), skipped, workers);
  }
}

std::string IndependentWorkers::own_prefix() const {
  return workers_.rank() > 0 ? fmt::format("worker-{}/", workers_.rank()) : "";
}

void IndependentWorkers::load(const checkpoint::Reader& reader, Health& health,
                              std::vector<std::string>& notes) {
  const auto kept = kept_workers(reader);
  const bool same = kept && std::ssize(kept->each) == workers_.size();
  const bool own = same && kept->own_states;
  if (same) {
    health.from_json(kept->each[static_cast<std::size_t>(workers_.rank())],
                     reader.folder().string());
  } else {
    load_shared(reader, health, notes);
  }
  load_state(reader, own ? own_prefix() : "");
  load_outer_momentum(reader, notes);
}

void IndependentWorkers::load_outer_momentum(const checkpoint::Reader& reader,
                                             std::vector<std::string>& notes) {
  const Tensor& momentum = averaging_->outer_momentum();
  if (!momentum) return;
  const std::string first = job_.model.table().rows().front().name;
  if (reader.find(std::string(outer_momentum_name) + "/" + first) != nullptr) {
    const state::ModelState& state = replica().state();
    return checkpoint::load_pieces(reader, outer_momentum_name, state, momentum, false);
  }
  replica().ops().fill(momentum, 0);
  notes.emplace_back("it has no momentum of an outer optimizer, which begins at zero");
}

void IndependentWorkers::keep(checkpoint::State& state, const Health& health) const {
  state.extra["workers"] = {{"each", report::gather_json(health.to_json(), workers_)},
                            {"own_states", own_states()}};
}

std::vector<checkpoint::Piece> IndependentWorkers::pieces() const {
  std::vector<checkpoint::Piece> pieces =
      own_states() ? state_pieces(own_prefix(), {}) : Method::pieces();
  if (averaging_->outer_momentum()) {
    checkpoint::append_pieces(pieces, outer_momentum_name, replica().state(),
                              averaging_->outer_momentum(), false, all_writers());
  }
  return pieces;
}

double IndependentWorkers::least_bytes() const {
  const auto states = static_cast<std::int64_t>(replica().optimizer().states().size());
  const std::int64_t buffers = Averaging::summed_buffers(job_.config.average, states);
  return average_traffic(replica().stage(), workers_.size(), buffers);
}

std::map<std::string, double> IndependentWorkers::least_traffic(std::int64_t steps) const {
  auto least = Method::least_traffic(steps);
  const auto count = static_cast<double>(std::max<std::int64_t>(1, steps));
  if (averages_ > 0 && least_bytes() > 0) {
    least["data"] = least_bytes() * static_cast<double>(averages_) / count;
  }
  return least;
}

void IndependentWorkers::describe(RunSummary& summary, std::int64_t steps) const {
  const double each = seconds_ / static_cast<double>(std::max<std::int64_t>(1, averages_));
  summary.extra["averages"] = {{"workers", workers_.size()},
                               {"count", averages_},
                               {"least_bytes_each", least_bytes()},
                               {"seconds_each", each}};
  summary.lines.push_back(fmt::format(
      "averages: {} over {} workers in {} steps, each {:.3f} MB of a rank at least, in {:.1f} ms "
      "with the wait for the slowest worker",
      averages_, workers_.size(), steps, least_bytes() / 1e6, 1e3 * each));
}

}  // namespace trireme::data_parallel
