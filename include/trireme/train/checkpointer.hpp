// Resuming, saving and pruning, as the ranks of a run see it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/train/method.hpp"
#include "trireme/train/policies.hpp"

namespace trireme::train {

/// Knows what is saved. What a checkpoint holds and who writes it is the caller's.
class Checkpointer {
 public:
  /// What a save that fails does: end the run, or leave it with a warning.
  enum class Failure : std::uint8_t { stops, warns };

  /// All outlive it. `now`: for checkpoint.every_minutes.
  Checkpointer(const Job& job, const data::Dataset& dataset, RunReporter& reporter,
               std::function<double()> now = steady_seconds());

  /// On the root rank alone: takes the tokenizer that checkpoints keep from the dataset, or at
  /// resuming from the checkpoint where the dataset has none. Throws Error.
  void take_tokenizer();
  void take_tokenizer(const checkpoint::Reader& reader, std::vector<std::string>& notes);
  /// The run goes on from there; prints it with its notes.
  void resumed(const ResumePoint& point);

  /// A checkpoint at `position`, with what every method keeps in it.
  checkpoint::State state_at(const Position& position, nlohmann::json extra) const;
  /// Has `write` make `state` a checkpoint of the run folder, and prunes old ones on the root rank.
  /// AgreedError, the same on every rank, either stops the run or is a warning.
  void save(const checkpoint::State& state, Failure failure,
            const std::function<StartedSave()>& write);
  /// Makes the checkpoint exist that is being written in the background, if there is one; the run
  /// is after `step`.
  void settle(Failure failure, std::int64_t step);

  bool pending() const { return pending_ != nullptr; }
  /// This rank still writes in the background.
  bool unwritten() const { return pending_ && !pending_->written(); }
  /// Whether this step's checkpoint is in the run folder.
  bool saved(std::int64_t step) const { return saved_step_ == step; }
  /// Where to begin again, as the end of an error.
  std::string last_good() const;
  double longest_seconds() const { return longest_; }
  SavePolicy& policy() { return policy_; }

 private:
  void attempt(Failure failure, std::int64_t step, const std::function<void()>& work);
  void note_saved(const std::filesystem::path& folder, std::int64_t saved, std::int64_t step);

  const Job& job_;
  const data::Dataset& dataset_;
  RunReporter& reporter_;
  std::function<double()> now_;
  SavePolicy policy_;
  data::StoredTokenizer tokenizer_;  // the root's: what checkpoints keep
  std::int64_t saved_step_ = -1;     // of the newest checkpoint of this run folder
  std::string saved_folder_;         // the newest checkpoint, perhaps of another one
  std::unique_ptr<checkpoint::Save> pending_;
  double pending_since_ = 0, longest_ = 0;  // seconds
};

}  // namespace trireme::train
