// The first server's further work where no worker waits for another.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data_parallel/parameter_server.hpp"
#include "trireme/data_parallel/tickets.hpp"
#include "trireme/train/checkpointer.hpp"
#include "trireme/train/evaluation.hpp"

#include "async.hpp"

namespace trireme::data_parallel {

/// What the first server knows before the run begins.
struct Beginning {
  train::ResumePoint point;
  std::vector<std::string> passed_over;  // checkpoints, and why
  train::Environment environment;
  double peak = 0;                  // operations per second of all workers; 0: not known
  nlohmann::json predicted_memory;  // of a worker, by use
};

/// Hands out tickets, gets every loss, reports, and decides when all workers pause for an
/// evaluation or a checkpoint.
class Conductor {
 public:
  /// Saves the shards of all servers; collective over them, called by the first.
  using Save = std::function<std::string(const checkpoint::State& state)>;
  /// Serves on `endpoint`, which must not have started yet; works in `queue`.
  Conductor(AsyncJob& job, comm::rpc::Endpoint& endpoint, WorkQueue& queue, Save save);
  Conductor(const Conductor&) = delete;
  Conductor& operator=(const Conductor&) = delete;

  /// What it keeps of a checkpoint beside the shards; adds to `notes`. Throws Error.
  void load(const checkpoint::Reader& reader, std::vector<std::string>& notes) {
    checkpointer_.take_tokenizer(reader, notes);
  }
  /// Before the endpoint starts.
  void begin(const Beginning& beginning);
  /// Trains to the last step, or to a signal; when it returns all workers have left.
  train::Ending run();
  /// Writes the summary; `servers` are accounts of all of them.
  void finish(const std::vector<nlohmann::json>& servers, const AsyncServer::Counts& counts);
  /// A worker has died. In the queue's turn.
  void lose(int worker, const std::string& why);
  /// Leaves in the record why the run ends with an exception.
  void record_failure(const std::string& why) noexcept { reporter_.failed(position_.step, why); }

 private:
  /// A global batch whose shares come in.
  struct Batch {
    double loss = 0, weight = 0, norms = 0;
    std::int64_t shares = 0, skipped = 0;
  };
  void serve(comm::rpc::Endpoint& endpoint);
  train::StopSources sources();
  void take(int worker, const messages::Outcome& outcome);
  void note_share(const Ticket& ticket, const messages::Outcome& outcome);
  void report_batch(const Batch& batch);
  void answer();
  /// Works until all before the fence is done.
  void drain();
  /// The next step after which something is to be done by all.
  std::int64_t next_fence() const;
  /// Throws Error where the blend is another one than workers have.
  void resume_blend(const train::ResumePoint& point);
  void evaluate();
  void save(train::Checkpointer::Failure failure);
  /// Ends the workers' work.
  void dismiss(train::Ending ending);
  nlohmann::json staleness_json(const AsyncServer::Counts& counts) const;

  AsyncJob& job_;
  const train::RunConfig& config_;
  WorkQueue& queue_;
  Save save_;
  data::Corpus corpus_;
  train::RunReporter reporter_;
  train::Checkpointer checkpointer_;
  int interrupted_ = 0;  // a signal that came to another rank
  train::StopPolicy stop_policy_;
  std::optional<Tickets> tickets_;
  std::map<int, comm::rpc::Call<messages::Work>> asking_;  // by worker
  std::map<std::int64_t, Batch> batches_;                  // by step, from 0
  std::map<std::int64_t, parallel::LossSum> parts_;        // of an evaluation
  std::map<int, nlohmann::json> accounts_;                 // of workers that have left
  std::map<int, std::string> lost_;                        // workers, and why
  train::Position position_;
  std::int64_t first_step_ = 0;  // updates done before this start
  std::int64_t skipped_in_a_row_ = 0;
  int stop_ = 0;  // as of StopPolicy::wanted
  Recorder::Clock::time_point step_begin_;
};

}  // namespace trireme::data_parallel
