// Training in which no worker waits for another: a job's last ranks hold the model, the first of
// them hands out the work, and nothing after the start is collective over the workers.
#pragma once

#include <atomic>
#include <string>

#include "trireme/comm/rpc.hpp"
#include "trireme/train/policies.hpp"

#include "served.hpp"

namespace trireme::data_parallel {

/// The time in which all ranks still start together, and need each other: one that dies or is
/// stopped ends all others, on all nodes and whatever the launcher lets live. Rank 0 finds it
/// silent, and all find rank 0 so.
class Starting {
 public:
  /// Collective over the session. `heartbeat`: seconds of silence that mean death.
  Starting(comm::Session& session, double heartbeat);
  Starting(const Starting&) = delete;
  Starting& operator=(const Starting&) = delete;
  /// Unless end() came before, the others find that this rank is silent.
  ~Starting();
  /// Once all ranks are watched otherwise, or leave together.
  void end();

 private:
  void lose(int rank, const std::string& why);

  comm::Session& session_;
  std::atomic<bool> over_ = false;
  comm::rpc::Endpoint beats_;
};

/// What all ranks of such a job know before it starts.
struct AsyncJob : ServedJob {
  AsyncJob(comm::Session& ranks, train::RunConfig& settled, const config::Fields& fields,
           const train::DeviceSource& devices, Starting& start)
      : ServedJob(ranks, settled, fields, devices), heartbeats(start) {}
  /// The endpoint of the run has started, and watches who dies; the watchdog, who stalls.
  void begin_watch() {
    heartbeats.end();
    starting.reset();
  }
  /// Whether other workers may continue when this one ends.
  bool may_lose_a_worker() const { return config.server.tolerate_failures && !starting; }

  Starting& heartbeats;
};

/// Signals that come to another rank than the first server, which decides about them.
class Interruption {
 public:
  Interruption(AsyncJob& job, comm::rpc::Endpoint& endpoint);
  /// Notifies the first server of the first signal that came; by the thread that made this.
  void notify();

 private:
  train::SignalWatch signals_;
  comm::rpc::Endpoint& endpoint_;
  int first_server_;
  bool notified_ = false;
};

/// One worker, from the start of its endpoint on, with all others. Returns how the job ended.
train::Ending work_async(AsyncJob& job, comm::rpc::Endpoint& endpoint);

/// data_parallel::run for servers that wait for nobody.
train::Ending run_async(comm::Session& session, train::RunConfig& config,
                        const config::Fields& fields, const train::DeviceSource& devices);

}  // namespace trireme::data_parallel
