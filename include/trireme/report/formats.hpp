// What a run writes for other people's tools: mllog.txt and event files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/core/files.hpp"
#include "trireme/report/config.hpp"

namespace trireme::report {

/// A run's events in the format of MLPerf's training benchmarks: lines of ":::MLLOG {json}", each
/// with namespace, time_ms, event_type, key, value and metadata.
///
/// One file per start, in the order: cache_clear and init_start; the submission's keys, sizes and
/// hyperparameters; init_stop, run_start, block_start; losses and evaluations; block_stop and
/// run_stop. Every function throws Error where the file cannot be written. Times never go back,
/// whatever the clock does.
class MlLog {
 public:
  /// The process begins to set itself up.
  MlLog(const std::filesystem::path& file, ReportConfig config);
  MlLog(const MlLog&) = delete;
  MlLog& operator=(const MlLog&) = delete;
  /// A run that has begun and not stopped is "aborted".
  ~MlLog();

  /// Training begins; `run` is run.json.
  void begin_run(const nlohmann::json& run);
  void loss(std::int64_t step, double loss);
  void begin_evaluation(std::int64_t step);
  /// `loss`: the mean over the validation split, which MLPerf's language models call accuracy.
  void end_evaluation(std::int64_t step, double loss);
  /// `status`: "success" or "aborted".
  void end_run(std::int64_t step, const std::string& status);

 private:
  void event(const char* type, const char* key, const nlohmann::json& value, int line,
             nlohmann::json metadata = nlohmann::json::object());
  nlohmann::json samples(std::int64_t step) const;

  std::filesystem::path path_;
  ReportConfig config_;
  Descriptor file_;
  std::int64_t last_ms_ = 0;
  std::int64_t batch_ = 0;
  std::int64_t epoch_ = 0;  // samples of one, 0: not known
  std::int64_t last_step_ = 0;
  bool running_ = false, evaluating_ = false;
};

// Event files that TensorBoard reads: records of an Event message each (protocol buffers), framed
// as TFRecord: u64 length, masked CRC-32C of the length, data, masked CRC-32C of the data, all
// little-endian.

/// CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected), as iSCSI uses it (RFC 3720, B.4).
std::uint32_t crc32c(std::string_view bytes);
/// As TFRecord keeps it: turned right by 15 bits, plus 0xa282ead8.
std::uint32_t masked_crc32c(std::string_view bytes);
/// One record.
std::string tfrecord(std::string_view data);

/// Values under their tags, e.g. {"train/loss", 2.5}.
using Scalars = std::vector<std::pair<std::string, double>>;

/// An Event message of `scalars`, each a simple_value, which is fp32. `wall_time`: seconds since
/// 1970.
std::string scalar_event(double wall_time, std::int64_t step, const Scalars& scalars);
/// The Event that every file begins with.
std::string version_event(double wall_time);
/// SessionLog START: readers drop what earlier files have from `step` on.
std::string start_event(double wall_time, std::int64_t step);

/// "events.out.tfevents.ATTEMPT.SECONDS.HOST.PROCESS" in the run's one folder of events.
/// TensorBoard takes any file named *tfevents*, in the order of names.
class EventFile {
 public:
  /// Makes `folder` too. Throws Error where the file cannot be written, as do the others.
  EventFile(const std::filesystem::path& folder, int attempt);
  /// `step`: the first that this attempt will make.
  void start(std::int64_t step);
  void write(std::int64_t step, const Scalars& scalars);

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

}  // namespace trireme::report
