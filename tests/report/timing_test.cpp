// The account of a run's time: every second counts once.
#include "trireme/report/timing.hpp"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using namespace std::chrono_literals;

/// Of a rank whose parts fill its `seconds`.
json rank_of(double seconds, const json& groups) {
  return {{"time", {{"seconds", seconds}, {"groups", groups}, {"overlapped", json::object()}}}};
}

TEST(RankTime, NestedSectionsCountOnce) {
  Recorder recorder;
  {
    const Section forward(recorder, "forward");
    std::this_thread::sleep_for(4ms);
    const Section wait(recorder, "wait for pipeline");
    std::this_thread::sleep_for(8ms);
  }
  {
    const Section evaluate(recorder, "evaluate");
    const Section forward(recorder, "forward of evaluation");
    const Section wait(recorder, "wait for pipeline");
    std::this_thread::sleep_for(4ms);
  }
  const json time = rank_time(recorder);
  const json& groups = time.at("groups");
  const double forward = groups.at("compute").at("forward").get<double>();
  const double wait = groups.at("communication wait").at("pipeline: wait for pipeline");
  const double whole = recorder.seconds().at("forward");
  EXPECT_NEAR(forward + wait, whole, 1e-9) << "the wait is not in forward's time";
  EXPECT_GE(wait, 8e-3);
  EXPECT_EQ(groups.at("evaluation").size(), 1U) << "an evaluation is one part";
  EXPECT_GE(groups.at("evaluation").at("evaluate").get<double>(), 4e-3);
  EXPECT_TRUE(adds_up(time_account({{{"time", time}}}, time.at("seconds"), "here")));
}

TEST(RankTime, OtherThreadsAndStreamsAreBesideIt) {
  Recorder recorder;
  const auto begin = Recorder::Clock::now();
  recorder.add("reduce gradients (overlapped)", 1, begin, begin + 100s);
  std::thread([&] { const Section section(recorder, "forward"); }).join();
  const json time = rank_time(recorder);
  EXPECT_EQ(time.at("overlapped").at("reduce gradients (overlapped)"), 100.0);
  EXPECT_FALSE(time.at("groups").contains("compute"));
  EXPECT_TRUE(adds_up(time_account({{{"time", time}}}, time.at("seconds"), "here")));
}

TEST(RankTime, OverlappingSectionsDoNotAddUp) {
  Recorder recorder;
  const auto begin = Recorder::Clock::now();
  {
    const Section backward(recorder, "backward");
    std::this_thread::sleep_for(4ms);
  }
  // The same milliseconds again, beside the section instead of inside it.
  recorder.add("wait for gradients", 0, begin, Recorder::Clock::now());
  const json time = rank_time(recorder);
  const TimeAccount account = time_account({{{"time", time}}}, time.at("seconds"), "here");
  EXPECT_FALSE(adds_up(account));
  EXPECT_THAT(timing_table(account), HasSubstr("! sections overlap"));
}

TEST(RankTime, AnUnknownSectionIsShownUnderItsName) {
  Recorder recorder;
  { const Section section(recorder, "something new"); }
  EXPECT_TRUE(rank_time(recorder).at("groups").at("other").contains("something new"));
}

TEST(TimeAccount, GroupsAndPartsAddUpToTheTotal) {
  const json first = {{"compute", {{"forward", 2.0}, {"backward", 4.0}}},
                      {"communication wait", {{"data: wait for gradients", 1.0}}},
                      {"other", {{"between sections", 1.0}}}};
  const json second = {{"compute", {{"forward", 1.0}, {"backward", 3.0}}},
                       {"communication wait", {{"pipeline: wait for pipeline", 3.5}}},
                       {"other", {{"between sections", 0.5}}}};
  const TimeAccount account =
      time_account({rank_of(8, first), rank_of(8, second)}, 10, "summary.json");
  EXPECT_TRUE(adds_up(account));
  EXPECT_EQ(
      timing_table(account),
      "where time went               |        min s |        avg s |        max s | share %\n"
      "------------------------------+--------------+--------------+--------------+--------\n"
      "compute                       |       4.0000 |       5.0000 |       6.0000 |   50.00\n"
      "  backward                    |       3.0000 |       3.5000 |       4.0000 |   35.00\n"
      "  forward                     |       1.0000 |       1.5000 |       2.0000 |   15.00\n"
      "communication wait            |       1.0000 |       2.2500 |       3.5000 |   22.50\n"
      "  pipeline: wait for pipeline |       0.0000 |       1.7500 |       3.5000 |   17.50\n"
      "  data: wait for gradients    |       0.0000 |       0.5000 |       1.0000 |    5.00\n"
      "start                         |       2.0000 |       2.0000 |       2.0000 |   20.00\n"
      "other                         |       0.5000 |       0.7500 |       1.0000 |    7.50\n"
      "  between sections            |       0.5000 |       0.7500 |       1.0000 |    7.50\n"
      "------------------------------+--------------+--------------+--------------+--------\n"
      "total                         |      10.0000 |      10.0000 |      10.0000 |  100.00\n");
  const json all = time_json(account);
  EXPECT_EQ(all.at("groups").at("communication wait").at("seconds"), 2.25);
  EXPECT_EQ(all.at("groups").at("compute").at("parts").at("backward"), 3.5);
  double shares = 0;
  for (const json& group : all.at("groups")) shares += group.at("share").get<double>();
  EXPECT_NEAR(shares, 1, 1e-12);
}

TEST(TimeAccount, OlderRecordsHaveNoRowsAndDamagedOnesAreRefused) {
  EXPECT_TRUE(time_account({rank_of(1, json::object()), json::object()}, 1, "f").rows.empty());
  EXPECT_TRUE(adds_up(time_account({}, 1, "f")));
  const auto refusal = [](const json& groups) -> std::string {
    try {
      time_account({rank_of(1, groups)}, 1, "f");
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(refusal({{"sleep", json::object()}}),
            "f: time has the group sleep, which is none of ours; restore the file");
  EXPECT_EQ(refusal({{"other", {{"x", "y"}}}}), "f: x is no number; restore the file");
}

}  // namespace
}  // namespace trireme::report
