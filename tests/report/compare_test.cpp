// What differs between runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"
#include "trireme/report/page.hpp"

#include "fake_run.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;
using test::FakeRun;
using testing::HasSubstr;
using testing::Not;

TEST(Compare, ShowsWhatDiffersAndBySpeedMemoryAndLoss) {
  const trireme::test::Scratch scratch;
  const auto other = [](json& run, json& summary) {
    run["versions"]["trireme"] = "0.2.0";
    run["config"]["optim"]["clip"] = 2.0;
    run["environment"] = {{"OMP_PROC_BIND", "close"}};
    run["dataset"] = {{"name", "text"}, {"sources", {{{"name", "web"}, {"xxh3", "ab"}}, 3}}};
    summary["memory"]["stash"] = {{"predicted", 3 << 20}, {"measured", 3 << 20}};
  };
  const std::string a = FakeRun{.seconds = {0.5}}.write(scratch / "a").string();
  const std::string b =
      FakeRun{.data = 2, .seconds = {0.25}, .loss = 4.5, .precision = "bf16", .change = other}
          .write(scratch / "b")
          .string();
  const Report report = make_report({a, b}, {});
  const json tables = compare_json(report).at("tables");
  const auto row = [&](const char* table, const char* key) {
    return tables.at(table).at(key).get<std::vector<std::string>>();
  };
  using testing::ElementsAre;
  EXPECT_THAT(row("configuration", "precision.compute"), ElementsAre("fp32", "bf16"));
  EXPECT_THAT(row("configuration", "optim.clip"), ElementsAre("-", "2.0"));
  EXPECT_THAT(row("configuration", "dataset.web.xxh3"), ElementsAre("-", "ab"));
  EXPECT_FALSE(tables["configuration"].contains("model.width")) << "it is equal";
  EXPECT_THAT(row("versions", "trireme"), ElementsAre("0.1.0", "0.2.0"));
  EXPECT_THAT(row("machine", "ranks"), ElementsAre("1", "2"));
  EXPECT_THAT(row("machine", "environment.OMP_PROC_BIND"), ElementsAre("-", "close"));
  EXPECT_THAT(row("speed", "tokens/s, times the first"), ElementsAre("1", "2 [2, 2] n 9"));
  EXPECT_THAT(row("speed", "tokens/s of a rank, times the first"),
              ElementsAre("1", "1 [1, 1] n 9"));
  EXPECT_THAT(row("loss", "training, less the first's"),
              ElementsAre("0", "-0.5 (-0.5 to -0.5) n 3"));
  EXPECT_THAT(row("memory, MiB", "total"), ElementsAre("0.000", "3.000"));
  const std::string text = compare_text(report);
  EXPECT_THAT(text, HasSubstr("precision.compute"));
  EXPECT_THAT(text, Not(HasSubstr("model.width")));
}

TEST(Compare, NeedsTwoRunsWithFigures) {
  const trireme::test::Scratch scratch;
  const std::string a = FakeRun{}.write(scratch / "a").string();
  const std::string b = FakeRun{.cores_shared = "2 on 1"}.write(scratch / "b").string();
  try {
    (void)compare_text(make_report({a, b}, {}));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("compare: 1 of 2 runs give figures, at least 2 different runs are needed"));
    EXPECT_THAT(error.what(), HasSubstr("ranks share cores"));
  }
}

}  // namespace
}  // namespace trireme::report
