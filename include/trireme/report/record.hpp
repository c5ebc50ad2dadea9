// A run's record: a folder with attempts/0001/ {run.json, metrics.jsonl, trace.json}, written by rank 0, one attempt
// per start, never changed afterwards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/recorder.hpp"

namespace trireme::report {

/// One training step, as metrics.jsonl and the step line show it.
struct StepMetrics {
  std::int64_t step = 0;  // 1-based: after this many updates
  std::int64_t tokens = 0;  // seen since the beginning of training
  double loss = 0;          // mean over target tokens of the global batch, natural log
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;  // share of the peak; 0 when no peak is known
};

/// The attempt folder of this start. Only rank 0 of the world makes one.
class RunRecord {
 public:
  /// Makes `run_folder`/attempts/NNNN, the next number. Throws Error when it cannot be written.
  explicit RunRecord(const std::filesystem::path& run_folder);
  const std::filesystem::path& folder() const { return folder_; }
  void write_run(const nlohmann::json& run);  // run.json, atomically
  void write_step(const StepMetrics& metrics);
  void write_evaluation(std::int64_t step, double loss, std::int64_t tokens);
  void write_trace(const std::vector<std::vector<Span>>& spans_by_rank);
  void write_summary(const nlohmann::json& summary);  // summary.json, at the end

 private:
  std::filesystem::path folder_;
  std::ofstream metrics_;
};

/// Over all ranks: seconds of each section.
struct SectionTimes {
  std::string name;
  double minimum = 0, average = 0, maximum = 0;
};
/// Collective; every rank gets the table, sorted by average, largest first.
std::vector<SectionTimes> gather_sections(const Recorder& recorder, comm::Communicator& world);
/// The table as text: section, min, average, max seconds, share of `total` seconds.
std::string timing_table(const std::vector<SectionTimes>& sections, double total);

/// Hosts, time, user's environment (SLURM_*, OMP_*, OMPI_*, TRIREME_*), CPU and library versions: what an
/// auditor asks. Collective.
nlohmann::json provenance(comm::Communicator& world);

/// The line shown for one step. `live` rewrites the line on a terminal.
std::string step_line(const StepMetrics& metrics, std::int64_t total_steps, double seconds_left);

/// "Figure of Merit (FOM): 12345.6 tokens/s".
std::string figure_of_merit(double tokens_per_second);

}  // namespace trireme::report
