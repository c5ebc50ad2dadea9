// A run's events in the format of MLPerf's training benchmarks: lines of ":::MLLOG {json}", each
// with namespace, time_ms, event_type, key, value and metadata.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "trireme/core/files.hpp"
#include "trireme/report/config.hpp"

namespace trireme::report {

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

}  // namespace trireme::report
