// A run's parts outside a run: on all ranks of the world, with a small model.
#pragma once

#include "trireme/train/job.hpp"

#include "train/runs.hpp"

namespace trireme::train::test {

/// The job of a small run that the test's parts belong to. Collective.
class SmallJob {
 public:
  explicit SmallJob(RunConfig settings)
      : config_(std::move(settings)), job_(session_, config_, bind(), cuda_devices()) {}
  Job& operator*() { return job_; }
  Job* operator->() { return &job_; }
  RunConfig& config() { return config_; }

 private:
  const config::Fields& bind() {
    config_.declare(fields_);
    return fields_;
  }
  RunConfig config_;
  config::Fields fields_;
  comm::Session session_{MPI_COMM_WORLD};
  Job job_;
};

inline std::vector<nlohmann::json> lines_of(const fs::path& run) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(run / "attempts" / "0001" / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace trireme::train::test
