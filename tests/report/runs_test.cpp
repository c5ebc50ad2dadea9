// Records read back: INVALID runs, damage reported by file and line, scaling lines of comparable
// runs.
#include "trireme/report/runs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"
#include "trireme/report/page.hpp"
#include "trireme/report/scaling.hpp"

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

class RunsTest : public testing::Test {
 protected:
  OneRun read(const FakeRun& fake, const ReadOptions& options = {}) {
    return read_run(fake.write(scratch_ / fmt::format("run{}", ++count_)), options);
  }
  /// The only fault of a run.
  std::string fault(const FakeRun& fake, const ReadOptions& options = {}) {
    const OneRun run = read(fake, options);
    return run.faults.size() == 1 ? run.faults.front()
                                  : fmt::format("{} faults", run.faults.size());
  }
  trireme::test::Scratch scratch_;
  int count_ = 0;
};

TEST_F(RunsTest, ACompleteRunIsReadAndCounted) {
  // 12 steps: a quarter is warm-up, and slower.
  const OneRun run = read({.seconds = {9, 9, 9, 0.5, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1}});
  EXPECT_THAT(run.faults, IsEmpty());
  EXPECT_EQ(run.facts.layout(), "tensor 1 × pipeline 1 × data 1");
  const Figures figures = figures_of(run, {});
  EXPECT_EQ(figures.seconds.n, 9);
  EXPECT_EQ(figures.left_out, 3);
  EXPECT_EQ(figures.seconds.median, 0.5);
  EXPECT_EQ(figures.seconds.low, 0.5) << "the second of nine";
  EXPECT_EQ(figures.tokens_per_second.median, 8 * 64 / 0.5);
  EXPECT_DOUBLE_EQ(figures.mfu.median, 8 * 64 / 0.5 * 6000 / 1e9);
  EXPECT_EQ(figures.validation_loss, 4.5);
  EXPECT_EQ(figures_of(run, {.warm_up = 0}).seconds.n, 12);
}

TEST(WarmUp, IsFiveStepsOrAQuarter) {
  EXPECT_EQ(ReadOptions().warm_up_of(1000), 5);
  EXPECT_EQ(ReadOptions().warm_up_of(20), 5);
  EXPECT_EQ(ReadOptions().warm_up_of(19), 5);
  EXPECT_EQ(ReadOptions().warm_up_of(5), 2);
  EXPECT_EQ(ReadOptions().warm_up_of(1), 1);
}

TEST_F(RunsTest, OldRecordsLackWhetherCoresWereShared) {
  const OneRun run = read({.change = [](json& record, json&) { record.erase("cores_shared"); }});
  EXPECT_THAT(run.faults, IsEmpty());
  EXPECT_THAT(run.notes, testing::Contains(HasSubstr("does not say whether ranks shared cores")));
}

TEST_F(RunsTest, NamesAreOneLineOfText) {
  const fs::path folder = FakeRun{.whole = false}.write(scratch_ / "a\x1b[31m\nb\xff");
  const OneRun run = read_run(folder);
  EXPECT_THAT(run.name, testing::EndsWith("a\\u001b[31m\\nb\xef\xbf\xbd"));
  write_text(folder / "attempts/0001/metrics.jsonl", "{\n");
  const OneRun damaged = read_run(folder);
  ASSERT_EQ(damaged.faults.size(), 1U);
  EXPECT_THAT(damaged.faults.front(), HasSubstr("a\\u001b[31m\\nb\xef\xbf\xbd/attempts"));
}

TEST_F(RunsTest, AFailedRunIsInvalidWithAReason) {
  EXPECT_THAT(
      fault({.change = [](json&, json& summary) { summary["memory"]["stash"]["measured"] = 101; }}),
      HasSubstr("memory of stash: 100 bytes predicted, 101 measured"));
  // Except where the prediction is known to be partial, on a GPU.
  const auto in_part = [](json&, json& summary) {
    summary["memory"]["stash"] = {{"predicted", 100}, {"measured", 101}, {"in_part", true}};
  };
  EXPECT_TRUE(read({.change = in_part}).valid());
  EXPECT_THAT(fault({.loss = std::numeric_limits<double>::quiet_NaN()}), HasSubstr("loss"));
  EXPECT_THAT(fault({.cores_shared = "2 ranks on 1 core"}),
              HasSubstr("ranks share cores: 2 ranks on 1 core"));
  EXPECT_TRUE(read({.cores_shared = "2 ranks on 1 core"}, {.shared_cores = true}).valid());
  EXPECT_THAT(
      fault({.change = [](json& run, json&) { run["config"]["train"]["inject"] = "nan@3"; }}),
      HasSubstr("faults were made on purpose"));
  EXPECT_THAT(fault({.steps = 1}), HasSubstr("too short: 1 step,"));
  const fs::path failed = FakeRun{}.write(scratch_ / "failed");
  const fs::path metrics = failed / "attempts/0001/metrics.jsonl";
  write_text(metrics, read_text(metrics) +
                          R"({"type":"event","step":12,"event":"failed","text":"replicas differ"})"
                          "\n");
  EXPECT_THAT(read_run(failed).faults,
              ElementsAre(HasSubstr("failed after step 12: replicas differ")));
}

// Killed, or its disk was full: figures of what is there, and in no line of scaling.
TEST_F(RunsTest, AnIncompleteRunHasFigures) {
  const fs::path cut = FakeRun{.whole = false}.write(scratch_ / "cut");
  const OneRun run = read_run(cut);
  EXPECT_THAT(run.faults, IsEmpty());
  EXPECT_THAT(run.incomplete, HasSubstr("no summary.json: it is still running, or it was killed"));
  EXPECT_EQ(figures_of(run, {}).seconds.n, 9);
  const auto full = [](json&, json& summary) {
    summary["incomplete"] = "metrics.jsonl: cannot write: No space left on device";
    summary["steps_of_attempt"] = 40;
    summary["steps"] = 40;
    summary["figure_of_merit"] = 1;
  };
  const OneRun lacking = read({.change = full});
  EXPECT_THAT(lacking.faults, IsEmpty());
  EXPECT_THAT(lacking.incomplete, HasSubstr("to the end: metrics.jsonl: cannot write: No space"));
  (void)FakeRun{.data = 2}.write(scratch_ / "two");
  const Report report = make_report({cut.string(), (scratch_ / "two").string()}, {});
  EXPECT_EQ(report.measured.size(), 2U);
  EXPECT_THAT(report.lines, IsEmpty());
  EXPECT_THAT(report_text(report), HasSubstr("4.5000 v (incomplete)\n"));
  EXPECT_THAT(report_text(report), HasSubstr("INCOMPLETE " + cut.string() + "\n        attempt"));
  EXPECT_EQ(report_json(report)["runs"][0]["valid"], false);
  EXPECT_TRUE(report_json(report)["runs"][0].contains("figures"));
  FakeRun none{.steps = 0, .whole = false};
  EXPECT_FALSE(read(none).valid()) << "without a step there is nothing to show";
}

TEST_F(RunsTest, NonFiniteLossesAreInvalid) {
  const fs::path folder = FakeRun{}.write(scratch_ / "run");
  const fs::path metrics = folder / "attempts/0001/metrics.jsonl";
  std::string text = read_text(metrics);
  const std::size_t at = text.rfind("\"loss\":5.0");
  text.replace(at, 10, "\"loss\":\"nan\"");
  write_text(metrics, text);
  EXPECT_THAT(read_run(folder).faults, ElementsAre("the loss of step 12 is not finite"));
}

TEST_F(RunsTest, DamageIsReportedByFileAndLine) {
  const fs::path folder = FakeRun{}.write(scratch_ / "run");
  const fs::path here = folder / "attempts/0001";
  const std::string metrics = read_text(here / "metrics.jsonl");
  const std::size_t third = metrics.find('\n', metrics.find('\n') + 1) + 1;
  const auto fault_with = [&](const std::string& inserted) {
    write_text(here / "metrics.jsonl",
               metrics.substr(0, third) + inserted + "\n" + metrics.substr(third));
    const OneRun run = read_run(folder);
    return run.faults.size() == 1 ? run.faults.front() : "no single fault";
  };
  const std::string line3 = (here / "metrics.jsonl:3: ").string();
  EXPECT_THAT(fault_with("{\"type\":"), HasSubstr(line3 + "is not valid JSON"));
  EXPECT_THAT(fault_with("[1]"), HasSubstr(line3 + "is not a JSON object"));
  EXPECT_THAT(fault_with("{}"), HasSubstr(line3 + "type is missing"));
  EXPECT_THAT(fault_with(R"({"type":"step","step":3})"), HasSubstr(line3 + "tokens is missing"));
  EXPECT_THAT(fault_with(R"({"type":"step","step":3.5})"), HasSubstr(line3 + "step = 3.5"));
  EXPECT_THAT(fault_with(R"({"type":"step","step":1e300})"), HasSubstr(line3 + "step = 1e+300"));
  EXPECT_THAT(
      fault_with(R"({"type":"step","step":3,"tokens":1,"loss":1,"gradient_norm":1,"seconds":-1})"),
      HasSubstr(line3 + "seconds = -1"));
  for (const char* seconds : {"1e-310", "1e300", "0", "\"nan\""}) {
    EXPECT_THAT(fault_with(fmt::format(R"({{"type":"step","step":3,"tokens":1,"loss":1,)"
                                       R"("gradient_norm":1,"seconds":{}}})",
                                       seconds)),
                HasSubstr(": must be from 1e-9 to 1e12"));
  }
  EXPECT_THAT(
      fault_with(R"({"type":"step","step":7,"tokens":1,"loss":1,"gradient_norm":1,"seconds":1})"),
      HasSubstr(line3 + "step 7 follows step 2"));
  EXPECT_THAT(fault_with(std::string(200, '[')), HasSubstr(line3));
  // Truncated anywhere: never a crash, and all lines but the last are read.
  for (std::size_t size = 0; size < metrics.size(); size += 7) {
    write_text(here / "metrics.jsonl", metrics.substr(0, size));
    EXPECT_LE(read_run(folder).steps.size(), 12U);
  }
  write_text(here / "metrics.jsonl", metrics);
  for (const char* file : {"run.json", "summary.json"}) {
    const std::string whole = read_text(here / file);
    for (std::size_t size = 0; size + 3 < whole.size(); size += 11) {
      write_text(here / file, whole.substr(0, size));
      const OneRun run = read_run(folder);
      ASSERT_EQ(run.faults.size(), 1U) << file << " cut to " << size;
      EXPECT_THAT(run.faults.front(), HasSubstr((here / file).string()));
    }
    // Every value replaced by one of another type.
    for (const char* other : {"null", "\"x\"", "[]", "{}", "-7", "1e999"}) {
      std::size_t colon = whole.find(": ");
      for (; colon != std::string::npos; colon = whole.find(": ", colon + 1)) {
        const std::size_t end = whole.find_first_of(",\n", colon);
        if (whole.find_first_of("{[", colon) < end) continue;
        write_text(here / file, whole.substr(0, colon + 2) + other + whole.substr(end));
        const Report report = make_report({folder.string()}, {});
        EXPECT_FALSE(report_text(report).empty());
      }
    }
    write_text(here / file, whole);
  }
  EXPECT_TRUE(read_run(folder).valid());
}

/// A record of two workers, which wait for servers for a fifth of their steps, and of `servers`
/// servers, which are always busy.
FakeRun with_servers(const char* method, int servers) {
  FakeRun fake{.data = 2};
  fake.sections = [](int) {
    return json{{"forward", 1.6}, {"backward", 3.2}, {"wait for servers", 1.2}};
  };
  fake.communication = {
      {"servers",
       {{"bytes_per_step", 4000}, {"least_bytes_per_step", 4000}, {"seconds_per_step", 0.1}}}};
  fake.change = [method, servers](json& run, json& summary) {
    run["ranks"] = 2 + servers;
    run["place"]["servers"] = servers;
    run["config"]["parallel"]["servers"] = servers;
    run["config"]["data_parallel"]["method"] = method;
    for (int s = 0; s < servers; ++s) {
      json rank = summary["ranks"].front();
      rank["rank"] = 2 + s;
      rank["server"] = s;
      rank["sections"] = {{"forward", 60.0}, {"optimizer", 60.0}};
      summary["ranks"].push_back(rank);
    }
  };
  return fake;
}

// Servers are ranks of the job but not workers: they count in its size and layout, but not in
// shares of a step or among ranks expected to be equally fast.
TEST_F(RunsTest, ServersAreNotWorkers) {
  for (const char* method : {"server", "async-server"}) {
    const OneRun run = read(with_servers(method, 2));
    EXPECT_THAT(run.faults, IsEmpty());
    EXPECT_EQ(run.facts.ranks, 4);
    EXPECT_EQ(run.facts.servers, 2);
    EXPECT_EQ(run.facts.layout(),
              fmt::format("tensor 1 × pipeline 1 × data 2 + 2 servers, {}", method));
    ASSERT_EQ(run.ranks.size(), 4U);
    EXPECT_FALSE(run.ranks[1].server);
    EXPECT_TRUE(run.ranks[2].server);
    EXPECT_EQ(run.ranks[3].communication.at("servers").bytes, 4000);
    const std::vector<Finding> found = diagnose(run, {});
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found.front().rule, "exposed-gradients");
    EXPECT_DOUBLE_EQ(found.front().share, 1.2 / 6);  // 12 steps of 0.5 s
    EXPECT_THAT(found.front().text, HasSubstr("use more parallel.servers"));
  }
  FakeRun damaged = with_servers("server", 2);
  const auto sound = damaged.change;
  damaged.change = [sound](json& run, json& summary) {
    sound(run, summary);
    run["place"]["servers"] = 1;
  };
  EXPECT_THAT(fault(damaged), HasSubstr("4 ranks in a layout of tensor 1 × pipeline 1 × data 2 + "
                                        "1 servers, server; restore the file"));
}

TEST_F(RunsTest, RunsAreFoundInSubfolders) {
  const FakeRun fake;
  (void)fake.write(scratch_ / "study/b");
  (void)fake.write(scratch_ / "study/a/deep");
  (void)fake.write(scratch_ / "study/a/deep", 2);
  fs::create_directories(scratch_ / "study/empty");
  fs::create_directory_symlink(scratch_ / "study", scratch_ / "study/again");
  const auto names = [](const std::vector<fs::path>& found) {
    std::vector<std::string> names;
    for (const fs::path& path : found) names.push_back(path.filename());
    return names;
  };
  EXPECT_THAT(names(find_runs({(scratch_ / "study").string()})), ElementsAre("deep", "b"));
  const std::string deep = (scratch_ / "study/a/deep").string();
  EXPECT_THAT(names(find_runs({deep, (scratch_ / "study").string()})), ElementsAre("deep", "b"));
  EXPECT_THAT(names(find_runs({deep + "/attempts/0002"})), ElementsAre("0002"));
  EXPECT_THROW(find_runs({(scratch_ / "study/empty").string()}), Error);
  EXPECT_THROW(find_runs({(scratch_ / "nowhere").string()}), Error);
}

class ScalingTest : public RunsTest {
 protected:
  std::vector<ScalingLine> lines(const std::vector<FakeRun>& fakes) {
    runs_.clear();
    for (const FakeRun& fake : fakes) runs_.push_back(read(fake));
    std::vector<Measured> measured;
    for (const OneRun& run : runs_) {
      EXPECT_THAT(run.faults, IsEmpty());
      measured.push_back({&run, figures_of(run, {})});
    }
    return scaling_lines(measured);
  }
  std::vector<OneRun> runs_;
};

TEST_F(ScalingTest, StrongAndWeak) {
  // 1 s, then 0.625 s on two ranks; 1.25 s for twice the batch on two.
  const auto found = lines({{.batch = 8, .seconds = {1}},
                            {.data = 2, .batch = 8, .seconds = {0.625}},
                            {.data = 2, .batch = 16, .seconds = {1.25}}});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].kind, ScalingKind::strong);
  EXPECT_THAT(found[0].label, HasSubstr("data grows; tensor 1, context 1, pipeline 1 held"));
  ASSERT_EQ(found[0].points.size(), 2U);
  EXPECT_DOUBLE_EQ(found[0].points[1].efficiency.median, 1 / 0.625 / 2);
  EXPECT_EQ(found[0].points[0].efficiency.median, 1);
  EXPECT_EQ(found[1].kind, ScalingKind::weak);
  EXPECT_DOUBLE_EQ(found[1].points[1].efficiency.median, 1 / 1.25);
  EXPECT_THAT(found[0].notes, IsEmpty());
}

TEST_F(ScalingTest, DifferingRunsAreOnNoLine) {
  EXPECT_THAT(lines({{.batch = 8}, {.data = 2, .batch = 12}}), IsEmpty());
  EXPECT_THAT(lines({{}, {.data = 2, .precision = "bf16"}}), IsEmpty());
  EXPECT_EQ(differences(runs_[0], runs_[1]), std::vector<std::string>{"precision.compute"});
  const auto change = [](const char* key, const json& value) {
    return FakeRun{.data = 2, .change = [key, value](json& run, json&) { run[key] = value; }};
  };
  EXPECT_THAT(lines({{}, change("versions", {{"trireme", "0.2.0"}})}), IsEmpty());
  EXPECT_THAT(lines({{}, change("threads_per_rank", 2)}), IsEmpty());
  EXPECT_THAT(lines({{}, change("device", "cuda:0")}), IsEmpty());
  EXPECT_THAT(lines({{}, change("hosts", {{{"name", "b"}, {"cpu", "Other CPU"}}})}), IsEmpty());
  EXPECT_EQ(lines({{}, change("hosts", {{{"name", "b"}, {"cpu", "Some CPU"}}})}).size(), 1U);
}

TEST_F(ScalingTest, SettingsOfGpusAndTheContentOfDatasetsCount) {
  const auto with_device = [](const char* key, bool value) {
    return FakeRun{.data = 2, .change = [key, value](json& run, json&) {
                     run["config"]["device"] = {{"type", "cuda"}, {key, value}};
                   }};
  };
  EXPECT_EQ(lines({{}, with_device("tf32", false)}).size(), 1U);
  EXPECT_EQ(lines({{}, with_device("time_products", true)}).size(), 1U);
  for (const char* key : {"tf32", "deterministic_attention", "graphs"}) {
    EXPECT_THAT(lines({{}, with_device(key, true)}), IsEmpty()) << key;
    EXPECT_EQ(differences(runs_[0], runs_[1]),
              std::vector<std::string>{fmt::format("device_settings.{}", key)});
  }
  EXPECT_THAT(lines({{}, with_device("time_products", false)}), IsEmpty());
  const auto damaged = [](json& run, json&) { run["config"]["device"] = 3; };
  EXPECT_EQ(lines({{}, {.data = 2, .change = damaged}}).size(), 1U);
  const auto of = [](int data, const char* name, const char* hash) {
    return FakeRun{.data = data, .change = [name, hash](json& run, json&) {
                     run["dataset"] = {{"name", name}, {"train_tokens", 7}, {"xxh3", hash}};
                   }};
  };
  EXPECT_EQ(lines({of(1, "a", "0123456789abcdef"), of(2, "b", "0123456789abcdef")}).size(), 1U);
  EXPECT_THAT(lines({of(1, "a", "0123456789abcdef"), of(2, "a", "fedcba9876543210")}), IsEmpty());
}

/// A run of a data-parallel method, whose settings are in `section`.
FakeRun with_method(int data, const char* method, const char* section, const json& settings,
                    int servers = 0) {
  FakeRun fake{.data = data};
  fake.change = [=](json& run, json&) {
    run["config"]["data_parallel"] = {{"method", method}};
    run["config"]["average"] = {{"every", 16}};
    run["config"][section] = settings;
    run["config"]["parallel"]["servers"] = servers;
    run["place"]["servers"] = servers;
    run["ranks"] = data + servers;
  };
  return fake;
}

TEST_F(ScalingTest, TheMethodIsPartOfAConfiguration) {
  const auto average = [](int data, int every) {
    return with_method(data, "average", "average", {{"every", every}});
  };
  EXPECT_THAT(lines({average(1, 16), average(2, 16)}), ElementsAre(testing::_));
  EXPECT_EQ(runs_[1].facts.layout(), "tensor 1 × pipeline 1 × data 2, average");
  EXPECT_THAT(lines({average(1, 16), average(2, 4)}), IsEmpty());
  EXPECT_EQ(differences(runs_[0], runs_[1]), std::vector<std::string>{"average.every"});
  EXPECT_THAT(lines({{}, average(2, 16)}), IsEmpty());
  // A record without a method is one of all-reduce, which ignores other methods' settings.
  EXPECT_THAT(lines({{}, with_method(2, "allreduce", "average", {{"every", 4}})}),
              ElementsAre(testing::_));
  // Servers are ranks beside the grid; more of them change the layout, not the configuration.
  EXPECT_THAT(
      lines({with_method(2, "server", "server", {}, 1), with_method(4, "server", "server", {}, 2)}),
      ElementsAre(testing::_));
  EXPECT_EQ(runs_[1].facts.layout(), "tensor 1 × pipeline 1 × data 4 + 2 servers, server");
}

TEST_F(ScalingTest, DifferencesOnALineAreNoted) {
  const auto found = lines({{.micro_batch = 4, .seconds = {1}},
                            {.data = 2, .micro_batch = 2, .seconds = {0.5}},
                            {.data = 2, .micro_batch = 4, .seconds = {0.6}}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].points[1].micro_batch, 2) << "the faster one";
  EXPECT_THAT(found[0].notes,
              ElementsAre(HasSubstr("the fastest"), HasSubstr("micro-batch, 2 to 4")));
  // No single degree grows over all of them.
  const auto mixed = lines({{.seconds = {1}},
                            {.tensor = 2, .seconds = {0.6}},
                            {.tensor = 2, .data = 2, .seconds = {0.4}}});
  ASSERT_EQ(mixed.size(), 3U);
  EXPECT_THAT(mixed[2].label, HasSubstr("the fastest layout at each number of ranks"));
  EXPECT_THAT(mixed[2].notes, testing::Contains("unlike: the layout changes along the line"));
  EXPECT_EQ(mixed[2].points.size(), 3U);
}

TEST_F(ScalingTest, OtherNodesAreNotRepeats) {
  const auto on = [](int nodes, double seconds) {
    FakeRun fake{.data = 4, .seconds = {seconds}};
    fake.change = [nodes](json& run, json&) {
      const json host = run["hosts"][0];
      run["hosts"] = json::array();
      for (int i = 0; i < nodes; ++i) run["hosts"].push_back(host);
    };
    return fake;
  };
  const auto found = lines({{.seconds = {1}}, on(1, 0.25), on(4, 0.5)});
  ASSERT_EQ(found.size(), 1U);
  ASSERT_EQ(found[0].points.size(), 2U);
  EXPECT_EQ(found[0].points[1].runs.size(), 1U);
  EXPECT_EQ(found[0].points[1].nodes, 1);
  EXPECT_DOUBLE_EQ(found[0].points[1].efficiency.median, 1);
  EXPECT_THAT(found[0].notes, ElementsAre(HasSubstr("nodes) at one number of ranks: the fastest")));
}

// Efficiency is against the fewest ranks of any layout that does the same work.
TEST_F(ScalingTest, EfficiencyHasOneReference) {
  const auto zero1 = [](json& run, json&) { run["config"]["parallel"]["zero"] = 1; };
  const std::vector<FakeRun> fakes = {{.seconds = {1}},
                                      {.tensor = 2, .seconds = {2}},
                                      {.tensor = 2, .data = 2, .seconds = {1.25}},
                                      {.data = 2, .seconds = {0.8}, .change = zero1},
                                      {.data = 4, .seconds = {0.5}, .change = zero1}};
  const auto found = lines(fakes);
  ASSERT_EQ(found.size(), 4U);
  for (const ScalingLine& line : found) {
    for (const ScalingPoint& point : line.points) {
      const double seconds = 512 / point.tokens_per_second.median;
      EXPECT_DOUBLE_EQ(point.efficiency.median, 1 / (seconds * point.ranks)) << line.label;
      EXPECT_EQ(point.reference,
                point.ranks == 1 ? "" : "tensor 1 × pipeline 1 × data 1 on 1 rank");
    }
  }
  // A study's own names, and one line for each of its layouts.
  std::vector<Measured> measured;
  const char* labels[] = {"data", "tensor2", "tensor2", "zero1", "zero1"};
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    runs_[i].label = labels[i];
    measured.push_back({&runs_[i], figures_of(runs_[i], {})});
  }
  const auto study = scaling_lines(measured);
  ASSERT_EQ(study.size(), 3U);
  EXPECT_EQ(study[0].label, "batch 8; tensor2");
  EXPECT_DOUBLE_EQ(study[0].points[0].efficiency.median, 0.25);
  EXPECT_EQ(study[0].points[0].reference, "data on 1 rank");
  EXPECT_EQ(study[1].label, "batch 8; zero1");
  EXPECT_EQ(study[2].points[2].name(), "zero1");
  const auto groups = work_groups(measured);
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].points.size(), 5U);
  EXPECT_TRUE(groups[0].scales());
  EXPECT_FALSE(groups[1].scales() || groups[2].scales()) << "4 and 2 sequences a rank";
}

TEST_F(ScalingTest, RepeatsAreOnePoint) {
  std::vector<FakeRun> fakes;
  for (int i = 0; i < 7; ++i) {
    fakes.push_back({.seconds = {1 + 0.1 * i}});
    fakes.push_back({.data = 2, .seconds = {0.5 + 0.05 * i}});
  }
  const auto found = lines(fakes);
  ASSERT_EQ(found.size(), 1U);
  const ScalingPoint& point = found[0].points[1];
  EXPECT_EQ(point.runs.size(), 7U);
  EXPECT_EQ(point.tokens_per_second.n, 7);
  EXPECT_TRUE(point.tokens_per_second.is_interval());
  EXPECT_DOUBLE_EQ(point.tokens_per_second.median, 512 / 0.65);
  EXPECT_DOUBLE_EQ(point.efficiency.median, 1);
}

// 512 tokens of 6,000 operations in 0.5 s are 6.144e6 a second.
TEST_F(RunsTest, AnImpossibleMfuIsAFindingAndNoFigure) {
  const auto with_peaks = [](double at_start, double at_end) {
    FakeRun fake;
    fake.change = [=](json& run, json& summary) {
      run["peak"]["operations_per_second"] = at_start;
      summary["peak"] = {{"at_start", at_start},
                         {"at_end", at_end},
                         {"operations_per_second", std::max(at_start, at_end)}};
    };
    return fake;
  };
  const OneRun busy = read(with_peaks(3e6, 12e6));
  EXPECT_THAT(busy.faults, IsEmpty());
  EXPECT_DOUBLE_EQ(figures_of(busy, {}).mfu.median, 6.144 / 12);
  EXPECT_THAT(busy.notes, testing::Contains("the peak is 0.0 GFLOP/s at the start and 0.0 at the "
                                            "end: MFU is of the better one"));
  EXPECT_THAT(diagnose(busy, {}), IsEmpty());
  const OneRun impossible = read(with_peaks(3e6, 6e6));
  EXPECT_EQ(figures_of(impossible, {}).mfu.n, 0);
  const auto found = diagnose(impossible, {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].rule, "impossible-mfu");
  EXPECT_THAT(found[0].text, HasSubstr("MFU of 102 % is impossible, so none is given"));
}

class DiagnosisTest : public RunsTest {
 protected:
  std::vector<std::string> rules(const FakeRun& fake) {
    const OneRun run = read(fake);
    EXPECT_THAT(run.faults, IsEmpty());
    std::vector<std::string> names;
    text_.clear();
    for (const Finding& finding : diagnose(run, {})) {
      names.push_back(finding.rule);
      text_ += finding.text + "\n";
    }
    return names;
  }
  std::string text_;
};

TEST_F(DiagnosisTest, ASoundRunHasNone) { EXPECT_THAT(rules({.data = 2}), IsEmpty()); }

// 12 steps of 0.5 s. Four stages, four micro-batches: 3/7 of a step is bubble.
TEST_F(DiagnosisTest, TheBubbleAndItsRemedy) {
  FakeRun fake{.pipeline = 4, .batch = 16, .micro_batch = 4};
  fake.sections = [](int) {
    return json{{"forward", 2.0}, {"backward", 3.5}, {"wait for pipeline", 1.5}};
  };
  EXPECT_THAT(rules(fake), ElementsAre("pipeline-bubble"));
  EXPECT_THAT(text_, HasSubstr("25 % of the step"));
  EXPECT_THAT(text_, HasSubstr("4 stages and 4 micro-batches, equal stages: 43 %"));
  EXPECT_THAT(text_, HasSubstr("use 16 micro-batches (train.micro_batch = 1; 16 %)"));
  EXPECT_THAT(text_, HasSubstr("virtual_stages = 2 (27 %)"));
}

TEST_F(DiagnosisTest, GradientsThatAreNotHidden) {
  FakeRun fake{.data = 2};
  fake.sections = [](int) {
    return json{{"forward", 1.0},
                {"backward", 2.0},
                {"wait for gradients", 0.6},
                {"reduce gradients (overlapped)", 1.2}};
  };
  EXPECT_THAT(rules(fake), ElementsAre("exposed-gradients"));
  EXPECT_THAT(text_, HasSubstr("10 % of the step waits"));
  EXPECT_THAT(text_, HasSubstr("reductions take 20 %"));
  fake.change = [](json& run, json&) { run["config"]["parallel"]["overlap"] = false; };
  EXPECT_THAT(rules(fake), ElementsAre("exposed-gradients"));
  EXPECT_THAT(text_, HasSubstr("set parallel.overlap = true"));
  // Of ZeRO-2 and 3, inside forward and backward.
  fake.sections = [](int rank) {
    return json{{"forward", 1.0},
                {"backward", rank == 1 ? 2.6 : 2.0},
                {"wait for shards", rank == 1 ? 0.9 : 0.3}};
  };
  EXPECT_THAT(rules(fake), ElementsAre("exposed-gradients")) << "the slow rank only waits";
}

TEST_F(DiagnosisTest, AveragesThatTakeLong) {
  FakeRun fake{.data = 2};
  fake.sections = [](int rank) {
    return json{
        {"forward", 3.0}, {"wait for workers", rank == 0 ? 0.6 : 0.0}, {"average weights", 0.3}};
  };
  EXPECT_THAT(rules(fake), IsEmpty());
  fake.change = [](json& run, json&) { run["config"]["data_parallel"] = {{"method", "average"}}; };
  EXPECT_THAT(rules(fake), ElementsAre("exposed-averages"));
  EXPECT_THAT(text_, HasSubstr("10 % of the steps' time is averages, 5 % waiting"));
}

TEST_F(DiagnosisTest, TheSlowRankIsNamed) {
  FakeRun fake{.data = 4};
  fake.sections = [](int rank) {
    return json{{"forward", 1.0}, {"backward", rank == 3 ? 2.6 : 2.0}};
  };
  EXPECT_THAT(rules(fake), ElementsAre("slow-rank"));
  EXPECT_THAT(text_, HasSubstr("rank 3 computes 20 % longer"));
  fake.change = [](json&, json& summary) { summary["ranks"][3]["host"] = "node07"; };
  EXPECT_THAT(rules(fake), ElementsAre("slow-rank"));
  EXPECT_THAT(text_, HasSubstr("rank 3 on node07 computes 20 % longer"));
  fake.change = [](json&, json&) {};
  // Stages may differ from each other; that is a matter of the split.
  fake.data = 2, fake.pipeline = 2;
  fake.sections = [](int rank) {
    return json{{"forward", 1.0}, {"backward", rank >= 2 ? 2.6 : 2.0}};
  };
  EXPECT_THAT(rules(fake), IsEmpty());
  fake.sections = [](int rank) {
    return json{{"forward", 1.0}, {"backward", rank >= 2 ? 4.0 : 2.0}};
  };
  EXPECT_THAT(rules(fake), ElementsAre("uneven-stages"));
}

TEST_F(DiagnosisTest, TensorSumsAndTheirVolume) {
  FakeRun fake{.tensor = 2};
  fake.sections = [](int) { return json{{"forward", 2.0}, {"backward", 3.0}}; };
  fake.communication = {
      {"tensor",
       {{"bytes_per_step", 150.0}, {"least_bytes_per_step", 100.0}, {"seconds_per_step", 0.1}}}};
  EXPECT_THAT(rules(fake), ElementsAre("tensor-communication", "more-than-least"));
  EXPECT_THAT(text_, HasSubstr("20 % of the step is sums over 2 tensor ranks"));
  EXPECT_THAT(text_, HasSubstr("1.50 times the least"));
}

TEST_F(DiagnosisTest, TheLoaderAndUnsteadySteps) {
  FakeRun fake;
  fake.sections = [](int) { return json{{"forward", 2.0}, {"load data", 0.6}}; };
  EXPECT_THAT(rules(fake), ElementsAre("loader"));
  EXPECT_THAT(rules({.seconds = {1, 1, 1, 1, 2, 1, 2, 1, 2, 1, 2, 1}}), ElementsAre("unsteady"));
}

}  // namespace
}  // namespace trireme::report
