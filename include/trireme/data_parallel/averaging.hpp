// Periodic averaging: independent workers, whose models become one after so many steps. McMahan et
// al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017); with an
// outer optimizer: Douillard et al., "DiLoCo" (2023).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/train/config.hpp"
#include "trireme/train/method.hpp"

namespace trireme::data_parallel {

using train::AverageConfig;

/// After which steps workers average: a function of what all of them know. Pure.
struct AverageSchedule {
  AverageConfig config;
  std::int64_t batch;      // sequences of all workers in a step
  std::int64_t windows;    // of one pass over the data
  std::int64_t last_step;  // always ends with an average
  /// After step `step` (from 1), up to which all workers together have seen `samples` sequences.
  /// With per_epoch = n: whenever another n-th of a pass is over.
  bool due(std::int64_t step, std::int64_t samples) const;
};

class Averaging {
 public:
  /// `replica`, which is alone (ReplicaOptions), `workers`, the ranks of other replicas at the same
  /// place, and `ledger`, the replica's, must outlive it.
  Averaging(const AverageConfig& config, parallel::Replica& replica, comm::Communicator& workers,
            std::int64_t bucket_elements, device::MemoryLedger& ledger);

  /// The parameters, the same for all workers now, are what the outer optimizer continues from:
  /// after they were made or loaded.
  void begin();
  /// Makes one model of the workers': parameters become their mean, in fp32 and by
  /// Communicator::all_reduce's tree, divided by the workers' number last; or with an outer
  /// optimizer what it makes of that mean. The optimizer's state is kept, averaged or zeroed. The
  /// parameters' bits are the same on every worker, and what units read of them too: `updates`, the
  /// same on all, is what stochastic rounding goes by. Collective over the workers.
  void average(std::int64_t updates);

  /// Outer momentum [layout.elements], fp32, the same on every worker; absent without an outer
  /// optimizer. Between begin() or an average and the next step the last model, which is the rest
  /// of the outer optimizer's state, is the parameters themselves.
  const Tensor& outer_momentum() const { return momentum_; }

  /// Bytes of the outer optimizer's state.
  static std::int64_t outer_bytes(const AverageConfig& config, const params::Layout& layout);
  /// Flat buffers of [layout.elements] fp32 that an average sums over the workers; `states`: that
  /// the optimizer keeps.
  static std::int64_t summed_buffers(const AverageConfig& config, std::int64_t states);

 private:
  /// Sums a flat buffer over the workers, in place, and multiplies it.
  void sum(const Tensor& flat, double factor);
  void step_outer();

  AverageConfig config_;
  parallel::Replica& replica_;
  comm::Communicator& workers_;
  std::int64_t bucket_elements_;
  device::Buffer outer_buffer_;
  Tensor last_, momentum_;  // [layout.elements]
  device::Stream stream_;
};

/// data_parallel.method = average: workers that train independently, and synchronize when their
/// models are averaged.
class IndependentWorkers final : public train::Method {
 public:
  IndependentWorkers(train::Job& job, comm::Grid& grid)
      : train::Method(job, grid), workers_(grid.group(comm::Axis::data)) {}

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
  std::optional<Averaging> averaging_;
  std::optional<AverageSchedule> schedule_;
  std::vector<std::vector<train::StepResult>> results_;  // by worker, of the last period
  std::int64_t averages_ = 0;                            // of this start
  double seconds_ = 0;  // of averages; waiting for workers is part of them
};

/// Makes the metrics of a period, which are one worker's, those of all workers, by their `results`.
void merge_workers(std::vector<report::StepMetrics>& metrics,
                   const std::vector<std::vector<train::StepResult>>& results);

}  // namespace trireme::data_parallel
