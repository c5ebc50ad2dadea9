// data_parallel.method = average: workers that train independently, and synchronize when their
// models are averaged.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "trireme/data_parallel/averaging.hpp"
#include "trireme/train/method.hpp"

namespace trireme::data_parallel {

class IndependentWorkers final : public train::Method {
 public:
  IndependentWorkers(train::Job& job, comm::Grid& grid)
      : train::Method(job, grid), workers_(grid.group(comm::Axis::data)) {}

  void configure(parallel::ReplicaOptions& options) override { options.alone = true; }
  void configure(plan::MemoryQuestion& question) const override;
  void attach(parallel::Replica& replica) override;
  comm::Communicator& members() override { return grid_.model_group(); }
  void begin_steps(std::int64_t windows) override;
  /// Where an average is due, workers exchange what happened since the last one, and average.
  bool synchronize(train::Period& period, train::Position& position) override;
  /// Losses become those of the global batch, gradient norms the mean of the workers'. Seconds
  /// become the mean over the period, so that the average's time is in each step.
  void merge(train::Period& period) const override;
  parallel::Alike alike() const override {
    return own_states() ? parallel::Alike::parameters : parallel::Alike::state;
  }

  void load(const checkpoint::Reader& reader, train::Health& health,
            std::vector<std::string>& notes) override;
  void keep(checkpoint::State& state, const train::Health& health) const override;
  std::map<std::string, double> least_traffic(std::int64_t steps) const override;
  void describe(train::RunSummary& summary, std::int64_t steps) const override;

 private:
  std::vector<checkpoint::Piece> pieces() const override;
  void exchange(train::Period& period);
  /// Of the names of this worker's optimizer states in checkpoints; empty for the first worker.
  std::string own_prefix() const;
  bool own_states() const { return job_.config.average.states() == AverageConfig::States::keep; }
  /// Zeroes it where the checkpoint has none.
  void load_outer_momentum(const checkpoint::Reader& reader, std::vector<std::string>& notes);
  /// Bytes that an average sends at least from this rank.
  double least_bytes() const;

  comm::Communicator& workers_;
  std::optional<data_parallel::Averaging> averaging_;
  std::optional<AverageSchedule> schedule_;
  std::vector<std::vector<train::StepResult>> results_;  // by worker, of the last period
  std::int64_t averages_ = 0;                            // of this start
  double seconds_ = 0;  // of averages; waiting for workers is part of them
};

/// Makes the metrics of a period, which are one worker's, those of all workers, by their `results`.
void merge_workers(std::vector<report::StepMetrics>& metrics,
                   const std::vector<std::vector<train::StepResult>>& results);

}  // namespace trireme::data_parallel
