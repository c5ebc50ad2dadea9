// What every rank of a run knows before it starts.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/core/config.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/train/compute_device.hpp"
#include "trireme/train/config.hpp"
#include "trireme/train/run_lock.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

/// The settings are agreed on by all ranks. The watchdog watches once `starting` has ended, which
/// is paused until then.
struct Job {
  /// Refuses what the method cannot be combined with before it asks for a device. Then settles
  /// device, layout and precision, checks the whole configuration and fills in what is derived.
  /// `ranks` are all ranks, parameter servers too; `fields` are bound to `settled`. All three must
  /// outlive this. Collective; throws AgreedError.
  Job(comm::Session& ranks, RunConfig& settled, const config::Fields& fields,
      const DeviceSource& devices);
  /// Takes the lock of train.output, before anything is read or written there; see RunLock.
  /// Collective over all ranks; throws AgreedError.
  void lock_output(comm::Communicator& everyone, int keeper = 0) {
    lock.emplace(everyone, config.train.output, keeper);
  }
  /// How this run writes checkpoints, which `writers` write together.
  checkpoint::FileLayout files(const comm::Session& writers) const;

  comm::Session& session;  // all ranks
  const RunConfig& config;
  ComputeDevice computes;
  device::MemoryLedger ledger;
  GridPlan plan;
  model::Transformer model;
  nlohmann::json resolved, provenance;  // the configuration as recorded
  int threads;                          // of this rank
  Recorder recorder;
  comm::Watchdog watchdog;
  std::optional<comm::Watchdog::Pause> starting;
  std::optional<RunLock> lock;  // of train.output
};

inline double seconds_since(Recorder::Clock::time_point begin) {
  return std::chrono::duration<double>(Recorder::Clock::now() - begin).count();
}

/// What ranks find out together before anything else: the same on all but for the provenance, which
/// rank `root` has whole.
struct Environment {
  nlohmann::json provenance;
  std::string shared_cores;  // a warning; mostly empty
};
/// Collective over all ranks of the job; throws AgreedError where they do not compute alike.
Environment probe_environment(const Job& job, comm::Communicator& everyone, int root = 0);

/// Operations per second of all `workers` together, by train.peak: 0, so much for each, or the sum
/// of what each measures by matrix products of the shapes of the model. CPUs measure in fast mode,
/// in workspace that is not the run's. `replica` is null on a rank that is no worker; so is
/// `progress` where none is shown. Collective over `world`; throws AgreedError where a rank cannot
/// measure.
double agree_on_peak(const RunConfig& config, comm::Communicator& world, int workers,
                     parallel::Replica* replica, report::PhaseProgress* progress = nullptr);

}  // namespace trireme::train
