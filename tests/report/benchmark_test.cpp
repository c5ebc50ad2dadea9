// Benchmark cases: what makes runs a result, what makes them none, and the conventions of its
// operations.
#include "trireme/report/benchmark.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_run.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;
using test::FakeRun;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Change = std::function<void(FakeRun&, json& record)>;

class BenchmarkTest : public testing::Test {
 protected:
  /// Repeats, each with another start; `change` makes the third another one.
  Report report(int repeats, const Change& change = {}, std::string recompute = "auto") {
    std::filesystem::remove_all(scratch_ / "runs");
    constexpr double seconds[] = {0.5, 0.6, 0.55, 0.52, 0.58};
    for (int i = 0; i < repeats; ++i) {
      FakeRun fake{.data = 2, .seconds = {seconds[i % 5]}};
      json unused = fake.run_json();
      if (change && i == 2) change(fake, unused);
      fake.change = [&, i](json& run, json&) {
        run["start"] = fmt::format("2026-11-22T08:00:{:02}Z", i);
        run["config"]["model"]["vocabulary"] = 256;
        run["config"]["parallel"]["recompute"] = recompute;
        if (change && i == 2) change(fake, run);
      };
      fake.write(scratch_ / fmt::format("runs/{}", i));
    }
    return make_report({(scratch_ / "runs").string()}, {});
  }
  /// Of five repeats, without the folder before a run's name, and the count of valid ones.
  std::vector<std::string> faults(const Change& change) {
    const Report all = report(5, change);
    std::vector<std::string> found = judge(case_, all).faults;
    for (std::string& fault : found) {
      for (std::size_t at = 0;
           (at = fault.find(scratch_.path().string() + "/runs/")) != fault.npos;) {
        fault.erase(at, scratch_.path().string().size() + 6);
      }
    }
    if (!found.empty() && found.back() == "4 valid repeats; a case takes 5 at least") {
      found.pop_back();
    }
    return found;
  }
  BenchmarkCase case_{"toy-v1",
                      "0123456789abcdef",
                      {{"train.batch", 8}, {"model.width", 32}, {"precision.compute", "fp32"}}};
  trireme::test::Scratch scratch_;
};

TEST_F(BenchmarkTest, FiveRepeatsAreAResult) {
  const Report all = report(5);
  const Submission result = judge(case_, all);
  ASSERT_THAT(result.faults, IsEmpty());
  EXPECT_EQ(result.tokens_per_second.n, 5);
  EXPECT_DOUBLE_EQ(result.tokens_per_second.median, 512 / 0.55);
  EXPECT_DOUBLE_EQ(result.tokens_per_second.low, 512 / 0.6);
  EXPECT_DOUBLE_EQ(result.tokens_per_second.high, 512 / 0.5);
  EXPECT_DOUBLE_EQ(result.seconds.median, 0.55);
  EXPECT_DOUBLE_EQ(result.mfu.median, 512 / 0.55 * 6000 / 1e9);
  const std::string text = submission_text(result);
  EXPECT_THAT(text, HasSubstr("\nbenchmark toy-v1 (xxh3 0123456789abcdef): 930.9 (853.3 to 1024) "
                              "n 5 tokens/s; 465.455 tokens/s a rank; 0.55 (0.5 to 0.6) n 5 s"));
  EXPECT_THAT(text, HasSubstr("2 ranks, 1 node; cpu, Some CPU; fp32; tensor 1 × pipeline 1 × data "
                              "2, zero 0, 1f1b, micro-batch 2, recompute auto; trireme 0.1.0\n"));
  const json line = submission_json(result);
  EXPECT_EQ(line.at("valid"), true);
  EXPECT_EQ(line.at("trireme"), "0.1.0");
  EXPECT_EQ(line.at("runs").size(), 5U);
  // 6·L·C·T = 98304 of 8 layers 32 wide, 64 tokens.
  EXPECT_EQ(line["operations"]["model"]["per_token"], 6000);
  EXPECT_EQ(line["operations"]["full_attention"]["per_token"], 6000 + 98304);
  EXPECT_DOUBLE_EQ(line["operations"]["full_attention"]["per_second_per_rank"],
                   512 / 0.55 * 104304 / 2);
  EXPECT_DOUBLE_EQ(line["operations"]["full_attention"]["share_of_peak"],
                   512 / 0.55 * 104304 / 1e9);
}

TEST_F(BenchmarkTest, FourRepeatsAreTooFew) {
  const Report all = report(4);
  const Submission result = judge(case_, all);
  EXPECT_THAT(result.faults, ElementsAre("4 valid repeats; a case takes 5 at least"));
  EXPECT_THAT(submission_text(result),
              HasSubstr("benchmark toy-v1 (xxh3 0123456789abcdef): INVALID\n        4 valid"));
  EXPECT_EQ(submission_json(result).at("valid"), false);
  EXPECT_FALSE(submission_json(result).contains("tokens_per_second"));
}

TEST_F(BenchmarkTest, EveryKeyOfTheCaseIsCompared) {
  EXPECT_THAT(faults([](FakeRun& fake, json&) { fake.batch = 16; }),
              ElementsAre("2: train.batch: 8 in the case → 16"));
  EXPECT_THAT(faults([](FakeRun& fake, json&) { fake.precision = "bf16"; }),
              ElementsAre("2: precision.compute: \"fp32\" in the case → \"bf16\""));
  case_.fixed["model.norm"] = "rmsnorm";
  EXPECT_THAT(faults([](FakeRun&, json& run) { run["config"]["model"]["norm"] = "rmsnorm"; }),
              ElementsAre("0: model.norm: \"rmsnorm\" in the case → not recorded",
                          "1: model.norm: \"rmsnorm\" in the case → not recorded",
                          "3: model.norm: \"rmsnorm\" in the case → not recorded",
                          "4: model.norm: \"rmsnorm\" in the case → not recorded",
                          "1 valid repeat; a case takes 5 at least"));
}

TEST_F(BenchmarkTest, RepeatsHaveOneLayoutOneMachineAndOneSetOfVersions) {
  const auto config = [](const char* section, const char* key, const json& value) {
    return [=](FakeRun&, json& run) { run["config"][section][key] = value; };
  };
  EXPECT_THAT(faults(config("parallel", "zero", 1)),
              ElementsAre("2: differs from 0 in parallel.zero"));
  EXPECT_THAT(faults(config("train", "micro_batch", 1)),
              ElementsAre("2: differs from 0 in train.micro_batch"));
  EXPECT_THAT(faults([](FakeRun&, json& run) { run["versions"]["trireme"] = "0.2.0"; }),
              ElementsAre("2: differs from 0 in versions.trireme"));
  EXPECT_THAT(faults([](FakeRun&, json& run) { run["hosts"][0]["cpu"] = "Other CPU"; }),
              ElementsAre("2: differs from 0 in processor"));
  EXPECT_THAT(faults([](FakeRun& fake, json&) { fake.data = 1, fake.tensor = 2; }),
              ElementsAre("2: differs from 0 in layout"));
  case_.fixed.erase("train.batch");
  EXPECT_THAT(faults([](FakeRun& fake, json&) { fake.batch = 16; }),
              ElementsAre("2: differs from 0 in train.batch"));
}

TEST_F(BenchmarkTest, EveryRunIsWholeAndValid) {
  EXPECT_THAT(faults([](FakeRun& fake, json&) { fake.cores_shared = "ranks share cores: 2"; }),
              ElementsAre("2: ranks share cores: 2"));
  EXPECT_THAT(faults([](FakeRun& fake, json&) { fake.whole = false; }),
              ElementsAre(HasSubstr("2: incomplete: attempt 0001: there is no summary.json")));
  EXPECT_THAT(faults([](FakeRun&, json& run) { run["config"]["train"]["steps"] = 20; }),
              ElementsAre("2: unfinished: step 12 of 20"));
}

TEST_F(BenchmarkTest, TheLineNamesSharedCores) {
  report(5, [](FakeRun& fake, json& run) { run["cores_shared"] = fake.cores_shared = "2 on 1"; });
  const Report all = make_report({(scratch_ / "runs").string()}, {.shared_cores = true});
  const Submission result = judge(case_, all);
  ASSERT_THAT(result.faults, IsEmpty());
  EXPECT_THAT(submission_text(result), HasSubstr("2 ranks, 1 node, ranks share cores; "));
  EXPECT_EQ(submission_json(result).at("shared_cores"), true);
}

TEST_F(BenchmarkTest, ARepeatIsOneStart) {
  report(5);
  FakeRun{.data = 2, .first = 13}.write(scratch_ / "runs/1", 2);
  const Report all = make_report({(scratch_ / "runs").string()}, {});
  const std::vector<std::string> faults = judge(case_, all).faults;
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_THAT(faults[0], testing::EndsWith("2 attempts made its steps; a repeat is one start"));
}

TEST_F(BenchmarkTest, ACopyIsNoRepeat) {
  report(4);
  std::filesystem::copy(scratch_ / "runs/0", scratch_ / "runs/copy",
                        std::filesystem::copy_options::recursive);
  const Report all = make_report({(scratch_ / "runs").string()}, {});
  const std::vector<std::string> faults = judge(case_, all).faults;
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_THAT(faults[0], testing::EndsWith("runs/0; a copy is no repeat"));
}

TEST_F(BenchmarkTest, WithoutAPeakThereIsNoShareOfIt) {
  const Report all =
      report(5, [](FakeRun&, json& run) { run["peak"]["operations_per_second"] = 0.0; });
  const Submission result = judge(case_, all);
  ASSERT_THAT(result.faults, IsEmpty());
  EXPECT_THAT(submission_text(result), HasSubstr("; MFU -; "));
  EXPECT_TRUE(submission_json(result)["operations"]["hardware"]["share_of_peak"].is_null());
}

// GPT 175B: L = 96, C = 12288, T = 2048, V = 51200, so 72·L·C² = 1 043 677 052 928,
// 6·V·C = 3 774 873 600 and L·C·T = 2 415 919 104.
TEST_F(BenchmarkTest, OperationsAreThoseOfThePapers) {
  const auto flops = [&](const char* recompute) {
    FakeRun fake;
    fake.change = [&](json& run, json&) {
      run["flops_per_token"] = 1061947441152.0;  // 6·N + 6·L·C·T; tests/model/config_test.cpp
      run["config"]["model"] = {
          {"layers", 96}, {"width", 12288}, {"sequence", 2048}, {"vocabulary", 51200}};
      run["config"]["parallel"]["recompute"] = recompute;
    };
    const auto run = read_run(fake.write(scratch_ / recompute));
    return token_flops(run);
  };
  for (const char* none : {"auto", "none", "cheap"}) {
    EXPECT_EQ(flops(none).model, 1061947441152.0);
    // 72·L·C²·(1 + T/(6·C) + V/(12·C·L)), Korthikanti et al.
    EXPECT_EQ(flops(none).full_attention, 1043677052928.0 + 12 * 2415919104.0 + 3774873600.0);
    EXPECT_EQ(flops(none).hardware, flops(none).full_attention);
  }
  // 96·L·C²·(1 + T/(6·C) + V/(16·L·C)), Narayanan et al.
  EXPECT_EQ(flops("full").hardware, 1391569403904.0 + 16 * 2415919104.0 + 3774873600.0);
  EXPECT_EQ(flops("full").full_attention, flops("none").full_attention);
  EXPECT_EQ(flops("selective").hardware, flops("none").hardware + 4 * 2415919104.0);
}

}  // namespace
}  // namespace trireme::report
