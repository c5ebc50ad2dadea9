// Runs of several attempts: whose times count, checks per attempt, missing steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/report/runs.hpp"

#include "fake_run.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using OneRun = Run;  // testing::Test has its own Run
using test::FakeRun;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using trireme::test::read_text;
using trireme::test::write_text;

class AttemptsTest : public testing::Test {
 protected:
  trireme::test::Scratch scratch_;
  int count_ = 0;
};

// 1 to 12 killed, 9 to 20: steps 9 to 12 count once, and are the later attempt's.
TEST_F(AttemptsTest, ALaterAttemptsStepsWin) {
  const fs::path folder = scratch_ / "run";
  (void)FakeRun{.loss = 5, .whole = false}.write(folder, 1);
  (void)FakeRun{.first = 9, .loss = 3}.write(folder, 2);
  const OneRun run = read_run(folder);
  EXPECT_THAT(run.faults, IsEmpty());
  ASSERT_EQ(run.steps.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(run.steps[i].step, static_cast<std::int64_t>(i) + 1);
    EXPECT_EQ(run.steps[i].loss, i < 8 ? 5 : 3);
  }
  EXPECT_EQ(run.evaluations.size(), 1U);
  EXPECT_THAT(run.notes, testing::Contains(HasSubstr("repeats 4 steps from step 9 on")));
  // Warm-up of each attempt: 3 of 12; of the first one's only 4 to 8 are left.
  EXPECT_EQ(counted_steps(run, {}).size(), 5U + 9U);
}

// An attempt with another layout contributes its losses, not its times.
TEST_F(AttemptsTest, StepsOfAnotherLayoutGiveNoFigure) {
  const fs::path folder = scratch_ / "run";
  (void)FakeRun{.seconds = {7}}.write(folder, 1);
  (void)FakeRun{.data = 2, .first = 13, .seconds = {0.5}}.write(folder, 2);
  const OneRun run = read_run(folder);
  EXPECT_THAT(run.faults, IsEmpty());
  EXPECT_EQ(run.steps.size(), 24U);
  EXPECT_EQ(figures_of(run, {}).seconds.n, 9);
  EXPECT_EQ(figures_of(run, {}).seconds.high, 0.5);
}

// 23 steps, then one more on other hosts after a requeue.
TEST_F(AttemptsTest, TheAttemptsWithMostCountedStepsAreReported) {
  const fs::path folder = scratch_ / "run";
  (void)FakeRun{.steps = 23, .seconds = {0.5}, .whole = false}.write(folder, 1);
  FakeRun late{.steps = 1, .first = 24, .seconds = {7}};
  late.change = [](json& run, json&) { run["hosts"][0]["name"] = "b"; };
  (void)late.write(folder, 2);
  const OneRun run = read_run(folder);
  EXPECT_THAT(run.faults, IsEmpty());
  EXPECT_EQ(run.chosen, 0U);
  EXPECT_EQ(figures_of(run, {}).seconds.n, 18);
  EXPECT_EQ(figures_of(run, {}).seconds.high, 0.5);
  EXPECT_THAT(run.notes,
              testing::Contains(HasSubstr(
                  "attempts like attempt 0001, 18 counted steps; attempt "
                  "0002, the last one, has other settings, layout or hosts, and 0 such steps")));
}

// The first attempt contributes the steps, and the last one only ends the run.
TEST_F(AttemptsTest, EveryAttemptThatContributesStepsIsChecked) {
  const auto faults = [&](const FakeRun& first, const ReadOptions& options = {}) {
    const fs::path folder = scratch_ / fmt::format("contributes{}", ++count_);
    (void)first.write(folder, 1);
    (void)FakeRun{.steps = 1, .first = 13}.write(folder, 2);
    return read_run(folder, options).faults;
  };
  EXPECT_THAT(faults({}), IsEmpty());
  const FakeRun crowded{.cores_shared = "2 ranks on 1 core"};
  EXPECT_THAT(faults(crowded), ElementsAre("ranks share cores: 2 ranks on 1 core (attempt 0001)"));
  EXPECT_THAT(faults(crowded, {.shared_cores = true}), IsEmpty());
  const auto changed = [](const char* section, const char* key, const json& value) {
    return FakeRun{.change = [=](json& run, json&) { run["config"][section][key] = value; }};
  };
  EXPECT_THAT(faults(changed("train", "inject", "nan@3")),
              ElementsAre("attempt 0001: faults were made on purpose: train.inject = \"nan@3\""));
  // Attempts that differ do not share times; here the later one alone is too short to report.
  for (const auto& [section, key] :
       {std::pair{"optim", "name"}, std::pair{"comm", "data"}, std::pair{"checkpoint", "async"}}) {
    const fs::path folder = scratch_ / fmt::format("unlike{}", ++count_);
    (void)changed(section, key, "other").write(folder, 1);
    (void)FakeRun{.first = 13}.write(folder, 2);
    EXPECT_EQ(figures_of(read_run(folder), {}).seconds.n, 9) << section;
  }
  const fs::path folder = scratch_ / "devices";
  (void)FakeRun{.change = [](json& run, json&) { run["device"] = "cuda:0"; }}.write(folder, 1);
  (void)FakeRun{.first = 13}.write(folder, 2);
  EXPECT_EQ(figures_of(read_run(folder), {}).seconds.n, 9);
}

TEST_F(AttemptsTest, StepsMissingAtEitherEndAreFaults) {
  const fs::path folder = FakeRun{}.write(scratch_ / "run");
  const fs::path metrics = folder / "attempts/0001/metrics.jsonl";
  const std::string whole = read_text(metrics);
  std::vector<std::size_t> ends;
  for (std::size_t at = whole.find('\n'); at != whole.npos; at = whole.find('\n', at + 1)) {
    ends.push_back(at + 1);
  }
  write_text(metrics, whole.substr(ends[3]));
  EXPECT_THAT(
      read_run(folder).faults,
      ElementsAre(HasSubstr("metrics.jsonl begins with step 5, and the attempt with step 1"),
                  HasSubstr("metrics.jsonl has 8 steps, and summary.json says 12")));
  write_text(metrics, whole.substr(0, ends[7]));
  EXPECT_THAT(read_run(folder).faults,
              ElementsAre(HasSubstr("metrics.jsonl has 8 steps, and summary.json says 12")));
  write_text(metrics, "");
  EXPECT_FALSE(read_run(folder).valid());
  // Without the count the last step decides.
  write_text(metrics, whole.substr(0, ends[7]));
  const fs::path summary = folder / "attempts/0001/summary.json";
  json values = json::parse(read_text(summary));
  values.erase("steps_of_attempt");
  write_text(summary, values.dump());
  EXPECT_THAT(read_run(folder).faults,
              ElementsAre(HasSubstr("metrics.jsonl ends with step 8, and summary.json says step")));
}

TEST_F(AttemptsTest, ADuplicateAttemptNumberIsAFault) {
  const fs::path folder = FakeRun{}.write(scratch_ / "run");
  fs::copy(folder / "attempts/0001", folder / "attempts/00001");
  EXPECT_THAT(read_run(folder).faults, ElementsAre(HasSubstr("their steps would count twice")));
}

}  // namespace
}  // namespace trireme::report
