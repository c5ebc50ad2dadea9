// What a run writes and prints: the record of this start, the progress line, warnings and notes,
// and the closing summary.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/data/corpus.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/report/progress.hpp"
#include "trireme/report/record.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/train/job.hpp"

namespace trireme::train {

/// What a start's record begins with, beside the job and the environment.
struct RunStart {
  std::int64_t step = 0;            // updates done before
  std::int64_t samples = 0;         // consumed before
  double peak = 0;                  // operations per second of all workers; 0: not known
  std::string layout;               // as printed
  nlohmann::json place;             // ranks by axis, and servers
  nlohmann::json predicted_memory;  // bytes by use
  nlohmann::json predicted_step;    // see predict_step_time; null: nobody asked
  nlohmann::json extra;             // further keys of run.json
  std::vector<std::string> lines, warnings, notes;  // printed in this order
};

/// What a start's summary is made of, beside the steps that the reporter has seen.
struct RunSummary {
  std::vector<nlohmann::json> ranks;  // an account of each; see account.hpp
  std::vector<report::SectionTimes> sections;
  std::vector<report::MemoryRow> memory;
  std::int64_t resident = 0;       // bytes, the most of any rank
  double peak = 0;                 // measured again at the end; 0: it was not
  nlohmann::json extra;            // further keys of summary.json
  std::vector<std::string> lines;  // further lines, after those of communication
};

/// The root rank alone prints and writes. On other ranks a reporter keeps the figures of steps, so
/// that all ranks can name them in an error.
class RunReporter {
 public:
  /// `job` must outlive it.
  RunReporter(const Job& job, bool root);
  /// Makes the folder of this start's record. Throws Error.
  void open();
  bool is_root() const { return root_; }

  /// Lines that stay, above the progress line; nothing with train.quiet.
  void print(const std::string& line);
  void note(const std::string& text) { print("note: " + text); }
  /// On standard error, with train.quiet too; nothing where `text` is empty.
  void warn(const std::string& text);
  /// The line that steps rewrite; null with train.quiet and on other ranks.
  report::ProgressLine* progress() const { return progress_.get(); }
  /// Warns once that a device refused to capture graphs.
  void warn_of_graphs(const std::string& refusal);

  /// Writes run.json and prints the first lines.
  void begin(const RunStart& start, const Environment& environment, const data::Corpus& corpus);
  /// Adds to a step's metrics what follows from its seconds, records them, and shows them where a
  /// line is due or `notable`.
  void step(report::StepMetrics metrics, bool notable = false);
  void begin_evaluation(std::int64_t step);
  void evaluation(std::int64_t step, const Evaluation& found);
  void no_evaluation(std::int64_t step, std::int64_t tokens);
  void event(std::int64_t step, const std::string& kind, const std::string& text);
  /// The run ends ahead of its last step; finish() prints it last.
  void stop(std::int64_t step, const std::string& why);
  /// Why the run ends with an exception.
  void failed(std::int64_t step, const std::string& why) noexcept;
  void write_trace(const report::Trace& trace);
  /// Writes summary.json and prints the closing tables.
  void finish(RunSummary summary);

  /// Of the last step; its `step` is 0 before the first.
  const report::StepMetrics& last() const { return last_; }
  std::int64_t steps() const { return static_cast<std::int64_t>(seconds_.size()); }
  bool evaluated(std::int64_t step) const { return evaluated_step_ == step; }
  /// train.evaluate_at_end; a start without a step evaluates only where the user set it.
  bool evaluates_at_end() const;

 private:
  /// Warns once where the record cannot be written; summary.json names the reason.
  void record(const std::function<void(report::RunRecord&)>& write);
  void show(const report::StepMetrics& metrics, bool notable);
  void print_tables(const RunSummary& summary, const nlohmann::json& json);
  /// The line about MFU by the better peak, or why there is none.
  void print_mfu(double speed, double peak_at_end);

  const Job& job_;
  bool root_;
  std::function<double()> elapsed_;
  std::unique_ptr<report::RunRecord> record_;       // the root's
  std::unique_ptr<report::ProgressLine> progress_;  // the root's, unless quiet
  double peak_ = 0;                                 // at the start
  nlohmann::json predicted_step_;                   // likewise; null: nobody asked
  bool peak_too_low_ = false;
  std::int64_t first_step_ = 0;
  std::vector<double> seconds_;  // of this start's steps
  report::StepMetrics last_;
  std::int64_t evaluated_step_ = -1;
  double last_evaluation_ = 0;
  std::string stopped_;       // the line; empty: the run goes to its end
  std::string record_fault_;  // why the record lacks lines or files; empty: it lacks none
  bool graphs_refused_ = false;
};

}  // namespace trireme::train
