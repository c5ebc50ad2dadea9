// One training run on one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/tokenizer.hpp"
#include "trireme/optim/loss_scale.hpp"
#include "trireme/report/progress.hpp"
#include "trireme/report/record.hpp"
#include "trireme/train/compute_device.hpp"
#include "trireme/train/health.hpp"
#include "trireme/train/inject.hpp"
#include "trireme/train/interrupts.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/setup.hpp"

#include "served.hpp"

namespace trireme::train {

inline double seconds_since(Recorder::Clock::time_point begin) {
  return std::chrono::duration<double>(Recorder::Clock::now() - begin).count();
}

/// What all ranks of a job, its servers too, tell each other at its end.
struct Closing {
  std::vector<nlohmann::json> ranks;  // accounts
  std::int64_t resident = 0;          // the most of any
  std::vector<report::SectionTimes> sections;
  report::Trace trace;
  Ending ending = Ending::done;  // what any rank says that is not done
};
/// Collective over `everyone`.
Closing close_job(comm::Communicator& everyone, const Recorder& recorder,
                  const nlohmann::json& account, Ending ending);

/// The step folder to go on from by checkpoint.resume, "" for none; `broken` (rank 0): those passed
/// over. Collective over `world`.
std::string find_resume(const RunConfig& config, comm::Communicator& world,
                        std::vector<std::string>& broken);
/// Throws Error where the checkpoint's model is not the configuration's.
void compare_models(const model::ModelConfig& config, const std::filesystem::path& folder);

class Trainer {
 public:
  /// `config` is valid. `session` and `grid` have the ranks that train, `servers` belong to them;
  /// null: there are none. Collective.
  Trainer(comm::Session& session, comm::Grid& grid, const ComputeDevice& computes,
          device::MemoryLedger& ledger, RunConfig config, const LayoutFacts& facts,
          const config::Fields& fields, Servers* servers = nullptr);
  /// Resumes if there is something to resume, trains to the last step, evaluates, saves, sums up.
  Ending run();
  /// Leaves in the record why the run ends with an exception, where this rank has one.
  void record_failure(const std::string& why) noexcept;

 private:
  using Clock = Recorder::Clock;
  void resume(std::string folder);
  /// What is worth telling about it.
  std::vector<std::string> load(const std::filesystem::path& folder);
  /// Takes over the checkpoint's tokenizer where the dataset has none; notes where they differ.
  void compare_tokenizers(const checkpoint::Reader& reader, std::vector<std::string>& notes);
  void train_steps();
  /// One optimiser step on the next global batch.
  report::StepMetrics step(data::Loader& loader);
  void check_placement();
  /// Writes to the record, on the rank that has one. A record that cannot be written is told of
  /// once and ends nothing.
  void record(const std::function<void(report::RunRecord&)>& write);
  void show(const report::StepMetrics& metrics);
  void evaluate();
  /// What a save that fails does: end the run, or leave it with a warning.
  enum class Failure : std::uint8_t { stops, warns };
  void save(Failure failure);
  /// Makes the checkpoint exist that is being written in the background, if there is one.
  void settle_save(Failure failure);
  void attempt_save(Failure failure, const std::function<void()>& work);
  void note_saved(const std::filesystem::path& folder, std::int64_t step);
  /// Throws AgreedError after too many skipped steps in a row.
  void stop_if_unhealthy();
  /// Why this rank would stop after this step: a signal's number, stop_for_time, or 0.
  int stop_wanted() const;
  std::string reason(int stop) const;
  bool fault_due(Fault::Kind kind) const;  // made on purpose
  void inject_into_batch(data::Batch& batch) const;
  void inject_into_gradients();
  void inject_into_weights();
  /// The gravest verdict of any rank. Also agrees on what else concerns the step's end: stop_ and
  /// save_due_. Collective.
  Verdict agree_on_step(Verdict own);
  parallel::MakeMethod make_method();
  void begin_record();
  /// What this rank did in its steps: place, seconds of sections, communication.
  nlohmann::json account() const;
  void finish(Ending ending);
  double peak_of_world();
  /// Adds what the grid's groups have counted since the last reset to the steps' account.
  void count_traffic();
  bool speaks() const { return session_.rank() == 0; }
  void say(const std::string& line);
  std::vector<checkpoint::Piece> pieces() const;
  bool shards_state() const { return config_.parallel.zero > 0; }  // the optimiser's

  comm::Session& session_;
  comm::Grid& grid_;
  Servers* servers_;              // null: this rank's kind holds the model
  comm::Session& job_;            // all ranks, servers too
  comm::Communicator& everyone_;  // likewise
  Surroundings surroundings_;
  comm::Communicator& data_group_;
  const ComputeDevice& computes_;
  device::MemoryLedger& ledger_;
  RunConfig config_;
  nlohmann::json resolved_, provenance_;  // the configuration as recorded
  Recorder recorder_;
  int threads_;
  std::unique_ptr<comm::Watchdog> watchdog_;
  data::Dataset dataset_;
  data::StoredTokenizer tokenizer_;  // rank 0: what checkpoints keep
  std::unique_ptr<data::TokenReader> valid_reader_;
  model::Transformer model_;
  parallel::Replica replica_;
  std::map<device::Use, std::int64_t> predicted_;

  std::int64_t step_ = 0;         // updates done
  std::int64_t samples_ = 0;      // sequences trained on: where the next step begins
  std::int64_t saved_step_ = -1;  // of the newest checkpoint of this run folder
  std::string saved_folder_;      // the newest checkpoint, perhaps of another one
  std::int64_t evaluated_step_ = -1;
  std::int64_t checked_step_ = -1;  // replicas compared after it
  bool record_fails_ = false;
  double peak_ = 0;  // operations per second of all ranks together
  std::int64_t attempt_tokens_ = 0;
  std::vector<double> step_seconds_;                            // of this attempt
  std::vector<std::pair<std::string, comm::Traffic>> traffic_;  // of the steps, by group
  std::map<std::string, double> evaluating_;                    // seconds of sections, in no step
  double last_loss_ = 0, last_norm_ = 0, last_evaluation_ = 0;
  static constexpr int stop_for_time = 1 << 20;  // beyond all signals
  int stop_ = 0;                                 // as of stop_wanted, agreed on
  bool save_due_ = false;
  bool save_written_ = false;  // the background save, by all ranks
  std::unique_ptr<checkpoint::Save> pending_save_;
  Clock::time_point pending_since_;
  double save_seconds_ = 0;  // the longest save so far
  Clock::time_point saved_at_;
  device::Stream agreement_stream_;
  Health health_;
  optim::LossScale loss_scale_;
  std::optional<double> time_limit_;  // seconds of this start
  std::vector<Fault> faults_;
  SignalWatch signals_;
  Clock::time_point begin_;
  std::unique_ptr<report::RunRecord> record_;       // rank 0
  std::unique_ptr<report::ProgressLine> progress_;  // rank 0
};

}  // namespace trireme::train
