// Reads records of runs: merges the attempts of a run and decides whether it is valid.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/report/statistics.hpp"
#include "trireme/report/timing.hpp"

namespace trireme::report {

/// A line of metrics.jsonl; see StepMetrics.
struct RecordedStep {
  std::int64_t step = 0, tokens = 0;
  double loss = 0, gradient_norm = 0, seconds = 0;
  double tokens_per_second = 0, mfu = 0;  // 0: the line has none
  std::string skipped;
  int attempt = 0;         // its number
  std::int64_t place = 0;  // in its attempt, from 1
};
struct RecordedEvaluation {
  std::int64_t step = 0;
  double loss = 0;
};
struct RecordedEvent {
  std::int64_t step = 0;
  std::string event, text;
};

/// Bytes and seconds of a rank's step over one axis, and the least bytes that it must send.
struct Volume {
  double bytes = 0, least = 0, seconds = 0;
};
/// One rank's steps: seconds of sections, summed over the attempt.
struct RankAccount {
  int rank = 0, tensor = 0, pipeline = 0, data = 0;
  bool server = false;  // a parameter server
  std::string host;     // empty in older records
  std::map<std::string, double> sections;
  std::map<std::string, Volume> communication;
};

/// What figures depend on, from run.json.
struct RunFacts {
  int ranks = 0, tensor = 1, context = 1, pipeline = 1, data = 1, servers = 0;
  int threads = 1, nodes = 1;
  std::string method = "allreduce";  // data_parallel.method
  std::int64_t batch = 0, micro_batch = 0, sequence = 0, layers = 0, parameters = 0;
  std::int64_t steps = 0;  // configured
  int zero = 0, virtual_stages = 1;
  std::string schedule, precision, device, processor, versions, start;
  double flops_per_token = 0;
  double peak = 0;  // operations per second of all ranks; 0: unknown. Run::facts: the better
  double peak_at_start = 0, peak_at_end = 0;  // of the attempt; 0: not measured
  std::string peak_kind;                      // measured or nominal
  std::int64_t micro_batches() const { return micro_batch > 0 ? batch / data / micro_batch : 0; }
  /// "tensor 2 × pipeline 1 × data 4", with servers and method where they are not the usual ones.
  std::string layout() const;
};

struct Attempt {
  int number = 0;
  std::filesystem::path folder;
  nlohmann::json run, summary;  // null where the file is not there
  std::vector<RecordedStep> steps;
  std::vector<RecordedEvaluation> evaluations;
  std::vector<RecordedEvent> events;
  bool cut = false;  // the last line of metrics.jsonl has no end
  bool sealed = false;
  /// Files and lines that are not as they were written, and sealed files that give no figure and
  /// are missing. One phrase each.
  std::vector<std::string> changes, missing;
  /// Of attempts that made steps and have a run.json; set by read_run().
  RunFacts facts;
  /// Equal where steps of two attempts may be compared: essentials, degrees, hosts, batch,
  /// micro-batch, and what a step does beside training. Empty: unknown, equal to no other.
  std::string step_class;
};

/// A run whose `faults` are not empty is INVALID: nothing below may become a figure.
struct Run {
  std::string name;   // the path given, or the one found below it
  std::string label;  // of its layout in a scaling study; empty: it is of none
  std::filesystem::path folder;
  std::vector<Attempt> attempts;
  /// The attempt that `facts` and `ranks` describe: the last of the class with the most counted
  /// steps.
  std::size_t chosen = 0;
  RunFacts facts;
  /// Of all attempts. Where an attempt repeats steps of an earlier one, the later ones are kept.
  std::vector<RecordedStep> steps;
  std::vector<RecordedEvaluation> evaluations;
  std::vector<RankAccount> ranks;  // of the chosen attempt; empty in records of format 1
  TimeAccount time;                // of the chosen attempt; no rows where its record has none
  std::vector<std::string> faults, notes;
  /// Why its record lacks something at its end: the run was killed, still runs, or its disk was
  /// full. Empty: it is complete. An incomplete run has figures of what is there, in no comparison.
  std::string incomplete;
  bool valid() const { return faults.empty(); }
  const Attempt& attempt() const { return attempts[chosen]; }
};

/// Run folders (with attempts/) and attempt folders among `paths` and, at most four levels deep,
/// below them, in order of name, each once. Throws Error for a path that has none.
std::vector<std::filesystem::path> find_runs(const std::vector<std::string>& paths);

struct ReadOptions {
  std::int64_t warm_up = -1;  // uncounted steps of each attempt; -1: see warm_up_of
  bool shared_cores = false;  // ranks may share cores
  /// By default the first 5 steps of an attempt, or a quarter of it, rounded up, where it has fewer
  /// than 20.
  std::int64_t warm_up_of(std::int64_t steps_of_attempt) const {
    if (warm_up >= 0) return warm_up;
    return steps_of_attempt >= 20 ? 5 : (steps_of_attempt + 3) / 4;
  }
};

/// A damaged record does not throw: the run becomes INVALID, with the file and the line.
Run read_run(const std::filesystem::path& folder, const ReadOptions& options = {});

/// The beginning of a note or a fault about shared cores.
inline constexpr const char* shared_cores_text = "ranks share cores";

/// Adds to `run.faults` what in an attempt does not agree with its steps: tokens, speeds, MFU and
/// the totals of summary.json.
void check_totals(const Attempt& attempt, Run& run);

/// Adds to `run.faults` what makes the run INVALID, and to `run.notes` what a reader should know.
/// Throws Error where the record is damaged. read_run() calls it.
void find_faults(Run& run, const ReadOptions& options);

/// One attempt's files; throws Error "FILE:LINE: …" for what is damaged.
Attempt read_attempt(const std::filesystem::path& folder);

/// Steps of the chosen attempt and of those of its class, without warm-up and skipped updates.
std::vector<const RecordedStep*> counted_steps(const Run& run, const ReadOptions& options);

/// Means over the ranks, by axis.
std::map<std::string, Volume> mean_volumes(const Run& run);

/// Figures of one valid run over its counted steps.
struct Figures {
  Estimate seconds;            // of a step
  Estimate tokens_per_second;  // the figure of merit
  Estimate mfu;                // n = 0 where no peak is known, or it is impossible
  double impossible_mfu = 0;   // its greatest value, where that is above 1
  std::int64_t left_out = 0;   // steps recorded and not counted
  /// Of the last evaluation, and of the last step; NaN where there is none.
  double validation_loss = 0, loss = 0;
};
Figures figures_of(const Run& run, const ReadOptions& options);

}  // namespace trireme::report
