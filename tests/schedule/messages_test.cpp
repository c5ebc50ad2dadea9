// Lists with messages: both sides of every channel, buffers, and refused lists.
#include "trireme/schedule/messages.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/check_messages.hpp"
#include "schedule/support.hpp"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;
using Kinds = Step::Kind;

class EveryList : public testing::TestWithParam<std::string> {};

/// Messages by ordered pair of stages and direction, identified by micro-batch and the virtual
/// stage that needs them, in the order of their starts.
using Orders = std::map<std::tuple<int, int, bool>, std::vector<std::pair<int, int>>>;

void collect(const Schedule& plan, const std::vector<StageSteps>& lists, Orders& sent,
             Orders& received) {
  for (int stage = 0; stage < plan.stages; ++stage) {
    for (const Step& step : lists[static_cast<std::size_t>(stage)].steps) {
      if (step.kind == Kinds::compute) continue;
      const int here = plan.virtual_stage(stage, step.action.chunk);
      if (step.is_receive()) {
        received[{step.peer_stage, stage, step.is_gradient()}].emplace_back(step.action.micro_batch,
                                                                            here);
      } else {
        sent[{stage, step.peer_stage, step.is_gradient()}].emplace_back(
            step.action.micro_batch, here + (step.is_gradient() ? -1 : 1));
      }
    }
  }
}

TEST_P(EveryList, SendsAndReceivesInTheSameOrder) {
  for_each_schedule(GetParam(), [](const Schedule& plan) {
    const auto lists = add_messages(plan);
    EXPECT_EQ(error_of([&] { check_messages(plan, lists); }), "");
    Orders sent, received;
    collect(plan, lists, sent, received);
    EXPECT_EQ(sent, received);
    std::size_t messages = 0;
    for (const auto& [channel, order] : sent) messages += order.size();
    // Each micro-batch crosses each boundary of virtual stages once in each direction.
    const std::size_t boundaries =
        plan.stages == 1 ? 0 : static_cast<std::size_t>(plan.virtual_stages()) - 1;
    EXPECT_EQ(messages, 2 * boundaries * static_cast<std::size_t>(plan.micro_batches));
  });
}

TEST_P(EveryList, StartsReceivesOneComputeAhead) {
  for_each_schedule(GetParam(), [](const Schedule& plan) {
    for (const StageSteps& list : add_messages(plan)) {
      int computes = 0;
      std::map<std::tuple<Kind, int, int>, int> started;  // after how many computes
      for (const Step& step : list.steps) {
        const std::tuple key{step.action.kind, step.action.micro_batch, step.action.chunk};
        if (step.is_receive()) started[key] = computes;
        if (step.kind != Kinds::compute) continue;
        if (started.contains(key)) {
          EXPECT_EQ(started[key], std::max(0, computes - 1));
        }
        ++computes;
      }
      // So at most two messages of a direction are waiting.
      EXPECT_LE(list.receive_activation_slots, 2);
      EXPECT_LE(list.receive_gradient_slots, 2);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Names, EveryList, testing::ValuesIn(schedule_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(Messages, OfTwoStages) {
  const auto lists = add_messages(make_schedule("1f1b", 2, 2));
  ASSERT_EQ(lists.size(), 2U);
  const std::vector<Step> first{
      {Kinds::compute, {forward, 0}, -1, -1, -1, 0},
      {Kinds::send_activation, {forward, 0}, 1, 0},
      {Kinds::receive_gradient, {backward, 0}, 1, 0},
      {Kinds::compute, {forward, 1}, -1, -1, -1, 1},
      {Kinds::send_activation, {forward, 1}, 1, 1},
      {Kinds::receive_gradient, {backward, 1}, 1, 1},
      {Kinds::compute, {backward, 0}, -1, -1, 0, -1},
      {Kinds::compute, {backward, 1}, -1, -1, 1, -1},
  };
  const std::vector<Step> last{
      {Kinds::receive_activation, {forward, 0}, 0, 0},
      {Kinds::compute, {forward, 0}, -1, -1, 0, -1},
      {Kinds::receive_activation, {forward, 1}, 0, 0},
      {Kinds::compute, {backward, 0}, -1, -1, -1, 0},
      {Kinds::send_gradient, {backward, 0}, 0, 0},
      {Kinds::compute, {forward, 1}, -1, -1, 0, -1},
      {Kinds::compute, {backward, 1}, -1, -1, -1, 1},
      {Kinds::send_gradient, {backward, 1}, 0, 1},
  };
  EXPECT_EQ(lists[0].steps, first);
  EXPECT_EQ(lists[1].steps, last);
  EXPECT_EQ(lists[0].send_activation_slots, 2);
  EXPECT_EQ(lists[0].receive_gradient_slots, 2);
  EXPECT_EQ(lists[0].receive_activation_slots + lists[0].send_gradient_slots, 0);
  EXPECT_EQ(lists[1].receive_activation_slots, 1);
}

TEST(Messages, FollowTheSenderIfTheReceiverHasAnotherOrder) {
  const Schedule plan = by_hand(2, {{{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}},
                                    {{forward, 1}, {backward, 1}, {forward, 0}, {backward, 0}}});
  const auto lists = add_messages(plan);
  const std::vector<Step> begin{{Kinds::receive_activation, {forward, 0}, 0, 0},
                                {Kinds::receive_activation, {forward, 1}, 0, 1},
                                {Kinds::compute, {forward, 1}, -1, -1, 1, -1}};
  EXPECT_TRUE(std::equal(begin.begin(), begin.end(), lists[1].steps.begin()));
  check_messages(plan, lists);
  simulate(plan, lists, Costs::uniform(2, 1, 1, 1));
}

TEST(Messages, StayWithinOneStage) {
  const Schedule plan = make_schedule("gpipe", 1, 3, 2);
  const auto lists = add_messages(plan);
  for (const Step& step : lists[0].steps) EXPECT_EQ(step.kind, Kinds::compute);
  // Three activations wait between the chunks, and three gradients.
  EXPECT_EQ(lists[0].local_activation_slots, 3);
  EXPECT_EQ(lists[0].local_gradient_slots, 3);
  EXPECT_EQ(lists[0].send_activation_slots + lists[0].receive_activation_slots, 0);
  EXPECT_EQ(lists[0].steps[3].input_slot, lists[0].steps[0].output_slot);
}

TEST(Messages, HaveAsManySendSlotsAsTheOrderNeeds) {
  // Unit times, B = 2: stage 0 has finished F_k at k + 1; the receive of F_k starts with B_{k−1} of
  // stage 1, at 3k − 1 for k > 0. When F_7 starts (7), those of F_0 (1), F_1 (2) and F_2 (5) have
  // ended: F_3 … F_7 hold five slots.
  EXPECT_EQ(add_messages(greedy_first_stage(8))[0].send_activation_slots, 5);
  // GPipe over two chunks and two stages: the last stage's first chunk runs at 1 … m, and its
  // results are received from m − 1 on.
  EXPECT_EQ(add_messages(make_schedule("gpipe", 2, 8, 2))[1].send_activation_slots, 6);
  EXPECT_EQ(add_messages(make_schedule("1f1b", 4, 1))[0].send_activation_slots, 1);
}

TEST(CheckMessages, RefusesBrokenRules) {
  struct Case {
    void (*damage)(std::vector<StageSteps>&);
    const char* words;
  };
  using Lists = std::vector<StageSteps>;
  // See Messages.OfTwoStages for the lists.
  const std::vector<Case> cases{
      {[](Lists& l) { l.pop_back(); }, "1 lists for 2 stages"},
      {[](Lists& l) { std::swap(l[0].steps[0].action, l[0].steps[3].action); },
       "not the schedule's"},
      {[](Lists& l) { l[1].steps.resize(5); }, "2 of 4 computes"},
      {[](Lists& l) { l[1].steps.pop_back(); }, "what 1B1 makes is not sent"},
      {[](Lists& l) { l[0].steps.erase(l[0].steps.begin() + 1); }, "0F0 is not followed by its"},
      {[](Lists& l) { l[0].steps[1].peer_stage = 0; }, "0F0 is not followed by its send"},
      {[](Lists& l) { l[0].steps[1].slot = 1; }, "0F0 is not followed by its send"},
      {[](Lists& l) { l[0].steps[1].kind = Kinds::send_gradient; }, "0F0 is not followed by"},
      {[](Lists& l) { l[0].steps.insert(l[0].steps.begin(), l[0].steps[1]); },
       "does not follow its compute"},
      {[](Lists& l) { l[0].send_activation_slots = 1; }, "send slot 1 does not exist"},
      {[](Lists& l) { l[1].receive_activation_slots = 0; }, "slot 0 does not exist"},
      {[](Lists& l) { l[1].steps[0].slot = -1; }, "slot -1 does not exist"},
      {[](Lists& l) { l[1].steps.erase(l[1].steps.begin()); }, "the input of 1F0 is not in"},
      {[](Lists& l) { l[0].steps[6].input_slot = 1; }, "the input of 0B0 is not in its slot 1"},
      {[](Lists& l) { l[0].steps[5].slot = 0; }, "slot 0 is overwritten for 0B1 before 0B0"},
      {[](Lists& l) { l[1].steps[0].peer_stage = 1; }, "needs no such message from stage 1"},
      {[](Lists& l) { l[1].steps[0].kind = Kinds::receive_gradient; }, "needs no such message"},
      {[](Lists& l) { l[0].steps[0].input_slot = 0; }, "0F0 needs no input"},
      {[](Lists& l) { l[1].steps[1].output_slot = 0; }, "no action needs what 1F0 writes"},
      {[](Lists& l) { l[1].steps.push_back(l[1].steps[0]); }, "nothing reads what was received"},
      {[](Lists& l) {  // swaps the receives of stage 0's two gradients
         std::swap(l[0].steps[2], l[0].steps[5]);
       },
       "gradient 0 is received for 0B1 but sent for 0I0; both sides"},
  };
  const Schedule plan = make_schedule("1f1b", 2, 2);
  for (const Case& c : cases) {
    Lists lists = add_messages(plan);
    c.damage(lists);
    EXPECT_THAT(error_of([&] { check_messages(plan, lists); }), HasSubstr(c.words));
  }
}

TEST(CheckMessages, RefusesALocalSlotUsedTwice) {
  const Schedule plan = make_schedule("gpipe", 1, 2, 2);
  auto lists = add_messages(plan);
  lists[0].steps[1].output_slot = lists[0].steps[0].output_slot;
  EXPECT_THAT(error_of([&] { check_messages(plan, lists); }), HasSubstr("is overwritten for 1F1"));
}

}  // namespace
}  // namespace trireme::schedule
