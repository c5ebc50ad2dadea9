// Which checkpoint a run continues from and what is loaded of it; saving and pruning, as the ranks
// of a run see it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/corpus.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/state/model_state.hpp"
#include "trireme/train/config.hpp"
#include "trireme/train/policies.hpp"
#include "trireme/train/reporter.hpp"

namespace trireme::train {

struct Position {
  std::int64_t step = 0;          // updates done
  std::int64_t samples = 0;       // sequences trained on: where the next step begins
  std::int64_t states_begin = 0;  // updates done when the optimizer's state was last zeroed
};

/// Where a run begins: at 0, or where a checkpoint ends.
struct ResumePoint {
  std::string folder;  // the checkpoint; empty: there is none
  Position position;
  std::int64_t rounded_for = 0;     // see Replica::refresh
  bool own = false;                 // of the run folder itself
  std::int64_t trained_length = 0;  // of the checkpoint's model; see ModelConfig
  std::vector<std::string> notes;   // for the user
  std::string blend_change;         // as data::Corpus::resume; empty: none
  std::string warning;              // empty: none
  nlohmann::json config;            // with which the checkpoint was made
  nlohmann::json blend;             // as data::Corpus::kept; null: none
  nlohmann::json packed;            // as data::Corpus::packed; null: none
  std::string data;                 // data.path of then
};
/// "key old → new" of each key that both have with different values, but for those that name the
/// start itself, such as train.output.
std::vector<std::string> changed_settings(const nlohmann::json& old, const nlohmann::json& now);
/// Throws Error where the checkpoint is damaged.
ResumePoint resume_point(const RunConfig& config, const checkpoint::Reader& reader);

/// The step folder to continue from by checkpoint.resume, "" for none; `passed_over`: broken ones.
std::string resume_folder(const RunConfig& config, std::vector<std::string>& passed_over);
/// Throws Error where the checkpoint is of another model or optimizer than the configuration's.
void check_checkpoint(const RunConfig& config, const checkpoint::Reader& reader);
/// resume_folder of rank 0, which alone gets `passed_over`. Collective over `world`.
std::string find_resume(const RunConfig& config, comm::Communicator& world,
                        std::vector<std::string>& passed_over);
/// Has all ranks `load` from `folder`, and where its data are damaged and checkpoint.resume = auto
/// from an older one of the run folder; then `report` gets the reason on every rank. A model or an
/// optimizer other than the configuration's is an error. Collective over `world`; throws
/// AgreedError. `line`: where rank 0 shows progress; may be null.
void load_newest(const RunConfig& config, comm::Communicator& world, std::string folder,
                 const std::function<void(const checkpoint::Reader& reader)>& load,
                 const std::function<void(const std::string& line)>& report,
                 report::ProgressLine* line);

/// Shows on `line` what is read of a checkpoint, as long as it lives; null: nowhere.
class LoadProgress {
 public:
  explicit LoadProgress(report::ProgressLine* line) : phase_(line, "load checkpoint") {}
  void follow(checkpoint::Reader& reader);

 private:
  report::PhaseProgress phase_;
  std::int64_t bytes_ = 0;
};

/// One buffer of the optimizer's state, the checkpoint's under `prefix`; zeros where the checkpoint
/// has weights alone. See checkpoint::load_pieces.
void load_optimizer(const checkpoint::Reader& reader, const std::string& prefix,
                    const state::ModelState& state, const Tensor& flat, bool sharded);

/// Takes over the checkpoint's tokenizer where the dataset has none, and notes where the two
/// differ, which probably is a mistake. Throws Error where the checkpoint's is damaged.
data::StoredTokenizer choose_tokenizer(const checkpoint::Reader& reader,
                                       const data::Dataset& dataset,
                                       std::vector<std::string>& notes);

/// What a checkpoint keeps of each of several independent workers.
struct KeptWorkers {
  std::vector<nlohmann::json> each;
  bool own_states = false;  // of the optimizer
};
/// Nothing where there were none. Throws Error where it is damaged.
std::optional<KeptWorkers> kept_workers(const checkpoint::Reader& reader);

/// A save that is made, or one that continues in the background.
struct StartedSave {
  std::filesystem::path folder;
  std::unique_ptr<checkpoint::Save> pending;  // null: it is made
};

/// Tracks the checkpoints of a run. The caller decides what a checkpoint holds and who writes it.
class Checkpointer {
 public:
  /// What a save that fails does: end the run, or leave it with a warning.
  enum class Failure : std::uint8_t { stops, warns };

  /// All outlive it. `now`: for checkpoint.every_minutes.
  Checkpointer(const Job& job, const data::Corpus& corpus, RunReporter& reporter,
               std::function<double()> now = steady_seconds());

  /// On the root rank alone: takes the tokenizer that checkpoints keep from the dataset, or at
  /// resuming from the checkpoint where the dataset has none. Throws Error.
  void take_tokenizer();
  void take_tokenizer(const checkpoint::Reader& reader, std::vector<std::string>& notes);
  void resumed(const ResumePoint& point);

  /// A checkpoint at `position`, with what every method keeps in it.
  checkpoint::State state_at(const Position& position, nlohmann::json extra) const;
  /// Has `write` make `state` a checkpoint of the run folder, and prunes old ones on the root rank.
  /// AgreedError, the same on every rank, either stops the run or is a warning.
  void save(const checkpoint::State& state, Failure failure,
            const std::function<StartedSave()>& write);
  /// Waits for the background save, if there is one, and completes its checkpoint; the run is after
  /// `step`.
  void settle(Failure failure, std::int64_t step);

  bool pending() const { return pending_ != nullptr; }
  bool unwritten() const { return pending_ && !pending_->written(); }
  bool saved(std::int64_t step) const { return saved_step_ == step; }
  /// Throws AgreedError where the last save failed: a run that ends so is not done. On all ranks.
  void require_saved() const;
  /// The update of step `step` was made, so the state before it was good.
  void note_sound(std::int64_t step);
  /// Where to begin again, as the end of an error: the newest checkpoint after which a step was
  /// sound. On all ranks.
  std::string last_good() const;
  double longest_seconds() const { return longest_; }
  /// The steps begin, or a save has ended: checkpoint.every_minutes are counted from now on.
  void restart_clock() { saved_at_ = now_(); }
  bool minutes_over() const {
    const double minutes = job_.config.checkpoint.every_minutes;
    return minutes > 0 && now_() - saved_at_ >= 60 * minutes;
  }

 private:
  void attempt(Failure failure, std::int64_t step, const std::function<void()>& work);
  void note_saved(const std::filesystem::path& folder, std::int64_t saved, std::int64_t step);

  const Job& job_;
  const data::Corpus& corpus_;
  RunReporter& reporter_;
  std::function<double()> now_;
  double saved_at_;
  data::StoredTokenizer tokenizer_;             // the root's: what checkpoints keep
  checkpoint::AuxiliaryFiles auxiliary_files_;  // the root's
  std::int64_t trained_length_ = 0;             // of the checkpoint that was resumed
  std::int64_t saved_step_ = -1;                // of the newest checkpoint of this run folder
  std::string saved_folder_;                    // the newest checkpoint, perhaps of another one
  std::int64_t newest_step_ = -1;               // its step
  std::string good_folder_;                     // the newest after which a step was sound
  std::int64_t sound_step_ = 0;                 // the last that was
  std::string failed_;                          // why the last save failed; empty: it did not
  std::unique_ptr<checkpoint::Save> pending_;
  double pending_since_ = 0, longest_ = 0;  // seconds
};

}  // namespace trireme::train
