// mllog.txt against MLPerf's rules; event files against published checksums and a reference file
// that TensorBoard 2.20 reads (tests/report/golden/README.md).
#include "trireme/report/formats.hpp"

#include <bit>
#include <fstream>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"
#include "trireme/report/record.hpp"

#include "support/files.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

/// Violations of MLPerf training's rules in the lines of an mllog.txt; empty: none.
std::vector<std::string> complaints(const std::vector<std::string>& lines) {
  std::vector<std::string> wrong;
  std::map<std::string, int> times;
  std::map<std::string, std::size_t> where;
  std::int64_t last = 0;
  std::map<std::string, int> open;
  const std::set<std::string> types = {"INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string prefix = ":::MLLOG ";
    const auto complain = [&](const std::string& what) {
      wrong.push_back(fmt::format("line {}: {}", i + 1, what));
    };
    if (!lines[i].starts_with(prefix)) {
      complain("no prefix");
      continue;
    }
    const json event = json::parse(lines[i].substr(prefix.size()), nullptr, false);
    if (!event.is_object()) {
      complain("no JSON");
      continue;
    }
    for (const char* key : {"namespace", "time_ms", "event_type", "key", "value", "metadata"}) {
      if (!event.contains(key)) complain(fmt::format("no {}", key));
    }
    if (event.size() != 6) complain("other keys");
    if (!event.value("metadata", json()).contains("file")) complain("no file in metadata");
    if (!event.value("metadata", json()).contains("lineno")) complain("no lineno in metadata");
    const std::string key = event.value("key", ""), type = event.value("event_type", "");
    if (!types.contains(type)) complain("event_type " + type);
    if (event.value("time_ms", std::int64_t{0}) < last) complain("time decreases");
    last = event.value("time_ms", std::int64_t{0});
    ++times[key];
    where[key] = i;
    if (type == "INTERVAL_START") ++open[key.substr(0, key.rfind('_'))];
    if (type == "INTERVAL_END" && --open[key.substr(0, key.rfind('_'))] < 0)
      complain("ends without a start");
    const std::set<std::string> precisions = {"fp64", "fp32", "fp16", "bfloat16"};
    if (key.starts_with("lowest_numerical_precision") &&
        !precisions.contains(event["value"].get<std::string>())) {
      complain(fmt::format("no such precision: {}", event["value"].dump()));
    }
    if (key.ends_with("_parallelism") || key == "micro_batch_size") {
      if (!event["value"].is_number_integer() || event["value"] < 1) complain("no degree: " + key);
    }
    if (key == "eval_accuracy" &&
        !(event["metadata"].contains("samples_count") && event["metadata"].contains("epoch_num"))) {
      complain("no samples_count or epoch_num");
    }
    if (key == "run_stop") {
      const std::string status = event["metadata"].value("status", "");
      if (status != "success" && status != "aborted") complain("status " + status);
    }
  }
  for (const char* key : {"submission_benchmark",
                          "submission_org",
                          "submission_platform",
                          "submission_division",
                          "init_stop",
                          "run_start",
                          "run_stop",
                          "train_samples",
                          "eval_samples",
                          "lowest_numerical_precision_in_linear",
                          "lowest_numerical_precision_in_attn",
                          "lowest_numerical_precision_in_comm",
                          "tensor_parallelism",
                          "pipeline_parallelism",
                          "context_parallelism",
                          "expert_parallelism",
                          "micro_batch_size",
                          "config_filename",
                          "max_steps",
                          "max_sequence_length",
                          "global_batch_size",
                          "gradient_accumulation_steps",
                          "opt_name",
                          "opt_base_learning_rate",
                          "opt_end_learning_rate",
                          "opt_learning_rate_warmup_steps",
                          "opt_learning_rate_decay_steps",
                          "opt_learning_rate_decay_schedule",
                          "opt_gradient_clip_norm"}) {
    if (times[key] != 1) wrong.push_back(fmt::format("{} times {}", times[key], key));
  }
  for (const char* key : {"cache_clear", "init_start", "eval_accuracy"}) {
    if (times[key] < 1) wrong.push_back(fmt::format("no {}", key));
  }
  const char* order[] = {"init_start", "submission_benchmark", "init_stop", "run_start",
                         "run_stop"};
  for (std::size_t i = 1; i < std::size(order); ++i) {
    if (where[order[i - 1]] >= where[order[i]]) {
      wrong.push_back(fmt::format("{} before {}", order[i], order[i - 1]));
    }
  }
  for (const auto& [name, count] : open) {
    if (count != 0) wrong.push_back(name + " is left open");
  }
  return wrong;
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

json small_run() {
  return {{"first_step", 0},
          {"place", {{"tensor", 2}, {"pipeline", 1}, {"data", 2}}},
          {"dataset", {{"train_samples", 100}, {"eval_samples", 7}}},
          {"hosts", {{{"name", "a"}, {"cpu", "Some CPU"}}}},
          {"config_provenance",
           {{"train.batch", {{"source", "command line"}, {"origin", "--train.batch"}}},
            {"train.steps", {{"source", "file"}, {"origin", "a:b/run.toml:7"}}}}},
          {"config",
           {{"train", {{"batch", 8}, {"micro_batch", 2}, {"seed", 5}, {"steps", 50}}},
            {"model", {{"sequence", 64}}},
            {"precision", {{"compute", "bf16"}}},
            {"optim",
             {{"name", "adamw"},
              {"learning_rate", 1e-3},
              {"schedule", "cosine"},
              {"warmup_steps", 10},
              {"decay_steps", 0},
              {"final_learning_rate", 0.25}}}}}};
}

class FormatsTest : public testing::Test {
 protected:
  trireme::test::Scratch scratch_;
};

TEST_F(FormatsTest, ACompleteRunFollowsTheRules) {
  const fs::path file = scratch_ / "mllog.txt";
  {
    MlLog log(file, {.organization = "A \"quoted\" name\n"});
    log.begin_run(small_run());
    log.loss(1, 5.5);
    log.begin_evaluation(1);
    log.end_evaluation(1, 5.25);
    log.end_run(1, "success");
  }
  const auto lines = lines_of(file);
  EXPECT_THAT(complaints(lines), testing::IsEmpty());
  std::map<std::string, json> values;
  for (const std::string& line : lines) {
    const json event = json::parse(line.substr(9));
    values[event.at("key")] = event;
  }
  EXPECT_EQ(values["global_batch_size"]["value"], 8);
  EXPECT_EQ(values["gradient_accumulation_steps"]["value"], 2);
  EXPECT_EQ(values["tensor_parallelism"]["value"], 2);
  EXPECT_EQ(values["train_samples"]["value"], 100);
  EXPECT_EQ(values["submission_platform"]["value"], "1 x Some CPU");
  EXPECT_EQ(values["submission_org"]["value"], "A \"quoted\" name\n");
  EXPECT_EQ(values["lowest_numerical_precision_in_linear"]["value"], "bfloat16");
  EXPECT_EQ(values["config_filename"]["value"], "a:b/run.toml");
  EXPECT_EQ(values["opt_learning_rate_decay_schedule"]["value"], "cosine with linear warmup");
  EXPECT_EQ(values["opt_learning_rate_decay_steps"]["value"], 40);
  EXPECT_EQ(values["opt_end_learning_rate"]["value"], 2.5e-4);
  EXPECT_EQ(values["max_steps"]["value"], 50);
  EXPECT_EQ(values["eval_accuracy"]["value"], 5.25);
  EXPECT_EQ(values["eval_accuracy"]["metadata"]["samples_count"], 8);
  EXPECT_EQ(values["eval_accuracy"]["metadata"]["epoch_num"], 0.08);
  EXPECT_EQ(values["run_stop"]["metadata"]["status"], "success");
}

TEST_F(FormatsTest, ARunThatThrowsIsAborted) {
  const fs::path file = scratch_ / "mllog.txt";
  {
    MlLog log(file, {});
    log.begin_run(small_run());
    log.loss(1, std::numeric_limits<double>::quiet_NaN());
  }
  const auto lines = lines_of(file);
  EXPECT_THAT(lines.back(), HasSubstr("\"status\":\"aborted\""));
  EXPECT_EQ(complaints(lines), std::vector<std::string>{"no eval_accuracy"});
}

TEST(MlLogRules, TheCheckFindsViolations) {
  const std::string good =
      R"(:::MLLOG {"namespace":"","time_ms":5,"event_type":"POINT_IN_TIME","key":"seed","value":1,"metadata":{"file":"f","lineno":1}})";
  const auto first = [](const std::string& line) { return complaints({line}).front(); };
  EXPECT_THAT(first("MLLOG {}"), HasSubstr("no prefix"));
  EXPECT_THAT(first(":::MLLOG {"), HasSubstr("no JSON"));
  EXPECT_THAT(complaints({good, good.substr(0, 30) + "4" + good.substr(31)}).size(),
              testing::Gt(0U));
  EXPECT_THAT(complaints({good}), testing::Contains("0 times run_start"));
}

TEST(TensorBoard, ChecksumsMatchPublishedOnes) {
  // RFC 3720, B.4, and the usual check value.
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
    descending += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(ascending), 0x46DD794EU);
  EXPECT_EQ(crc32c(descending), 0x113FDB5CU);
  EXPECT_EQ(crc32c(""), 0U);
  const std::uint32_t crc = crc32c("abc");
  EXPECT_EQ(masked_crc32c("abc"), ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U);
}

/// The events of golden/events.bin, byte for byte: see golden/README.md.
TEST(TensorBoard, EventsMatchTheReferenceFile) {
  const std::string made =
      tfrecord(version_event(1700000000.5)) +
      tfrecord(scalar_event(1700000001.25, 1, {{"train/loss", 5.5}})) +
      tfrecord(scalar_event(1700000002.0, 300,
                            {{"train/loss", 0.1}, {"speed/tokens_per_second", 123456.7}})) +
      tfrecord(start_event(1700000003.0, 201));
  const fs::path golden = fs::path(TRIREME_SOURCE_DIR) / "tests/report/golden/events.bin";
  EXPECT_EQ(made, trireme::test::read_text(golden));
}

TEST_F(FormatsTest, ARecordWritesTheConfiguredFormats) {
  const auto files = [&](const ReportConfig& config, const char* name) {
    RunRecord record(scratch_ / name, config);
    record.write_run(small_run());
    record.write_step({.step = 1, .tokens = 512, .loss = 5.5, .seconds = 0.5});
    record.begin_evaluation(1);
    record.write_evaluation(1, 5.25, 100);
    record.write_summary({{"steps", 1}});
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(record.folder())) {
      const std::string file = entry.path().filename();
      found.insert(file.substr(0, std::string("events.out.tfevents").size()));
    }
    for (const auto& entry : fs::directory_iterator(scratch_ / name)) {
      found.insert(entry.path().filename());
    }
    return found;
  };
  const std::set<std::string> always = {"run.json", "metrics.jsonl", "summary.json", "attempts"};
  auto all = always;
  all.insert({"mllog.txt", "tensorboard"});
  EXPECT_EQ(files({}, "all"), all);
  EXPECT_EQ(files({.tensorboard = false, .mllog = false}, "none"), always);
  EXPECT_THAT(complaints(lines_of(scratch_ / "all/attempts/0001/mllog.txt")), testing::IsEmpty());
  // Event files of all attempts are in one folder, in the order of their names.
  files({}, "all");
  std::vector<std::string> events;
  for (const auto& entry : fs::directory_iterator(scratch_ / "all/tensorboard")) {
    events.push_back(entry.path().filename());
  }
  EXPECT_THAT(events,
              testing::UnorderedElementsAre(testing::StartsWith("events.out.tfevents.0001."),
                                            testing::StartsWith("events.out.tfevents.0002.")));
  const json run = json::parse(trireme::test::read_text(scratch_ / "all/attempts/0001/run.json"));
  EXPECT_EQ(run.at("format"), record_format);
}

}  // namespace
}  // namespace trireme::report
