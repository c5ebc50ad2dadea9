// The files of a run's record, read back with an independent parser.
#include "trireme/report/record.hpp"

#include <bit>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"

#include "support/files.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using trireme::test::read_text;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
const ReportConfig plain{.tensorboard = false, .mllog = false};  // only the record
constexpr double infinity = std::numeric_limits<double>::infinity();

class RecordTest : public testing::Test {
 protected:
  static std::vector<json> lines_of(const fs::path& path) {
    std::ifstream file(path);
    std::vector<json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }
  static std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder))
      names.push_back(entry.path().filename());
    return names;
  }

  trireme::test::Scratch scratch_;
  const fs::path run_ = scratch_ / "run";
};

TEST_F(RecordTest, EveryStartGetsTheNextAttempt) {
  EXPECT_EQ(RunRecord(run_, plain).folder(), run_ / "attempts/0001");
  EXPECT_EQ(RunRecord(run_, plain).folder(), run_ / "attempts/0002");
  fs::create_directory(run_ / "attempts/0041");
  fs::create_directory(run_ / "attempts/notes");
  fs::remove(run_ / "attempts/0002");
  EXPECT_EQ(RunRecord(run_, plain).folder(), run_ / "attempts/0042");
}

TEST_F(RecordTest, StartsAtTheSameTimeDoNotShareAnAttempt) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 5; ++i) RunRecord(run_, plain).write_run({{"a", 1}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(names_in(run_ / "attempts").size(), 40U);
}

TEST_F(RecordTest, AFolderThatCannotBeCreatedIsNamed) {
  std::ofstream(run_) << "a file";
  try {
    const RunRecord record(run_, plain);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr((run_ / "attempts").string()));
    EXPECT_THAT(error.what(), HasSubstr("Not a directory"));
  }
}

TEST_F(RecordTest, StepsAndEvaluationsAreWrittenAtOnce) {
  RunRecord record(run_, plain);
  const fs::path path = record.folder() / "metrics.jsonl";
  record.write_step({.step = 1,
                     .tokens = 4096,
                     .loss = 0.1,
                     .gradient_norm = 2,
                     .learning_rate = 3e-4,
                     .seconds = 1.5,
                     .tokens_per_second = 2730.6,
                     .mfu = 0.5});
  ASSERT_EQ(lines_of(path).size(), 1U) << "in the file before the next step";
  record.write_evaluation(1, 4.5, 1000);
  record.write_step({.step = 2,
                     .tokens = 8192,
                     .loss = nan,
                     .gradient_norm = infinity,
                     .learning_rate = -infinity});
  std::vector<json> lines = lines_of(path);
  ASSERT_EQ(lines.size(), 3U);
  for (json& line : lines) EXPECT_EQ(line.erase("seal"), 1U);
  EXPECT_EQ(lines[0], (json{{"type", "step"},
                            {"step", 1},
                            {"tokens", 4096},
                            {"loss", 0.1},
                            {"gradient_norm", 2.0},
                            {"learning_rate", 3e-4},
                            {"seconds", 1.5},
                            {"tokens_per_second", 2730.6},
                            {"mfu", 0.5}}));
  EXPECT_EQ(lines[1], (json{{"type", "evaluation"}, {"step", 1}, {"loss", 4.5}, {"tokens", 1000}}));
  EXPECT_EQ(lines[2]["loss"], "nan");
  EXPECT_EQ(lines[2]["gradient_norm"], "inf");
  EXPECT_EQ(lines[2]["learning_rate"], "-inf");
  EXPECT_FALSE(lines[2].contains("mfu"));
}

TEST_F(RecordTest, AFullDiskIsAnError) {
  RunRecord record(run_, plain);
  record.write_run({{"old", true}});
  std::optional<trireme::test::FileSizeLimit> limit(5);
  std::vector<std::string> messages;
  for (const auto& write : std::vector<std::function<void()>>{[&] { record.write_step({}); },
                                                              [&] {
                                                                record.write_run({{"new", true}});
                                                              }}) {
    try {
      write();
    } catch (const Error& error) {
      messages.emplace_back(error.what());
    }
  }
  limit.reset();
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_THAT(messages[0], HasSubstr("metrics.jsonl: cannot write: File too large; raise"));
  EXPECT_THAT(messages[1], HasSubstr("run.json.tmp: cannot write: File too large; raise"));
  EXPECT_EQ(json::parse(read_text(record.folder() / "run.json")),
            (json{{"old", true}, {"format", record_format}}));
  EXPECT_THAT(names_in(record.folder()),
              testing::UnorderedElementsAre("run.json", "metrics.jsonl"));
}

TEST_F(RecordTest, RunAndSummaryAreCompleteJson) {
  RunRecord record(run_, plain);
  record.write_run(
      {{"config", {{"loss", {1.0, nan, {{"deep", -infinity}}}}}}, {"bytes", "\xff\xfe ok"}});
  record.write_summary({{"tokens_per_second", 12.5}});
  const json run = json::parse(read_text(record.folder() / "run.json"));
  EXPECT_EQ(run["config"]["loss"], json::parse(R"([1.0, "nan", {"deep": "-inf"}])"));
  EXPECT_THAT(run["bytes"].get<std::string>(), testing::EndsWith(" ok"));
  EXPECT_EQ(json::parse(read_text(record.folder() / "summary.json"))["tokens_per_second"], 12.5);
  EXPECT_THAT(names_in(record.folder()), testing::UnorderedElementsAre("run.json", "summary.json"));
}

// The format as Chrome and Perfetto document it: an object with "traceEvents", complete events "X"
// in microseconds, metadata events "M" that name processes and threads.
TEST_F(RecordTest, TheTraceHasOneRowPerRankAndStream) {
  RunRecord record(run_, plain);
  record.write_trace({{{"forward", 0, 10.5, 100}, {"all \"reduce\"", 1, 20, 50}},
                      {{"forward", 0, 11, 99}, {"other", 7, 1, 2}}});
  const json trace = json::parse(read_text(record.folder() / "trace.json"));
  std::vector<json> spans, threads, processes;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") spans.push_back(event);
    if (event.at("name") == "thread_name") threads.push_back(event);
    if (event.at("name") == "process_name") processes.push_back(event);
  }
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(
      spans[0],
      (json{
          {"ph", "X"}, {"name", "forward"}, {"pid", 0}, {"tid", 0}, {"ts", 10.5}, {"dur", 100.0}}));
  EXPECT_EQ(spans[1]["name"], "all \"reduce\"");
  EXPECT_EQ(spans[1]["tid"], 1);
  EXPECT_EQ(spans[3]["pid"], 1);
  ASSERT_EQ(processes.size(), 2U);
  EXPECT_EQ(processes[1]["args"]["name"], "rank 1");
  ASSERT_EQ(threads.size(), 4U);
  EXPECT_EQ(threads[0]["args"]["name"], "compute");
  EXPECT_EQ(threads[1]["args"]["name"], "communication");
  EXPECT_EQ(threads[3]["args"]["name"], "device queue 3");
  EXPECT_EQ(threads[3]["tid"], 7);
  EXPECT_EQ(threads[3]["pid"], 1);
}

TEST(FiniteJson, OnlyNumbersThatAreNotFiniteBecomeStrings) {
  EXPECT_EQ(json_text(nan), "\"nan\"");
  EXPECT_EQ(json_text(-nan), "\"nan\"");
  EXPECT_EQ(json_text(infinity), "\"inf\"");
  EXPECT_EQ(json_text(-infinity), "\"-inf\"");
  EXPECT_EQ(json_text({{"a", 1}, {"b", nullptr}, {"c", true}, {"d", "nan"}, {"e", 0.1}}),
            R"({"a":1,"b":null,"c":true,"d":"nan","e":0.1})");
  // Doubles round-trip bit for bit.
  for (const double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0}) {
    const double back = json::parse(json_text(value)).get<double>();
    EXPECT_EQ(std::bit_cast<std::uint64_t>(back), std::bit_cast<std::uint64_t>(value)) << value;
  }
}

}  // namespace
}  // namespace trireme::report
