// The record of a run that is reported step by step, without the run.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "trireme/train/reporter.hpp"

#include "train/parts.hpp"

namespace trireme::train::test {
namespace {

RunStart start_at(std::int64_t step) {
  return {.step = step,
          .peak = 1e9,
          .layout = "somewhere",
          .place = {{"data", 1}},
          .predicted_memory = {{"batch", 7}},
          .extra = {{"attention", "none"}},
          .lines = {},
          .warnings = {},
          .notes = {}};
}

report::StepMetrics step(std::int64_t number, double seconds, double loss = 2) {
  return {.step = number, .tokens = number, .loss = loss, .seconds = seconds};
}

TEST(RunReporter, RecordsWhatARunReports) {
  const Folder folder;
  SmallJob job(small_config(folder, "run"));
  RunReporter reporter(*job, world_rank() == 0);
  const data::Corpus corpus =
      data::Corpus::open(job.config().data.path, job.config().model.sequence);
  reporter.open();
  reporter.begin(start_at(3), {}, corpus);
  EXPECT_FALSE(reporter.evaluated(5));
  reporter.step(step(4, 0.5));
  reporter.step(step(5, 1.5, 1.25));
  reporter.begin_evaluation(5);
  reporter.evaluation(5, {.sources = {}, .all = {.loss = 6, .weight = 4}});
  reporter.stop(5, "its time is up");
  EXPECT_TRUE(reporter.evaluated(5));
  EXPECT_EQ(reporter.steps(), 2);
  EXPECT_EQ(reporter.last().loss, 1.25);
  RunSummary summary;
  summary.extra["method"] = "further";
  reporter.finish(summary);
  if (world_rank() != 0) return;
  const fs::path attempt = folder / "run" / "attempts" / "0001";
  const auto lines = lines_of(folder / "run");
  ASSERT_EQ(lines.size(), 4U);
  const auto tokens = static_cast<double>(job.config().train.batch * job.config().model.sequence);
  EXPECT_EQ(lines[1].at("tokens_per_second").get<double>(), tokens / 1.5);
  EXPECT_EQ(lines[1].at("mfu").get<double>(), tokens / 1.5 * job->model.flops_per_token() / 1e9);
  EXPECT_EQ(lines[2].at("loss"), 1.5);
  EXPECT_EQ(lines[3].at("event"), "stop");
  std::ifstream file(attempt / "run.json");
  const auto run = nlohmann::json::parse(file);
  EXPECT_EQ(run.at("first_step"), 3);
  EXPECT_EQ(run.at("attention"), "none");
  EXPECT_EQ(run.at("config").at("train").at("batch"), job.config().train.batch);
  const auto closing = summary_of(folder / "run");
  EXPECT_EQ(closing.at("steps"), 5);
  EXPECT_EQ(closing.at("steps_of_attempt"), 2);
  EXPECT_EQ(closing.at("loss"), 1.25);
  EXPECT_EQ(closing.at("validation_loss"), 1.5);
  EXPECT_EQ(closing.at("figure_of_merit").get<double>(), 2 * tokens / 2.0);
  EXPECT_EQ(closing.at("method"), "further");
}

// The machine was busy when the peak was measured.
TEST(RunReporter, AnImpossibleMfuIsNotRecorded) {
  const Folder folder;
  SmallJob job(small_config(folder, "run"));
  RunReporter reporter(*job, world_rank() == 0);
  const data::Corpus corpus =
      data::Corpus::open(job.config().data.path, job.config().model.sequence);
  reporter.open();
  RunStart start = start_at(0);
  start.peak = 1;
  reporter.begin(start, {}, corpus);
  reporter.step(step(1, 0.5));
  RunSummary summary;
  summary.peak = 3e9;
  reporter.finish(summary);
  if (world_rank() != 0) return;
  const auto lines = lines_of(folder / "run");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_FALSE(lines[0].contains("mfu"));
  EXPECT_EQ(summary_of(folder / "run").at("peak"),
            (nlohmann::json{{"at_start", 1.0}, {"at_end", 3e9}, {"operations_per_second", 3e9}}));
}

TEST(RunReporter, OnlyTheRootWritesAndAllRemember) {
  const Folder folder;
  SmallJob job(small_config(folder, "run"));
  RunReporter reporter(*job, false);
  const data::Corpus corpus =
      data::Corpus::open(job.config().data.path, job.config().model.sequence);
  reporter.open();
  reporter.begin(start_at(0), {}, corpus);
  reporter.step(step(1, 0.5, 7));
  reporter.event(1, "save", "nowhere");
  reporter.finish({});
  EXPECT_EQ(reporter.last().loss, 7);
  quiet_barrier();
  EXPECT_FALSE(fs::exists(folder / "run" / "attempts"));
}

// A full disk ends nothing.
TEST(RunReporter, GoesOnWhereTheRecordCannotBeWritten) {
  const Folder folder;
  SmallJob job(small_config(folder, "run"));
  RunReporter reporter(*job, world_rank() == 0);
  const data::Corpus corpus =
      data::Corpus::open(job.config().data.path, job.config().model.sequence);
  reporter.open();
  reporter.begin(start_at(0), {}, corpus);
  if (world_rank() == 0) {
    fs::create_directory(folder / "run" / "attempts" / "0001" / "metrics.jsonl");
  }
  reporter.step(step(1, 0.5));
  reporter.event(1, "save", "somewhere");
  reporter.failed(1, "an error");
  reporter.finish({});
  EXPECT_EQ(reporter.steps(), 1);
}

}  // namespace
}  // namespace trireme::train::test
