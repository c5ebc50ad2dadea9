// One training run on one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/tokenizer.hpp"
#include "trireme/data_parallel/averaging.hpp"
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
inline double seconds_of(const std::vector<report::StepMetrics>& steps) {
  double sum = 0;
  for (const report::StepMetrics& step : steps) sum += step.seconds;
  return sum;
}

/// What a worker on its own notes of a step for the others.
struct WorkerStep {
  parallel::LossSum loss;  // of its share of the batch
  double gradient_norm = 0;
  std::int64_t verdict = 0;
};

/// The step folder to go on from by checkpoint.resume, "" for none; `broken` (rank 0): those passed
/// over. Collective over `world`.
std::string find_resume(const RunConfig& config, comm::Communicator& world,
                        std::vector<std::string>& broken);
/// Whether the checkpoint has weights alone: then the optimizer's state begins at zero.
bool imported(const checkpoint::Reader& reader);
/// One buffer of the optimizer's state, the checkpoint's under `prefix`, zeros where it is
/// imported; see checkpoint::load_pieces.
void load_optimizer(const checkpoint::Reader& reader, const std::string& prefix,
                    const state::ModelState& state, const Tensor& flat, bool sharded);
/// Has all ranks `load` from `folder`, and where its data are damaged and checkpoint.resume = auto
/// from an older one of the run folder; `tell` is told on every rank why. Returns the folder that
/// was loaded. A model or an optimizer other than the configuration's is an error. Collective over
/// `world`; throws AgreedError.
std::string load_newest(const RunConfig& config, comm::Communicator& world, std::string folder,
                        const std::function<void(const std::string& folder)>& load,
                        const std::function<void(const std::string& line)>& tell);

/// Words for an error that ends a run: where to begin again. `folder`: "" for none.
inline std::string last_good(const std::string& folder) {
  return folder.empty() ? "there is no checkpoint yet" : "the last good checkpoint is " + folder;
}

/// Where a run begins: at 0, or where a checkpoint ends.
struct ResumePoint {
  std::string folder;  // the checkpoint; empty: there is none
  std::int64_t step = 0, samples = 0;
  std::int64_t states_begin = 0;   // updates done when the optimizer's state was last zeroed
  bool own = false;                // of the run folder itself
  std::vector<std::string> notes;  // what is worth telling about it
};
/// Throws Error where what it says is damaged.
ResumePoint resume_point(const RunConfig& config, const checkpoint::Reader& reader);
/// Takes over the checkpoint's tokenizer where the dataset has none, and notes where the two
/// differ, which most likely is a mistake. Throws Error where the checkpoint's is damaged.
void take_tokenizer(const checkpoint::Reader& reader, const data::Dataset& dataset,
                    data::StoredTokenizer& tokenizer, std::vector<std::string>& notes);

/// Operations per second of all workers together, as train.peak says: 0, so much for each, or the
/// sum of what each finds by `measure` (null: this rank is none). Collective over `world`.
double agree_on_peak(const RunConfig& config, comm::Communicator& world, int workers,
                     const std::function<double()>& measure);
/// This rank's, by matrix products of the shapes of the model.
double measure_peak(parallel::Replica& replica, const RunConfig& config);
/// The peak in run.json, at the start and, beside `operations` per second that were made, at the
/// end of a run.
nlohmann::json peak_json(const RunConfig& config, double peak);
std::string peak_line(const RunConfig& config, double peak);
std::string mfu_line(const RunConfig& config, double operations, double peak);

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
  std::int64_t rounding_of(const std::filesystem::path& folder) const;
  void train_steps();
  /// One optimizer step on the next global batch; `meets`: after it workers on their own average.
  report::StepMetrics step(data::Loader& loader, bool meets);
  void check_placement();
  /// Shows the steps since the last time that all ranks met.
  void show_steps();
  /// Workers on their own tell each other what happened since they last did, and agree as
  /// agree_on_step does. Collective over the data axis.
  void meet();
  /// meet(), then makes one model of the workers'.
  void average();
  /// Makes of a worker's metrics those of all: the loss of the global batch and the mean of the
  /// workers' gradient norms; and takes for its `seconds` the mean of the steps since they last
  /// met, of which it is number `number`, so that the average's time is in each.
  void merge(report::StepMetrics& metrics, std::size_t number, double seconds);
  nlohmann::json averages_json() const;
  std::string averages_line() const;
  /// Whether a multiple of `every` lies among the steps since the last time that all ranks met.
  bool due(std::int64_t every) const { return every > 0 && step_ / every > met_before_ / every; }
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
  /// What ranks may see differently at a step's end; of several the largest counts.
  struct PendingRequests {
    std::int64_t stop = 0;       // as of stop_wanted
    std::int64_t save_due = 0;   // by the clock
    std::int64_t unwritten = 0;  // the save in the background is not
  };
  /// The gravest verdict of any rank whose step this is. Also agrees on wishes, which all-reduce
  /// grants at once and workers on their own when they meet. Collective over these ranks.
  Verdict agree_on_step(Verdict own);
  void grant(const PendingRequests& wishes);
  parallel::MakeMethod make_method();
  void begin_record();
  /// What this rank did in its steps: place, seconds of sections, communication.
  nlohmann::json account() const;
  void finish(Ending ending);
  /// Adds what the grid's groups have counted since the last reset to the steps' account.
  void count_traffic();
  bool is_root() const { return session_.rank() == 0; }
  void say(const std::string& line);
  void warn(const std::string& why) {  // nothing where it is empty
    if (!why.empty()) say("warning: " + why);
  }
  std::vector<checkpoint::Piece> pieces() const;
  /// Where an optimizer state is kept in checkpoints: under its name, or where workers have states
  /// of their own, but for the first, under the worker's too.
  std::string kept_name(const std::string& state, bool own) const;
  bool own_states() const { return averaging_ && config_.average.optimizer_state == "keep"; }
  /// Puts into `state` what each worker on its own has; collective over the data axis.
  void keep_workers(checkpoint::State& state) const;
  /// Takes it out again; whether each worker finds optimizer states of its own.
  bool load_workers(const checkpoint::Reader& reader, std::vector<std::string>& notes);
  void load_health(const nlohmann::json& kept, const checkpoint::Reader& reader);
  /// Zeroes it where the checkpoint has none.
  void load_outer_momentum(const checkpoint::Reader& reader, std::vector<std::string>& notes);
  nlohmann::json health_json() const;
  bool shards_state() const { return config_.parallel.zero > 0; }  // the optimizer's

  comm::Session& session_;
  comm::Grid& grid_;
  Servers* servers_;              // null: this rank's kind holds the model
  comm::Session& job_;            // all ranks, servers too
  comm::Communicator& everyone_;  // likewise
  Environment environment_;
  comm::Communicator& data_group_;
  comm::Communicator& members_;  // whose steps are one: all ranks, or a worker's on its own
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
  std::unique_ptr<data_parallel::Averaging> averaging_;  // absent: gradients are reduced
  std::map<device::Use, std::int64_t> predicted_;

  std::int64_t step_ = 0;          // updates done
  std::int64_t samples_ = 0;       // sequences trained on: where the next step begins
  std::int64_t states_begin_ = 0;  // updates done when the optimizer's state was last zeroed
  std::int64_t saved_step_ = -1;   // of the newest checkpoint of this run folder
  std::string saved_folder_;       // the newest checkpoint, perhaps of another one
  std::int64_t evaluated_step_ = -1;
  std::int64_t checked_step_ = -1;  // replicas compared after it
  std::int64_t first_step_ = 0;     // updates done before this attempt
  /// Updates after which all ranks last met, and the time before: with all-reduce in every step.
  std::int64_t met_step_ = 0, met_before_ = 0;
  std::vector<report::StepMetrics> unshown_;           // of the steps since then
  std::vector<WorkerStep> own_steps_;                  // the same, noted for other workers
  std::vector<std::vector<WorkerStep>> worker_steps_;  // by worker, when they have met
  std::int64_t skipped_in_a_row_ = 0;                  // at most, since all ranks last met
  double longest_period_ = 0;   // seconds of the steps from one time that all ranks met to the next
  std::int64_t averages_ = 0;   // of this attempt
  double average_seconds_ = 0;  // waiting for workers is part of them
  PendingRequests pending_requests_;
  bool record_fails_ = false, graphs_refused_ = false;
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
