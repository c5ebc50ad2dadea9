// What a whole run knows of its data-parallel method. The base class is all-reduce; other methods
// override what they do differently.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/pieces.hpp"
#include "trireme/comm/grid.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/plan/memory.hpp"
#include "trireme/report/record.hpp"
#include "trireme/train/checkpointer.hpp"
#include "trireme/train/health.hpp"
#include "trireme/train/job.hpp"
#include "trireme/train/reporter.hpp"

namespace trireme::train {

/// What ranks may see differently at a step's end; the largest value of any rank counts.
struct Requests {
  std::int64_t stop = 0;       // see StopPolicy::wanted
  std::int64_t save = 0;       // by the clock
  std::int64_t unwritten = 0;  // 1: the background save is not written yet
};

/// One step, as the ranks that make it together see it.
struct StepResult {
  parallel::LossSum loss;
  double gradient_norm = 0;
  StepOutcome outcome = StepOutcome::sound;
};

/// The steps since all ranks last synchronized: with all-reduce, one.
struct Period {
  std::vector<StepResult> results;
  std::vector<report::StepMetrics> metrics;  // of the same steps
  Requests requests;                         // of the last one
  std::int64_t skipped_in_a_row = 0;         // at most
};

class Method {
 public:
  /// `grid` has the ranks that train. Both outlive it.
  Method(Job& job, comm::Grid& grid) : job_(job), grid_(grid) {}
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;
  virtual ~Method() = default;

  /// Called before the replica is made: changes its options, and the question for its memory.
  virtual void configure(parallel::ReplicaOptions& /*options*/) {}
  virtual void configure(plan::MemoryQuestion& /*question*/) const {}
  /// The replica is made, which outlives this.
  virtual void attach(parallel::Replica& replica) { replica_ = &replica; }

  /// All ranks of the job, and those whose steps are one.
  virtual comm::Communicator& everyone() { return grid_.world(); }
  virtual comm::Communicator& members() { return grid_.world(); }

  /// The run begins: called before checkpoints are looked for. Collective.
  virtual void open() {}
  /// The steps begin, with the model loaded; `windows`: of one pass over the data.
  virtual void begin_steps(std::int64_t /*windows*/) {}
  /// A signal that another rank of the job has caught; 0: none.
  virtual int signal() const { return 0; }
  /// At the end of a step, whose result is the last in `period`. Returns whether all ranks have
  /// synchronized; then `period` has the requests of all of them.
  virtual bool synchronize(Period& /*period*/, Position& /*position*/) { return true; }
  /// Once all ranks have synchronized: makes a worker's metrics those of the whole run.
  virtual void merge(Period& /*period*/) const {}
  /// What ranks hold alike, see parallel::check_replicas.
  virtual parallel::Alike alike() const { return parallel::Alike::state; }
  /// The run ends in order: before the ranks' accounts are gathered.
  virtual void close() {}

  /// Fills the replica and `health`; adds to `notes`. Throws Error.
  virtual void load(const checkpoint::Reader& reader, Health& health,
                    std::vector<std::string>& notes);
  /// Adds what the method keeps beside the model. Collective.
  virtual void keep(checkpoint::State& /*state*/, const Health& /*health*/) const {}
  /// Writes a checkpoint; collective, throws AgreedError.
  virtual StartedSave save(const checkpoint::State& state, bool background);

  /// For the record: the beginning, the least bytes that a step sends by group, the communication
  /// that the grid does not count, and the summary.
  virtual void describe(RunStart& /*start*/) const {}
  virtual std::map<std::string, double> least_traffic(std::int64_t steps) const;
  virtual nlohmann::json further_traffic(std::int64_t /*steps*/) const {
    return nlohmann::json::object();
  }
  virtual void describe(RunSummary& /*summary*/, std::int64_t /*steps*/) const {}

 protected:
  virtual std::vector<checkpoint::Piece> pieces() const;
  /// Parameters and optimizer states, the latter's names after the prefix `own`; `writers` share
  /// out the latter, all data ranks the parameters.
  void load_state(const checkpoint::Reader& reader, const std::string& own);
  std::vector<checkpoint::Piece> state_pieces(const std::string& own,
                                              const checkpoint::Writers& writers) const;
  checkpoint::Writers all_writers() const;
  /// The part of load() outside the replica: `health`, of the first worker if the checkpoint has
  /// several.
  static void load_shared(const checkpoint::Reader& reader, Health& health,
                          std::vector<std::string>& notes);
  parallel::Replica& replica() const { return *replica_; }

  Job& job_;
  comm::Grid& grid_;

 private:
  parallel::Replica* replica_ = nullptr;
};

}  // namespace trireme::train
