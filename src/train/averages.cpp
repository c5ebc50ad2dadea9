// Workers on their own: what they tell each other when they meet, the average that they meet for,
// and what is shown of the steps in between.
#include <algorithm>
#include <cstring>

#include "trireme/core/pairwise.hpp"
#include "trireme/train/traffic.hpp"

#include "trainer.hpp"

namespace trireme::train {

namespace {

/// Of the steps since the last average, what a worker tells the others; as bytes they are its
/// wishes, then its steps.
struct Told {
  double stop = 0, save_due = 0, unwritten = 0, skipped_in_a_row = 0;
};

}  // namespace

void Trainer::meet() {
  watchdog_->beat("wait for workers");
  const Section section(recorder_, "wait for workers");
  // A worker that waits for a slower one has not stalled; that one is watched.
  const comm::Watchdog::Pause pause(*watchdog_);
  const Told own{
      static_cast<double>(pending_requests_.stop), static_cast<double>(pending_requests_.save_due),
      static_cast<double>(pending_requests_.unwritten), static_cast<double>(skipped_in_a_row_)};
  std::vector<std::uint8_t> bytes(sizeof own + own_steps_.size() * sizeof(WorkerStep));
  std::memcpy(bytes.data(), &own, sizeof own);
  std::memcpy(bytes.data() + sizeof own, own_steps_.data(), own_steps_.size() * sizeof(WorkerStep));
  const auto all = data_group_.all_gather_bytes(bytes);
  worker_steps_.assign(all.size(), own_steps_);
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    TRIREME_ASSERT(all[worker].size() == bytes.size(), "worker {} tells {} bytes, expected {}",
                   worker, all[worker].size(), bytes.size());
    Told told;
    std::memcpy(&told, all[worker].data(), sizeof told);
    std::memcpy(worker_steps_[worker].data(), all[worker].data() + sizeof told,
                bytes.size() - sizeof told);
    pending_requests_.stop = std::max(pending_requests_.stop, static_cast<std::int64_t>(told.stop));
    pending_requests_.save_due =
        std::max(pending_requests_.save_due, static_cast<std::int64_t>(told.save_due));
    pending_requests_.unwritten =
        std::max(pending_requests_.unwritten, static_cast<std::int64_t>(told.unwritten));
    skipped_in_a_row_ =
        std::max(skipped_in_a_row_, static_cast<std::int64_t>(told.skipped_in_a_row));
  }
  grant(pending_requests_);
}

void Trainer::average() {
  const auto begin = Clock::now();
  meet();
  {
    watchdog_->beat("average weights");
    const Section section(recorder_, "average weights");
    averaging_->average(step_);
    replica_.wait();  // so that its time is the average's
  }
  if (config_.average.optimizer_state == "reset") states_begin_ = step_;
  ++averages_;
  average_seconds_ += seconds_since(begin);
}

void Trainer::merge(report::StepMetrics& metrics, std::size_t number, double seconds) {
  const double factor = metrics.seconds / seconds;
  metrics.seconds = seconds;
  metrics.tokens_per_second *= factor;
  metrics.mfu *= factor;
  step_seconds_[step_seconds_.size() - unshown_.size() + number] = seconds;
  std::vector<parallel::LossSum> sums;
  double norms = 0;
  auto gravest = Verdict::sound;
  std::int64_t skipped = 0;
  for (const std::vector<WorkerStep>& worker : worker_steps_) {
    const WorkerStep& step = worker[number];
    sums.push_back(step.loss);
    norms += step.gradient_norm;
    const auto verdict = static_cast<Verdict>(step.verdict);
    gravest = std::max(gravest, verdict);
    skipped += verdict == Verdict::sound ? 0 : 1;
  }
  const auto workers = static_cast<std::int64_t>(sums.size());
  add_pairwise(workers, [&](std::int64_t to, std::int64_t from) {
    parallel::LossSum& sum = sums[static_cast<std::size_t>(to)];
    sum.loss += sums[static_cast<std::size_t>(from)].loss;
    sum.weight += sums[static_cast<std::size_t>(from)].weight;
  });
  metrics.loss = sums.front().mean();
  metrics.gradient_norm = norms / static_cast<double>(workers);
  metrics.skipped =
      skipped == 0 ? ""
                   : fmt::format("{} (by {} of {} workers)", name_of(gravest), skipped, workers);
}

void Trainer::show_steps() {
  const double seconds = seconds_of(unshown_);
  longest_period_ = std::max(longest_period_, seconds);
  const auto steps = static_cast<double>(unshown_.size());
  for (std::size_t i = 0; i < unshown_.size(); ++i) {
    if (averaging_) merge(unshown_[i], i, seconds / steps);
    show(unshown_[i]);
  }
  last_loss_ = unshown_.back().loss;
  last_norm_ = unshown_.back().gradient_norm;
  unshown_.clear();
  own_steps_.clear();
}

nlohmann::json Trainer::averages_json() const {
  const auto states = static_cast<std::int64_t>(replica_.optimizer().states().size());
  const std::int64_t buffers = data_parallel::Averaging::summed_buffers(config_.average, states);
  const auto count = static_cast<double>(std::max<std::int64_t>(1, averages_));
  return {{"workers", data_group_.size()},
          {"count", averages_},
          {"least_bytes_each", average_traffic(replica_.stage(), data_group_.size(), buffers)},
          {"seconds_each", average_seconds_ / count}};
}

std::string Trainer::averages_line() const {
  const nlohmann::json averages = averages_json();
  return fmt::format(
      "averages: {} over {} workers in {} steps, each {:.3f} MB of a rank at least, in {:.1f} ms "
      "with the wait for the slowest worker",
      averages_, data_group_.size(), step_seconds_.size(),
      averages.at("least_bytes_each").get<double>() / 1e6,
      1e3 * averages.at("seconds_each").get<double>());
}

}  // namespace trireme::train
