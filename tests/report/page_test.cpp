// The four formats of a report, of synthetic runs.
#include "trireme/report/page.hpp"

#include <cmath>
#include <cstdlib>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"

#include "fake_run.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::FakeRun;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Names of elements still open at the end, or what is malformed; empty: every element is closed,
/// every attribute quoted, every & an entity. Sufficient for our pages.
std::string malformed(const std::string& page) {
  std::vector<std::string> open;
  std::size_t at = page.find('>') + 1;  // after the document type
  while ((at = page.find_first_of("<&", at)) != page.npos) {
    if (page[at] == '&') {
      const std::size_t end = page.find(';', at);
      const std::string name = end == page.npos ? "" : page.substr(at + 1, end - at - 1);
      if (name.empty() || name.size() > 6) return "bare & near " + page.substr(at, 30);
      at = end;
      continue;
    }
    if (page.compare(at, 4, "<!--") == 0) {
      at = page.find("-->", at) + 3;
      continue;
    }
    if (page.compare(at, 9, "<![CDATA[") == 0) {
      at = page.find("]]>", at) + 3;
      continue;
    }
    const std::size_t end = page.find('>', at);
    const std::string tag = page.substr(at + 1, end - at - 1);
    if (end == page.npos || tag.find('<') != tag.npos)
      return "open tag near " + page.substr(at, 30);
    const std::string name = tag.substr(0, tag.find_first_of(" \t\n/", 1));
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag.substr(0, open.back().size() + 1)) {
        return "closes " + tag + (open.empty() ? "" : " in " + open.back());
      }
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end + 1;
  }
  return open.empty() ? "" : "open: " + open.back();
}

bool gnuplot_is_here() { return std::system("gnuplot --version >/dev/null 2>&1") == 0; }

class PageTest : public testing::Test {
 protected:
  Report study() {
    FakeRun one{.batch = 8, .seconds = {1, 1, 1, 1.1, 0.9, 1}};
    (void)one.write(scratch_ / "study/one <&> \"quoted\", it's");
    FakeRun two{.data = 2, .batch = 8, .seconds = {0.6, 0.55}};
    two.communication = {
        {"data",
         {{"bytes_per_step", 2e6}, {"least_bytes_per_step", 1.9e6}, {"seconds_per_step", 0.01}}}};
    write_trace(two.write(scratch_ / "study/two") / "attempts/0001");
    (void)FakeRun{.cores_shared = "2 ranks on 1 core"}.write(scratch_ / "study/cut");
    return make_report({(scratch_ / "study").string()}, {});
  }
  /// Three layouts on two numbers of ranks, three times, as jobs/scaling-study leaves them.
  json write_points() const {
    json points = json::array();
    for (int repeat = 1; repeat <= 3; ++repeat) {
      for (const int ranks : {2, 4}) {
        for (const char* layout : {"data", "zero1", "tensor2"}) {
          const std::string name = fmt::format("strong-r{:05}-{}-{}", ranks, layout, repeat);
          const bool tensor = std::string(layout) == "tensor2",
                     zero = std::string(layout) == "zero1";
          FakeRun fake{.tensor = tensor ? 2 : 1, .data = tensor ? ranks / 2 : ranks, .steps = 30};
          fake.seconds = {(tensor ? 2.0 : 1.0) / ranks + 0.01 * repeat};
          fake.change = [zero](json& run, json&) {
            run["config"]["parallel"]["zero"] = zero ? 1 : 0;
          };
          (void)fake.write(scratch_ / "strong/runs" / name);
          points.push_back({{"name", name}, {"layout", layout}});
        }
      }
    }
    return points;
  }
  /// Four steps of 10 ms on two ranks.
  static void write_trace(const fs::path& attempt) {
    std::string text = "{\"traceEvents\": [";
    const char* separator = "\n";
    for (int rank = 0; rank < 2; ++rank) {
      for (int step = 0; step < 12; ++step) {
        const auto span = [&](const char* name, int stream, double begin, double length) {
          const json event{{"ph", "X"},
                           {"name", name},
                           {"pid", rank},
                           {"tid", stream},
                           {"ts", 1e4 * step + begin},
                           {"dur", length}};
          text += separator + event.dump();
          separator = ",\n";
        };
        span("load data", 0, 0, 500);
        span("forward", 0, 500, 3000);
        span("backward", 0, 3500, 5000);
        span("reduce gradients (overlapped)", 1, 5000, 3600);
        span("optimizer", 0, 8600, 1000);
      }
    }
    trireme::test::write_text(attempt / "trace.json", text + "\n]}\n");
  }
  trireme::test::Scratch scratch_;
};

TEST_F(PageTest, TextShowsFiguresAndReasons) {
  const std::string text = report_text(study());
  EXPECT_THAT(
      text, HasSubstr("strong scaling, batch 8; data grows; tensor 1, context 1, pipeline 1 held"));
  EXPECT_THAT(text, HasSubstr("100 (the reference)"));
  EXPECT_THAT(text, HasSubstr("INVALID " + (scratch_ / "study/cut").string()));
  EXPECT_THAT(text, HasSubstr("ranks share cores: 2 ranks on 1 core"));
  EXPECT_THAT(text, HasSubstr("nonparametric 95 % interval"));
}

TEST(EstimateText, NamesTheEstimate) {
  EXPECT_EQ(estimate_text({}), "-");
  EXPECT_EQ(estimate_text(estimate({2})), "2 n 1");
  EXPECT_EQ(estimate_text(estimate({1, 2, 3})), "2 (1 to 3) n 3");
  EXPECT_EQ(estimate_text(estimate({1, 2, 3, 4, 5, 6}), 10), "35 [10, 60] n 6");
  EXPECT_EQ(estimate_text(estimate({123456.7})), "123457 n 1");
}

TEST_F(PageTest, CsvHasARowPerRunAndAsManyCellsInEach) {
  std::istringstream rows(report_csv(study()));
  std::vector<std::size_t> cells;
  std::string all;
  for (std::string row; std::getline(rows, row);) {
    std::size_t count = 1;
    bool quoted = false;
    for (const char c : row) {
      if (c == '"') quoted = !quoted;
      count += static_cast<std::size_t>(c == ',' && !quoted);
    }
    cells.push_back(count);
    all += row + "\n";
  }
  ASSERT_EQ(cells.size(), 4U);
  for (const std::size_t count : cells) EXPECT_EQ(count, cells.front());
  EXPECT_THAT(all, HasSubstr("one <&> \"\"quoted\"\", it's\",yes,"));
  EXPECT_THAT(all, HasSubstr("study/cut,no,"));
  EXPECT_THAT(all, HasSubstr(",9,0.55,0.55,0.55,"));
}

TEST_F(PageTest, JsonGivesNoFigureOfAnInvalidRun) {
  const Report report = study();
  const json all = report_json(report);
  ASSERT_EQ(all.at("runs").size(), 3U);
  for (const json& run : all.at("runs")) {
    EXPECT_EQ(run.at("valid").get<bool>(), run.contains("figures"));
    EXPECT_EQ(run.at("valid").get<bool>(), !run.contains("faults"));
  }
  EXPECT_EQ(all.at("scaling").size(), 1U);
  EXPECT_DOUBLE_EQ(all["scaling"][0]["points"][1]["efficiency"]["median"], 1 / 0.55 / 2);
  const json two = all["runs"][2];
  EXPECT_EQ(two["communication"]["data"]["mean_bytes_per_step"], 2e6);
  EXPECT_EQ(two["communication"]["data"]["mean_least_bytes_per_step"], 1.9e6);
  const json benchmarks = google_benchmark_json(report).at("benchmarks");
  ASSERT_EQ(benchmarks.size(), 3U);
  EXPECT_EQ(benchmarks[0]["error_occurred"], true);
  EXPECT_EQ(benchmarks[2]["real_time"], 550);
  EXPECT_EQ(benchmarks[2]["time_unit"], "ms");
  EXPECT_EQ(benchmarks[2]["iterations"], 9);
}

TEST_F(PageTest, HtmlIsSelfContained) {
  if (!gnuplot_is_here()) GTEST_SKIP() << "without gnuplot";
  const std::string page = report_html(study());
  EXPECT_EQ(malformed(page), "");
  for (const char* outside : {"http:", "https:", "<script", "<link", "<img", "@import", "src="}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  // Every reference is to an id of this page, and every id is unique.
  for (std::size_t at = page.find("href="); at != page.npos; at = page.find("href=", at + 1)) {
    EXPECT_EQ(page[at + 6], '#') << page.substr(at, 40);
  }
  std::vector<std::string> ids;
  for (std::size_t at = page.find(" id="); at != page.npos; at = page.find(" id=", at + 1)) {
    ids.push_back(page.substr(at + 5, page.find(page[at + 4], at + 5) - at - 5));
  }
  const std::size_t all = ids.size();
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  EXPECT_EQ(ids.size(), all);
  EXPECT_THAT(page, HasSubstr("one &lt;&amp;&gt; &quot;quoted&quot;"));
  // Speed, efficiency, memory, losses; sections and memory of two runs; communication and trace of
  // one.
  std::size_t pictures = 0;
  for (std::size_t at = page.find("<svg"); at != page.npos; at = page.find("<svg", at + 1))
    ++pictures;
  EXPECT_EQ(pictures, 4U + 2 * 2 + 2);
  EXPECT_EQ(malformed("<!DOCTYPE html><a><b></a>"), "closes /a in b");
}

TEST_F(PageTest, AStudysPageIsShortAndHasItsNames) {
  if (!gnuplot_is_here()) GTEST_SKIP() << "without gnuplot";
  trireme::test::write_text(scratch_ / "strong/index.json",
                            json{{"points", write_points()}}.dump());
  const Report report = make_report({(scratch_ / "strong/runs").string()}, {});
  ASSERT_EQ(report.measured.size(), 18U);
  const std::string page = report_html(report);
  EXPECT_EQ(malformed(page), "");
  EXPECT_LT(page.size(), 300'000U);
  EXPECT_THAT(page, Not(HasSubstr(scratch_.path().string())));
  const auto times = [&](const std::string& what) {
    std::size_t count = 0;
    for (std::size_t at = page.find(what); at != page.npos; at = page.find(what, at + 1)) ++count;
    return count;
  };
  EXPECT_LE(times("<svg"), 8U);
  EXPECT_EQ(times("<details>"), 18U);
  EXPECT_EQ(times("prefers-color-scheme: dark"), 1U);
  EXPECT_EQ(times("ideal<"), 2U) << "one in the picture of speed, one in that of efficiency";
  EXPECT_LT(page.find("class=\"verdict\""), page.find("<svg"));
  EXPECT_THAT(page, HasSubstr("Strong scaling, batch 8: the fastest is data on 4 ranks with "));
  EXPECT_THAT(page, HasSubstr(" % of the speed per rank of data on 2 ranks"));
  EXPECT_THAT(page, HasSubstr("batch 8; zero1"));
  const std::string key = fingerprint(*report.measured.front().run);
  EXPECT_GT(page.find(key), page.find("<details>")) << "hashes are in the details alone";
}

// Predictions of one layout of three, on a number of ranks that was not run too.
TEST_F(PageTest, AStudyShowsItsPredictions) {
  const auto point = [](int ranks, double speed, bool extrapolated) {
    return json{{"layout", "data"},   {"ranks", ranks},    {"tokens_per_second", speed},
                {"low", 0.5 * speed}, {"high", 2 * speed}, {"extrapolated", extrapolated}};
  };
  json index{{"points", write_points()},
             {"predictions",
              {{"machine", "some.toml"},
               {"points",
                {point(8, 4000, true),
                 point(2, 1000, false),
                 point(4, 2000, false),
                 {{"layout", "zero1"}, {"ranks", 2}, {"reason", "refused"}}}}}}};
  const auto made = [&] {
    trireme::test::write_text(scratch_ / "strong/index.json", index.dump());
    return make_report({(scratch_ / "strong/runs").string()}, {});
  };
  const Report report = made();
  const ScalingLine& data = report.lines.front();
  ASSERT_EQ(data.label, "batch 8; data");
  ASSERT_EQ(data.predicted.points.size(), 3U);
  EXPECT_EQ(data.predicted.points.back().ranks, 8);
  EXPECT_TRUE(data.predicted.points.back().extrapolated);
  for (std::size_t i = 1; i < report.lines.size(); ++i) {
    EXPECT_TRUE(report.lines[i].predicted.points.empty()) << report.lines[i].label;
  }
  // Nor has a line whose layout changes.
  std::vector<ScalingLine> mixed{data};
  mixed[0].predicted = {};
  mixed[0].points.back().runs = report.lines[1].points.back().runs;
  set_predictions(mixed);
  EXPECT_TRUE(mixed[0].predicted.points.empty());
  // 8 sequences of 64 tokens in half a second and 0.02 s, the median of three.
  EXPECT_THAT(prediction_cells(data, 2), ElementsAre("1000", "-1.5 %", "500 to 2000"));
  EXPECT_THAT(prediction_cells(data, 8), ElementsAre("4000", "-", "2000 to 8000"));
  EXPECT_THAT(prediction_cells(data, 3), ElementsAre("-", "-", "-"));

  // The band, the predicted curve, and the measured points over it.
  const Plot speed = plot_scaling(report.lines, ScalingKind::strong, false);
  EXPECT_THAT(speed.script, HasSubstr("$predicted0 << EOD\n2 1000 500 2000\n4 2000 1000 4000\n8 "
                                      "4000 2000 8000\nEOD"));
  EXPECT_THAT(speed.script, HasSubstr("set xtics (2, 4, 8)"));
  const std::size_t band = speed.script.find("$predicted0 using 1:3:4 with filledcurves");
  const std::size_t curve = speed.script.find("$predicted0 using 1:2 with linespoints");
  ASSERT_NE(band, std::string::npos);
  EXPECT_LT(band, curve);
  EXPECT_LT(curve, speed.script.find("$line0 using"));
  EXPECT_THAT(speed.script, HasSubstr("title 'batch 8; data, predicted by some.toml'"));
  const Plot efficiency = plot_scaling(report.lines, ScalingKind::strong, true);
  EXPECT_THAT(efficiency.script, Not(HasSubstr("predicted")));
  EXPECT_THAT(efficiency.script, HasSubstr("set xtics (2, 4)"));

  const json line = report_json(report).at("scaling").at(0).at("predicted");
  EXPECT_EQ(line.at("machine"), "some.toml");
  EXPECT_EQ(line.at("points").at(2), json({{"ranks", 8},
                                           {"tokens_per_second", 4000.0},
                                           {"low", 2000.0},
                                           {"high", 8000.0},
                                           {"extrapolated", true}}));
  EXPECT_THAT(report_text(report), HasSubstr("\n    8 | 4000       | -        | 2000 to 8000\n"));
  if (gnuplot_is_here()) {
    const std::string page = report_html(report);
    EXPECT_EQ(malformed(page), "");
    EXPECT_LT(page.size(), 300'000U);
    EXPECT_THAT(page, HasSubstr("<td class=\"n\">4000</td>"));
  }

  // Without bands none is drawn; damaged predictions are none.
  for (json& each : index["predictions"]["points"]) each.erase("low"), each.erase("high");
  const Report bare = made();
  EXPECT_THAT(plot_scaling(bare.lines, ScalingKind::strong, false).script,
              AllOf(HasSubstr("$predicted0 using 1:2"), Not(HasSubstr("filledcurves"))));
  index["predictions"]["points"][0]["tokens_per_second"] = "many";
  EXPECT_TRUE(made().lines.front().predicted.points.empty());
}

TEST(Plots, AnInfiniteSpeedDoesNotBreakTheScale) {
  ScalingLine line;
  for (const int ranks : {1, 2}) {
    Estimate speed = estimate({1.0 * ranks});
    if (ranks == 2) speed.high = HUGE_VAL;
    line.points.push_back({.ranks = ranks, .tokens_per_second = speed, .efficiency = speed});
  }
  EXPECT_LT(plot_scaling({line}, ScalingKind::strong, false).script.size(), 10'000U);
}

TEST_F(PageTest, HtmlIsUtf8WhateverPathsAre) {
  if (!gnuplot_is_here()) GTEST_SKIP() << "without gnuplot";
  (void)FakeRun{.whole = false}.write(scratch_ / "study/b\xff");
  trireme::test::write_text(scratch_ / "study/b\xff/attempts/0001/metrics.jsonl", "{\n");
  // The user's gnuplot settings must not affect the page.
  trireme::test::write_text(scratch_ / ".gnuplot", "exit status 3\n");
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  ::setenv("HOME", scratch_.path().c_str(), 1);
  const std::string page = report_html(study());
  ::setenv("HOME", home.c_str(), 1);
  EXPECT_EQ(page.find('\xff'), page.npos);
  EXPECT_THAT(page, HasSubstr("b\xef\xbf\xbd"));
}

TEST_F(PageTest, ADamagedTraceIsReportedByFileAndLine) {
  const fs::path folder = FakeRun{.data = 2}.write(scratch_ / "run");
  const fs::path trace = folder / "attempts/0001/trace.json";
  write_trace(folder / "attempts/0001");
  EXPECT_TRUE(plot_trace(read_run(folder), {}).has_value());
  std::string text = trireme::test::read_text(trace);
  text.insert(text.find('\n') + 1, "{\"ph\": \"X\"},\n");
  trireme::test::write_text(trace, text);
  try {
    (void)plot_trace(read_run(folder), {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(trace.string() + ":2: name is missing"));
  }
  // Without a complete step after warm-up there is no picture.
  trireme::test::write_text(trace, "{\"traceEvents\": [\n]}\n");
  EXPECT_FALSE(plot_trace(read_run(folder), {}).has_value());
}

TEST_F(PageTest, WithoutGnuplotThePageIsRefused) {
  const std::string before = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  const Report report = study();
  ::setenv("PATH", scratch_.path().c_str(), 1);
  std::string message;
  try {
    (void)report_html(report);
  } catch (const Error& error) {
    message = error.what();
  }
  ::setenv("PATH", before.c_str(), 1);
  EXPECT_THAT(message, HasSubstr("gnuplot is not here"));
}

}  // namespace
}  // namespace trireme::report
