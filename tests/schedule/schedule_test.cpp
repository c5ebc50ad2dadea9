// Orders of actions: built ones are valid, and broken ones are refused.
#include "trireme/schedule/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/support.hpp"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

class EverySchedule : public testing::TestWithParam<std::string> {};

TEST_P(EverySchedule, IsValidWithAscendingWeightParts) {
  for_each_schedule(GetParam(), [](const Schedule& plan) {
    EXPECT_EQ(error_of([&] { validate(plan, WeightOrder::ascending); }), "");
    EXPECT_EQ(plan.splits_backward(), plan.name == "zero-bubble");
  });
}

INSTANTIATE_TEST_SUITE_P(Names, EverySchedule, testing::ValuesIn(schedule_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(MakeSchedule, GivesThePublishedOrders) {
  EXPECT_EQ(to_csv(make_schedule("gpipe", 2, 2)), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_EQ(to_csv(make_schedule("1f1b", 3, 4)),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  // Narayanan et al. 2021, figure 4, with two stages: rounds of two micro-batches.
  EXPECT_EQ(to_csv(make_schedule("interleaved", 2, 4, 2)),
            "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
  EXPECT_EQ(to_csv(make_schedule("zero-bubble", 2, 3)),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
}

TEST(MakeSchedule, NamesKeyRuleAndRemedy) {
  EXPECT_EQ(error_of([] { make_schedule("1f1", 2, 2); }),
            "parallel.schedule = 1f1: must be one of gpipe, 1f1b, interleaved, zero-bubble, "
            "file:PATH; did you mean 1f1b?");
  EXPECT_EQ(error_of([] { make_schedule("1f1b", 2, 2, 3); }),
            "parallel.virtual_stages = 3: parallel.schedule = 1f1b has one virtual stage per "
            "stage; use 1, or parallel.schedule = interleaved");
  EXPECT_THAT(error_of([] { make_schedule("zero-bubble", 2, 2, 2); }),
              HasSubstr("parallel.virtual_stages = 2"));
  EXPECT_THAT(error_of([] { make_schedule("1f1b", 0, 2); }), HasSubstr("parallel.pipeline = 0"));
  EXPECT_THAT(error_of([] { make_schedule("1f1b", 2, 0); }), HasSubstr("micro-batches = 0"));
  EXPECT_THAT(error_of([] { make_schedule("interleaved", 2, 2, 0); }),
              HasSubstr("parallel.virtual_stages = 0"));
  EXPECT_THAT(error_of([] { make_schedule("1f1b", 1 << 30, 1 << 30); }),
              HasSubstr("use larger and fewer micro-batches"));
}

/// 1F1B and ZB-H1 of two stages and three micro-batches, one fault each.
TEST(Validate, RefusesBrokenRules) {
  struct Case {
    const char* schedule;
    void (*damage)(Schedule&);
    const char* words;
  };
  const std::vector<Case> cases{
      {"1f1b",
       [](Schedule& s) {
         std::erase(s.actions[1], Action{forward, 1, 0});
       },
       "1F1 is missing"},
      {"1f1b",
       [](Schedule& s) {
         std::erase(s.actions[1], Action{backward, 2, 0});
       },
       "1B2 is missing"},
      {"zero-bubble",
       [](Schedule& s) {
         std::erase(s.actions[1], Action{backward_weight, 2, 0});
       },
       "1W2 is missing"},
      {"zero-bubble",
       [](Schedule& s) {
         std::erase(s.actions[0], Action{backward_input, 0, 0});
       },
       "0I0 is missing"},
      {"1f1b",
       [](Schedule& s) {
         s.actions[0].push_back({forward, 1, 0});
       },
       "0F1 is listed 2 times"},
      {"zero-bubble",
       [](Schedule& s) {
         s.actions[0].push_back({backward_weight, 1, 0});
       },
       "0W1 is listed 2 times"},
      {"1f1b",
       [](Schedule& s) {
         s.actions[0].push_back({backward_weight, 1, 0});
       },
       "0B1 and 0W1 exclude"},
      {"1f1b",
       [](Schedule& s) {
         s.actions[0].push_back({backward_input, 1, 0});
       },
       "0B1 and 0I1 exclude"},
      {"1f1b",
       [](Schedule& s) {
         s.actions[0].push_back({forward, 3, 0});
       },
       "there are 3 micro-batches"},
      {"1f1b",
       [](Schedule& s) {
         s.actions[0].push_back({forward, -1, 0});
       },
       "counted from 0"},
      {"1f1b",
       [](Schedule& s) {
         s.actions[0].push_back({forward, 0, 1});
       },
       "chunk 1 does not exist"},
      {"1f1b",
       [](Schedule& s) {
         s.actions[0].push_back({forward, 0, -1});
       },
       "chunk -1 does not exist"},
      {"1f1b", [](Schedule& s) { s.actions.pop_back(); }, "has lists for 1 stages; 2 are needed"},
      {"1f1b", [](Schedule& s) { s.micro_batches = 0; }, "each must be at least 1"},
      {"1f1b", [](Schedule& s) { std::swap(s.actions[1][0], s.actions[1][1]); },
       "stage 1: 1B0 is before 1F0"},
      {"zero-bubble", [](Schedule& s) { std::swap(s.actions[1][0], s.actions[1][1]); },
       "stage 1: 1I0 is before 1F0"},
      {"zero-bubble", [](Schedule& s) { std::swap(s.actions[0][2], s.actions[0][3]); },
       "stage 0: 0W0 is before 0I0"},
  };
  for (const Case& c : cases) {
    Schedule plan = make_schedule(c.schedule, 2, 3);
    c.damage(plan);
    EXPECT_THAT(error_of([&] { validate(plan); }), HasSubstr(c.words));
  }
}

TEST(Validate, RefusesAnOrderThatWaitsForItself) {
  // Stage 0 needs a gradient before it has sent what stage 1 needs next.
  const Schedule across = by_hand(2, {{{forward, 0}, {backward, 0}, {forward, 1}, {backward, 1}},
                                      {{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}}});
  EXPECT_EQ(error_of([&] { validate(across); }),
            "schedule by hand: its stages wait for each other: stage 0 waits at 0B0 for 1B0 of "
            "stage 1, stage 1 waits at 1F1 for 0F1 of stage 0; change the order");
  // Chunk 1 before chunk 0 on the only stage.
  Schedule within = make_schedule("interleaved", 1, 1, 2);
  std::swap(within.actions[0][0], within.actions[0][1]);
  EXPECT_THAT(error_of([&] { validate(within); }), HasSubstr("stage 0 waits at 1F0 for 0F0"));
  // All stages at once: four are named, the others counted.
  Schedule many = make_schedule("interleaved", 8, 1, 2);
  for (auto& actions : many.actions) std::swap(actions[0], actions[1]);
  EXPECT_THAT(error_of([&] { validate(many); }), HasSubstr("and 4 more wait"));
}

TEST(Validate, DemandsAscendingWeightPartsWhenAsked) {
  Schedule split = make_schedule("zero-bubble", 2, 3);
  std::swap(split.actions[1][7], split.actions[1][8]);  // 1W1, 1W2
  validate(split);
  EXPECT_THAT(error_of([&] { validate(split, WeightOrder::ascending); }),
              HasSubstr("stage 1: 1W1 is after 1W2"));
  Schedule whole = make_schedule("gpipe", 1, 2);
  std::swap(whole.actions[0][2], whole.actions[0][3]);
  validate(whole);
  EXPECT_THAT(error_of([&] { validate(whole, WeightOrder::ascending); }),
              HasSubstr("0B0 is after 0B1"));
}

}  // namespace
}  // namespace trireme::schedule
