// Synthetic records of runs.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "support/files.hpp"

namespace trireme::report::test {

struct FakeRun {
  int tensor = 1, pipeline = 1, data = 1;
  std::int64_t batch = 8, micro_batch = 2, steps = 12;
  std::int64_t first = 1;            // step
  std::vector<double> seconds = {};  // by step; the last one repeats
  double loss = 5;
  std::string cores_shared = {};
  std::string precision = "fp32";
  /// Sections of a rank in seconds, summed over all steps.
  std::function<nlohmann::json(int rank)> sections = [](int) {
    return nlohmann::json{{"forward", 1.0}, {"backward", 2.0}, {"wait for pipeline", 0.0}};
  };
  nlohmann::json communication = nlohmann::json::object();
  /// Changes applied before the files are written.
  std::function<void(nlohmann::json& run, nlohmann::json& summary)> change = [](auto&, auto&) {};
  bool whole = true;  // with summary.json

  int ranks() const { return tensor * pipeline * data; }
  double seconds_of(std::int64_t i) const {
    if (seconds.empty()) return 0.5;
    return seconds[std::min(static_cast<std::size_t>(i), seconds.size() - 1)];
  }

  nlohmann::json run_json() const {
    return {{"format", 2},
            {"ranks", ranks()},
            {"place", {{"tensor", tensor}, {"pipeline", pipeline}, {"data", data}}},
            {"layout", fmt::format("{} {} {}", tensor, pipeline, data)},
            {"threads_per_rank", 1},
            {"device", "cpu"},
            {"hosts", {{{"name", "a"}, {"cpu", "Some CPU"}, {"cores", 8}, {"ranks", ranks()}}}},
            {"first_step", first - 1},
            {"start", "2026-11-22T08:00:00Z"},
            {"versions", {{"trireme", "0.1.0"}}},
            {"parameters", 1000},
            {"flops_per_token", 6000.0},
            {"peak", {{"operations_per_second", 1e9}, {"kind", "measured"}, {"type", precision}}},
            {"cores_shared", cores_shared},
            {"dataset", {{"train_tokens", 1000}}},
            {"config",
             {{"model", {{"sequence", 64}, {"layers", 8}, {"width", 32}, {"preset", "nano"}}},
              {"train",
               {{"batch", batch},
                {"micro_batch", micro_batch},
                {"steps", first + steps - 1},
                {"inject", "none"}}},
              {"parallel",
               {{"tensor", tensor},
                {"pipeline", pipeline},
                {"data", data},
                {"zero", 0},
                {"schedule", "1f1b"},
                {"virtual_stages", 1},
                {"overlap", true}}},
              {"precision", {{"compute", precision}}},
              {"data", {{"path", "somewhere"}}}}}};
  }

  nlohmann::json summary_json() const {
    nlohmann::json accounts = nlohmann::json::array();
    for (int rank = 0; rank < ranks(); ++rank) {
      accounts.push_back({{"rank", rank},
                          {"tensor", rank % tensor},
                          {"data", rank / tensor % data},
                          {"pipeline", rank / tensor / data},
                          {"sections", sections(rank)},
                          {"communication", communication}});
    }
    return {{"format", 2},
            {"steps", first + steps - 1},
            {"steps_of_attempt", steps},
            {"memory", {{"stash", {{"predicted", 100}, {"measured", 100}}}}},
            {"ranks", accounts}};
  }

  std::string metrics() const {
    std::string text;
    for (std::int64_t i = 0; i < steps; ++i) {
      const nlohmann::json line{
          {"type", "step"},
          {"step", first + i},
          {"tokens", (first + i) * batch * 64},
          {"loss", loss},
          {"gradient_norm", 1.0},
          {"learning_rate", 1e-3},
          {"seconds", seconds_of(i)},
          {"tokens_per_second", static_cast<double>(batch * 64) / seconds_of(i)}};
      text += line.dump() + "\n";
    }
    const nlohmann::json line{
        {"type", "evaluation"}, {"step", first + steps - 1}, {"loss", 4.5}, {"tokens", 100}};
    return text + line.dump() + "\n";
  }

  std::filesystem::path write(const std::filesystem::path& folder, int attempt = 1) const {
    const auto here = folder / "attempts" / fmt::format("{:04}", attempt);
    std::filesystem::create_directories(here);
    nlohmann::json run = run_json(), summary = summary_json();
    change(run, summary);
    trireme::test::write_text(here / "run.json", run.dump(2) + "\n");
    trireme::test::write_text(here / "metrics.jsonl", metrics());
    if (whole) trireme::test::write_text(here / "summary.json", summary.dump(2) + "\n");
    return folder;
  }
};

}  // namespace trireme::report::test
