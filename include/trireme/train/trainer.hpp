// One training run on one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/train/account.hpp"
#include "trireme/train/checkpointer.hpp"
#include "trireme/train/inject.hpp"
#include "trireme/train/method.hpp"
#include "trireme/train/policies.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

class Trainer {
 public:
  /// `grid` has the ranks that train. All must outlive it. Collective.
  Trainer(Job& job, comm::Grid& grid, Method& method);
  /// Resumes if there is something to resume, trains to the last step, evaluates, saves, and
  /// reports. An exception that ends it is in the record.
  Ending run();

 private:
  using Failure = Checkpointer::Failure;
  void begin();
  void resume(std::string folder);
  /// Throws AgreedError where the data do not last until the last step (data::Corpus::check_end).
  void check_end() const;
  /// Returns why the run stops ahead of its last step (StopPolicy::wanted), or 0.
  int train_steps();
  Ending stop_early(int stop);
  Ending complete();

  /// One optimizer step on the next global batch. Returns whether all ranks have synchronized.
  bool step(data::Loader& loader);
  std::vector<parallel::HostMicrobatch> load_batches(data::Loader& loader);
  /// Queues forward and backward.
  void compute(const std::vector<parallel::HostMicrobatch>& batches);
  /// Waits for the step's sums and agrees whether it counts.
  StepResult agree_on_step();
  /// Updates the model, or skips the update; returns the learning rate.
  double update(const StepResult& result);
  /// Whether a multiple of `every` is among the steps of the period.
  bool due(std::int64_t every) const;
  void check_placement();

  /// Records and shows the steps of the period. Throws AgreedError after too many skipped ones.
  void report_steps();
  void evaluate();
  void save(Failure failure);
  void settle_save(Failure failure);

  MemoryPrediction predict_memory() const;
  void begin_record(const Environment& environment, double peak);
  /// Operations per second of all ranks, as train.peak says. Collective.
  double measure_peak();
  /// By train.predict, before the run's memory is taken; null where it is off. Collective.
  nlohmann::json predict_step();
  /// The same measured again; 0 where it is not measured. Collective.
  double peak_at_end();
  /// What this rank did in its steps: place, seconds of sections, communication.
  nlohmann::json account() const;
  void finish(Ending ending);

  Job& job_;
  comm::Grid& grid_;
  Method& method_;
  data::Corpus corpus_;
  std::vector<data::Corpus::Split> validation_;
  RunReporter reporter_;
  nlohmann::json predicted_step_;  // see RunStart; known to the root alone
  // Made after the prediction, which plans units for other ranks: they keep the last plan. Nor is
  // its memory taken while the machine is measured.
  parallel::Replica replica_;
  MemoryPrediction predicted_;
  StepAccount account_;
  StopPolicy stop_policy_;
  Checkpointer checkpointer_;
  FaultInjector faults_;
  Health health_;
  device::Stream agreement_stream_;
  Position position_;
  Period period_;
  std::int64_t checked_step_ = -1;  // replicas compared after it
};

/// Trains on a grid of all ranks of the session. Collective.
template <class SomeMethod>
Ending run_on_grid(comm::Session& session, RunConfig& config, const config::Fields& fields,
                   const DeviceSource& devices) {
  Job job(session, config, fields, devices);
  comm::Grid grid(job.session, job.plan.shape, job.ledger, grid_options(job.config));
  job.computes.note_free_bytes("with_groups");
  SomeMethod method(job, grid);
  Trainer trainer(job, grid, method);
  return comm::or_abandon(grid, [&] { return trainer.run(); });
}

}  // namespace trireme::train
