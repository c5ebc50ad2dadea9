// Training in which no worker waits for another: a job's last ranks hold the model, the first of
// them hands out the work, and nothing after the start is collective over the workers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/rpc.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/data_parallel/async_server.hpp"
#include "trireme/data_parallel/tickets.hpp"
#include "trireme/report/progress.hpp"
#include "trireme/report/record.hpp"
#include "trireme/train/compute_device.hpp"
#include "trireme/train/interrupts.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/setup.hpp"

#include "served.hpp"
#include "starting.hpp"
#include "trainer.hpp"

namespace trireme::train {

/// What all ranks of such a job know before it starts.
struct AsyncJob : ServedJob {
  /// As ServedJob; `fields` are of the configuration.
  AsyncJob(comm::Session& session, RunConfig& config, const config::Fields& fields,
           const DeviceSource& devices, Starting& start);
  /// The endpoint of the run has started, and watches who dies; the watchdog, who stalls.
  void begin_watch();
  /// Whether other workers may go on when this one ends.
  bool may_lose_a_worker() const { return config.server.tolerate_failures && !pause_; }

  nlohmann::json resolved, provenance;  // the configuration as recorded
  comm::Watchdog watchdog;

 private:
  Starting& starting_;
  std::optional<comm::Watchdog::Pause> pause_;
};

/// How this rank's endpoint watches others: workers and servers each other, and servers themselves.
comm::rpc::Options async_options(const AsyncJob& job);

/// One worker's life, from the start of its endpoint on, with all others. Returns how the job
/// ended.
Ending work_async(AsyncJob& job, comm::rpc::Endpoint& endpoint, Recorder& recorder);

/// Signals that come to another rank than the first server, which decides about them.
class Interruption {
 public:
  Interruption(AsyncJob& job, comm::rpc::Endpoint& endpoint);
  /// The first server, of the first one that came; by the thread that made it.
  void tell();

 private:
  SignalWatch signals_;
  comm::rpc::Endpoint& endpoint_;
  int first_server_;
  bool told_ = false;
};

/// What the first server knows before the run begins.
struct Beginning {
  ResumePoint point;
  std::vector<std::string> passed_over;  // checkpoints, and why
  Environment environment;
  double peak = 0;                  // operations per second of all workers; 0: not known
  nlohmann::json predicted_memory;  // of a worker, by use
};

/// The first server's further work: it hands out tickets, sees every loss, keeps the record, and
/// decides when all workers pause for an evaluation or a checkpoint.
class Conductor {
 public:
  /// Saves the shards of all servers; collective over them, called by the first.
  using Save = std::function<std::string(const checkpoint::State& state)>;
  /// Serves on `endpoint`, which must not have started yet; works in `queue`.
  Conductor(AsyncJob& job, comm::rpc::Endpoint& endpoint, data_parallel::WorkQueue& queue,
            Recorder& recorder, Save save);
  Conductor(const Conductor&) = delete;
  Conductor& operator=(const Conductor&) = delete;

  /// What it keeps of a checkpoint beside the shards; adds to `notes`. Throws Error.
  void load(const checkpoint::Reader& reader, std::vector<std::string>& notes);
  /// Before the endpoint starts.
  void begin(const Beginning& beginning);
  /// Trains to the last step, or to a signal; when it returns all workers have left.
  Ending run();
  /// Writes the summary; `servers` are accounts of all of them.
  void finish(const std::vector<nlohmann::json>& servers,
              const data_parallel::AsyncServer::Counts& counts);
  /// A worker has died. In the queue's turn.
  void lose(int worker, const std::string& why);
  /// Leaves in the record why the run ends with an exception.
  void record_failure(const std::string& why) noexcept;

 private:
  using Clock = Recorder::Clock;
  /// A global batch whose shares come in.
  struct Batch {
    double loss = 0, weight = 0, norms = 0;
    std::int64_t shares = 0, skipped = 0;
  };
  void take(int worker, const data_parallel::async::Outcome& outcome);
  void note_share(const data_parallel::Ticket& ticket,
                  const data_parallel::async::Outcome& outcome);
  void write_batch(const Batch& batch);
  void answer();
  /// Works until all before the fence is done.
  void drain();
  void look_at_signals();
  /// The next step after which something is to be done by all.
  std::int64_t next_fence() const;
  void evaluate();
  void save(bool last);
  void prune();
  void dismiss(Ending ending);
  void begin_record(const Beginning& beginning);
  nlohmann::json staleness_json(const data_parallel::AsyncServer::Counts& counts) const;
  void say(const std::string& line);

  AsyncJob& job_;
  const RunConfig& config_;
  comm::rpc::Endpoint& endpoint_;
  data_parallel::WorkQueue& queue_;
  Recorder& recorder_;
  Save save_;
  data::Dataset dataset_;
  data::StoredTokenizer tokenizer_;
  SignalWatch signals_;
  std::optional<double> time_limit_;
  std::optional<data_parallel::Tickets> tickets_;
  std::map<int, comm::rpc::Call<data_parallel::async::Work>> asking_;  // by worker
  std::map<std::int64_t, Batch> batches_;                              // by step, from 0
  std::map<std::int64_t, parallel::LossSum> parts_;                    // of an evaluation
  std::map<int, nlohmann::json> accounts_;                             // of workers that have left
  std::map<int, std::string> lost_;                                    // workers, and why
  std::int64_t step_ = 0, samples_ = 0, states_begin_ = 0;
  std::int64_t saved_step_ = -1, evaluated_step_ = -1;
  std::string saved_folder_;
  std::int64_t skipped_in_a_row_ = 0;
  std::int64_t steps_of_attempt_ = 0;
  int told_ = 0;  // a signal that came to another rank
  int stop_ = 0;  // a signal, or −1 for time; 0: none
  double peak_ = 0;
  double last_loss_ = 0, last_evaluation_ = 0, trained_seconds_ = 0, longest_step_ = 0;
  Clock::time_point begin_, step_begin_;
  std::unique_ptr<report::RunRecord> record_;
  std::unique_ptr<report::ProgressLine> progress_;
};

/// train::run for servers that wait for nobody.
Ending run_async(comm::Session& session, RunConfig& config, const config::Fields& fields,
                 const DeviceSource& devices);

}  // namespace trireme::train
