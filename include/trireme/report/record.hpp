// A run's record: a folder with attempts/0001/ {run.json, metrics.jsonl, trace.json, summary.json
// and, by ReportConfig, mllog.txt}, written by rank 0, one attempt per start, never changed
// afterwards; and tensorboard/ with an event file of each start. Numbers that are not finite are
// written as the strings "nan", "inf" and
// "-inf" (core/json.hpp). docs/schemas describes every key; docs/formats.md the seals.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/report/config.hpp"
#include "trireme/report/formats.hpp"
#include "trireme/report/timing.hpp"

namespace trireme::report {

/// Of run.json and summary.json, as the key "format". 1 (where there is no such key) had no times
/// of single ranks, no least traffic and no warnings; 1 and 2 had no seals.
constexpr int record_format = 3, first_sealed_format = 3;

/// One training step, as metrics.jsonl and the step line show it.
struct StepMetrics {
  std::int64_t step = 0;    // 1-based; skipped updates count
  std::int64_t tokens = 0;  // seen since the beginning of training
  double loss = 0;          // mean over target tokens of the global batch, natural log
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;       // share of the peak; 0 when no peak is known
  std::string skipped;  // why the update was not made; empty: it was
};

/// The number of an attempt folder's name, or 0.
int attempt_number(const std::string& name);

/// The attempt folder of this start. Only rank 0 of the world makes one. A file that cannot be
/// written throws Error once and gets nothing more; the others go on.
class RunRecord {
 public:
  /// Makes `run_folder`/attempts/NNNN, the next number. Throws Error when it cannot be written.
  explicit RunRecord(const std::filesystem::path& run_folder, const ReportConfig& config = {});
  const std::filesystem::path& folder() const { return folder_; }
  void write_run(nlohmann::json run);  // run.json, atomically; adds "format"
  /// One line of metrics.jsonl, in the file when this returns.
  void write_step(const StepMetrics& metrics);
  void begin_evaluation(std::int64_t step);
  /// `sources`: the loss of each of several, by name.
  void write_evaluation(std::int64_t step, double loss, std::int64_t tokens,
                        const std::map<std::string, double>& sources = {});
  /// `event`: "save", "save failed", "stop", "failed", "lost" (a worker), "changed" (a setting).
  void write_event(std::int64_t step, const std::string& event, const std::string& text);
  /// trace.json in Chrome's trace format, for Perfetto: process = rank, thread = stream.
  void write_trace(const std::vector<std::vector<Span>>& spans_by_rank);
  /// summary.json, at the end; adds "format" and the seals of the other files. `whole`: nothing of
  /// the configured run is left to do. Where only mllog.txt cannot be ended, the summary is written
  /// with the key "incomplete" before the Error is thrown.
  void write_summary(nlohmann::json summary, bool whole = true);

 private:
  void append(const nlohmann::json& line);
  std::filesystem::path folder_;
  Descriptor metrics_;
  std::string seal_;  // of the last line of metrics.jsonl, or of that and run.json
  bool cut_ = false;  // metrics.jsonl has no end
  std::unique_ptr<MlLog> mllog_;
  std::unique_ptr<EventFile> events_;
};

/// Spans of all ranks, with the names they point to.
struct Trace {
  std::vector<std::vector<Span>> spans_by_rank;
  std::shared_ptr<std::set<std::string>> names;
};
/// Collective; rank 0 gets the first `limit` / ranks spans of each rank, the others an empty Trace.
/// Times count from each rank's own recorder, which a run resets after a barrier.
Trace gather_trace(const Recorder& recorder, comm::Communicator& world,
                   std::int64_t limit = 1'000'000);

/// Over all ranks: seconds of each section; a rank that never entered one counts as 0.
struct SectionTimes {
  std::string name;
  double minimum = 0, average = 0, maximum = 0;
};
/// Of the ranks' Recorder::seconds(), sorted by average, largest first.
std::vector<SectionTimes> section_table(const std::vector<nlohmann::json>& ranks);
/// The same, collective; rank 0 gets the table, the others an empty one.
std::vector<SectionTimes> gather_sections(const Recorder& recorder, comm::Communicator& world);
/// The `own` of every rank in rank order. Collective; rank `root` gets all of it, others nothing.
std::vector<nlohmann::json> gather_json(const nlohmann::json& own, comm::Communicator& world,
                                        int root = 0);

/// Bytes of one use of memory, predicted and measured.
struct MemoryRow {
  std::string name;
  std::int64_t predicted = 0;
  std::int64_t measured = 0;
  bool in_part = false;  // the prediction is known not to be of all of it
};
/// Collective; every rank gets, by use, the largest prediction and the largest measured peak over
/// ranks, and nothing for uses where both are 0. `in_part`: MemoryRow's.
std::vector<MemoryRow> gather_memory(const device::MemoryLedger& ledger,
                                     const std::map<device::Use, std::int64_t>& predicted,
                                     comm::Communicator& world,
                                     const std::set<device::Use>& in_part = {});
/// Whether every use that is predicted in full is what was predicted, to the byte.
bool as_predicted(const std::vector<MemoryRow>& rows);
/// The table as text, with a sum (of GPU and host apart), and a mark where measured differs from
/// predicted; another where the prediction is in part.
std::string memory_table(const std::vector<MemoryRow>& rows, bool gpu = false);

/// Of this machine, as records have it.
std::string host_name();

/// Where a run was made. The environment is rank 0's: the variables with which users and schedulers
/// steer libraries (SLURM_*, OMP_*, OMPI_MCA_*, TRIREME_*, …), without those that Open MPI's
/// launcher sets for itself and without any whose name suggests a secret. Collective; rank `root`
/// gets it, others without hosts.
nlohmann::json provenance(comm::Communicator& world,
                          const nlohmann::json& versions = nlohmann::json::object(), int root = 0);

/// "step  120/2000  loss 2.3456  norm 0.512  lr 3.0e-04  1.234 s  12345 tok/s  MFU 61.2 %  eta
/// 12:34"; the MFU only where it is known, eta only for finite `seconds_left` >= 0. Where that is
/// wider than `columns` (0: any width fits), lr, norm, MFU, seconds and tok/s go, in this order.
std::string step_line(const StepMetrics& metrics, std::int64_t total_steps, double seconds_left,
                      int columns = 0);

/// "12:34", "1:02:03" or "2d 03:04:05".
std::string duration_text(double seconds);

/// "Figure of Merit (FOM): 12345.6 tokens/s"; "Figure of Merit (FOM): none" unless it is finite and
/// above 0.
std::string figure_of_merit(double tokens_per_second);

}  // namespace trireme::report
