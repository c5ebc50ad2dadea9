// Times, bubbles and peaks against closed forms, and rendezvous against times worked out by hand.
#include "trireme/schedule/simulate.hpp"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/support.hpp"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

/// Costs in whole numbers: sums of doubles are exact, so times are compared with ==.
struct Cost {
  double forward, input, weight;
};
constexpr Cost unit{1, 1, 1};   // B twice F
constexpr Cost equal{2, 1, 1};  // B as F
constexpr Cost uneven_backward{3, 4, 1};

void expect_idle(const std::string& name, const Cost& cost,
                 const std::function<double(const Schedule&)>& idle) {
  for_each_schedule(name, [&](const Schedule& plan) {
    const Timeline timeline = simulate(
        plan, Costs::uniform(plan.virtual_stages(), cost.forward, cost.input, cost.weight));
    const double busy =
        plan.micro_batches * plan.chunks * (cost.forward + cost.input + cost.weight);
    EXPECT_EQ(timeline.ideal, busy);
    EXPECT_EQ(timeline.total, busy + idle(plan));
    EXPECT_EQ(timeline.bubble, idle(plan) / busy);
  });
}

double whole(const Cost& cost) { return cost.forward + cost.input + cost.weight; }

TEST(Bubble, Of1F1BMatchesTheFormula) {
  for (const Cost& cost : {unit, equal, uneven_backward}) {
    // (p−1)/m of the ideal time m·(F+B).
    expect_idle("1f1b", cost, [&](const Schedule& s) { return (s.stages - 1) * whole(cost); });
  }
}

/// (p−1)/(v·m) of the ideal time v·m·(F+B), also if p does not divide m. If m < p, each of the v−1
/// returns to the first stage finds it idle since p−m micro-batches.
double idle_of_chunks(const Schedule& plan, const Cost& cost) {
  const int returns = (plan.chunks - 1) * std::max(0, plan.stages - plan.micro_batches);
  return (plan.stages - 1 + returns) * whole(cost);
}

TEST(Bubble, OfGPipeMatchesTheFormula) {
  for (const Cost& cost : {unit, equal, uneven_backward})
    expect_idle("gpipe", cost, [&](const Schedule& s) { return idle_of_chunks(s, cost); });
}

TEST(Bubble, OfInterleavedMatchesTheFormula) {
  for (const Cost& cost : {unit, equal, uneven_backward})
    expect_idle("interleaved", cost, [&](const Schedule& s) { return idle_of_chunks(s, cost); });
}

TEST(Bubble, OfZeroBubbleIsAThirdOf1F1B) {
  // Qi et al. 2023, table 2: (p−1)(F + I − W), with unit times a third of (p−1)(F + I + W), if m ≥
  // p. With fewer micro-batches the first stage gets its last gradient at p−1 + 2m + p−1: the
  // forwards' way to the last stage, F and I of each micro-batch there, the way back; then I and W.
  expect_idle("zero-bubble", unit, [](const Schedule& s) {
    const int p = s.stages, m = s.micro_batches;
    return m >= p ? p - 1.0 : (2.0 * (p - 1) + 2 * m + 1) - 3 * m;
  });
}

TEST(Bubble, OfZeroBubbleWithUnequalTimes) {
  // The same formula for W ≤ F and W ≤ I, where m ≥ p.
  for (const Cost& cost : {Cost{2, 2, 1}, Cost{1, 2, 1}, Cost{2, 3, 2}, Cost{10, 12, 8}}) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = p; m <= 32; ++m) {
        const Timeline timeline =
            simulate(make_schedule("zero-bubble", p, m),
                     Costs::uniform(p, cost.forward, cost.input, cost.weight));
        EXPECT_EQ(timeline.total - timeline.ideal,
                  (p - 1) * (cost.forward + cost.input - cost.weight));
      }
    }
  }
}

std::vector<int> for_stages(const Schedule& plan, const std::function<int(int)>& value) {
  std::vector<int> values;
  for (int stage = 0; stage < plan.stages; ++stage) values.push_back(value(stage));
  return values;
}

void expect_peaks(const std::string& name, const std::function<int(const Schedule&, int)>& peak,
                  const std::function<int(const Schedule&, int)>& pending) {
  for_each_schedule(name, [&](const Schedule& plan) {
    const Timeline timeline = simulate(plan, Costs::uniform(plan.virtual_stages(), 1, 1, 1));
    EXPECT_EQ(timeline.peak_in_flight, for_stages(plan, [&](int s) { return peak(plan, s); }));
    EXPECT_EQ(timeline.peak_pending_weights,
              for_stages(plan, [&](int s) { return pending(plan, s); }));
  });
}

int none(const Schedule&, int) { return 0; }

TEST(Peak, Of1F1BIsItsDistanceFromTheEnd) {
  expect_peaks(
      "1f1b",
      [](const Schedule& s, int stage) { return std::min(s.stages - stage, s.micro_batches); },
      none);
}

TEST(Peak, OfGPipeIsEverything) {
  expect_peaks(
      "gpipe", [](const Schedule& s, int) { return s.micro_batches * s.chunks; }, none);
}

TEST(Peak, OfZeroBubbleEquals1F1BsFirstStage) {
  expect_peaks(
      "zero-bubble", [](const Schedule& s, int) { return std::min(s.stages, s.micro_batches); },
      [](const Schedule& s, int stage) { return std::min(stage + 1, s.micro_batches); });
}

TEST(Peak, OfInterleavedIsItsWarmUpAndOne) {
  // Narayanan et al. 2021: 2(p−s−1) + (v−1)·p forwards before the first pair, where p divides m.
  expect_peaks(
      "interleaved",
      [](const Schedule& s, int stage) {
        const int p = s.stages, m = s.micro_batches, v = s.chunks;
        if (v == 1) return std::min(p - stage, m);
        const int rounds = std::max(1, m / p);
        const int round = (m + rounds - 1) / rounds;  // p where p divides m
        return std::min(2 * (p - stage - 1) + (v - 1) * round + 1, v * m);
      },
      none);
}

/// Every compute starts after its inputs, on any stage, and a stage does one at a time.
void expect_causal(const Schedule& plan, const Timeline& timeline, double latency) {
  const auto index = [&](int virtual_stage, int micro_batch) {
    return static_cast<std::size_t>(virtual_stage) * static_cast<std::size_t>(plan.micro_batches) +
           static_cast<std::size_t>(micro_batch);
  };
  const std::size_t pairs = index(plan.virtual_stages(), 0);
  std::vector<double> forward(pairs), backward(pairs);
  for (int stage = 0; stage < plan.stages; ++stage) {
    for (const Span& span : timeline.spans[static_cast<std::size_t>(stage)]) {
      const std::size_t pair =
          index(plan.virtual_stage(stage, span.action.chunk), span.action.micro_batch);
      if (span.action.kind == Kind::forward) forward[pair] = span.end;
      if (span.action.makes_gradient()) backward[pair] = span.end;
    }
  }
  for (int stage = 0; stage < plan.stages; ++stage) {
    double free = 0;
    for (const Span& span : timeline.spans[static_cast<std::size_t>(stage)]) {
      EXPECT_GE(span.start, free);
      free = span.end;
      const int here = plan.virtual_stage(stage, span.action.chunk);
      const int i = span.action.micro_batch;
      if (span.action.kind == Kind::forward && here > 0) {
        EXPECT_GE(span.start, forward[index(here - 1, i)] + latency);
      }
      if (span.action.makes_gradient() && here + 1 < plan.virtual_stages()) {
        EXPECT_GE(span.start, backward[index(here + 1, i)] + latency);
      }
      if (span.action.makes_gradient()) {
        EXPECT_GE(span.start, forward[index(here, i)]);
      }
      if (span.action.kind == Kind::backward_weight) {
        EXPECT_GE(span.start, backward[index(here, i)]);
      }
    }
  }
}

TEST(Simulate, StartsNothingBeforeItsInputs) {
  for (const std::string& name : schedule_names()) {
    for (const int stages : {2, 3, 4, 8}) {
      for (const int micro_batches : {1, 3, 8, 13}) {
        const int chunks = name == "interleaved" || name == "gpipe" ? 3 : 1;
        const Schedule plan = make_schedule(name, stages, micro_batches, chunks);
        Costs costs = Costs::uniform(plan.virtual_stages(), 0, 0, 0, 0.25);
        for (int s = 0; s < plan.virtual_stages(); ++s) {
          const auto row = static_cast<std::size_t>(s);
          costs.forward[row] = 1 + s % 3, costs.input[row] = 1 + s % 2, costs.weight[row] = s % 4;
        }
        SCOPED_TRACE(name);
        expect_causal(plan, simulate(plan, costs), costs.latency);
      }
    }
  }
}

TEST(Simulate, CountsIdleTimeOfUnequalStages) {
  // F and B of stage 1 take twice as long: 1 + 2·(2 + 2) + 1 in all, 2 + 4·… busy.
  Costs costs{{1, 2}, {0.5, 1}, {0.5, 1}};
  const Timeline timeline = simulate(make_schedule("1f1b", 2, 2), costs);
  EXPECT_EQ(timeline.total, 1 + 2 * 4 + 1);
  EXPECT_EQ(timeline.ideal, (2 * 2 + 2 * 4) / 2);
  EXPECT_EQ(timeline.bubble, (10.0 - 6) / 6);
}

TEST(Simulate, AddsTheLatencyOfEachMessage) {
  // One micro-batch: two messages forward, two back.
  const Timeline timeline = simulate(make_schedule("1f1b", 3, 1), Costs::uniform(3, 1, 1, 1, 0.5));
  EXPECT_EQ(timeline.total, 3 * 3 + 4 * 0.5);
}

/// All send slots of a list become slot 0.
void leave_one_send_slot(std::vector<StageSteps>& lists) {
  for (StageSteps& list : lists) {
    for (Step& step : list.steps) {
      if (step.kind == Step::Kind::compute && step.output_slot > 0) step.output_slot = 0;
      if (step.kind != Step::Kind::compute && !step.is_receive()) step.slot = 0;
    }
  }
}

TEST(Rendezvous, HoldsASendUntilItsReceiveStarts) {
  // F = 1, B = 2. Stage 1 computes F0 1–2, B0 2–4, F1 4–5, B1 5–7; it starts receiving F2 just
  // before B1, at 5. Stage 0 computes F0 … F2 without a gap until 3; with one buffer F3 waits for
  // the send of F2 to end at 5.
  const Schedule plan = greedy_first_stage(4);
  const Costs costs = Costs::uniform(2, 1, 1, 1);
  auto lists = add_messages(plan);
  EXPECT_EQ(simulate(plan, lists, costs).spans[0][3].start, 3);
  leave_one_send_slot(lists);
  const Timeline timeline = simulate(plan, lists, costs);
  EXPECT_EQ(timeline.spans[0][2].end, 3);
  EXPECT_EQ(timeline.spans[0][3].start, 5);
  EXPECT_EQ(timeline.spans[0][4].start, 6);
}

TEST(Rendezvous, FindsStagesThatWaitForEachOther) {
  // With one buffer stage 0 cannot reach F7, before which it starts to receive the first gradient;
  // stage 1 cannot send its second before that.
  const Schedule plan = greedy_first_stage(8);
  const Costs costs = Costs::uniform(2, 1, 1, 1);
  auto lists = add_messages(plan);
  simulate(plan, lists, costs);
  leave_one_send_slot(lists);
  EXPECT_EQ(error_of([&] { simulate(plan, lists, costs); }),
            "schedule greedy: its stages wait for each other: stage 0 waits at 0F4 until stage 1 "
            "takes an earlier activation, stage 1 waits at 1B1 until stage 0 takes an earlier "
            "gradient");
}

TEST(ParseCosts, ReadsOneLineForAllOrOneForEach) {
  const Costs all = parse_costs(" 1, 1.5,0 \r\n", "--costs", 3);
  EXPECT_EQ(all.forward, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(all.input, (std::vector<double>{1.5, 1.5, 1.5}));
  EXPECT_EQ(all.weight, (std::vector<double>{0, 0, 0}));
  const std::string path = testing::TempDir() + "costs.csv";
  std::ofstream(path) << "1,2,3\n4,5,6\n";
  const Costs each = read_costs(path, 2);
  EXPECT_EQ(each.forward, (std::vector<double>{1, 4}));
  EXPECT_EQ(each.weight, (std::vector<double>{3, 6}));
}

TEST(ParseCosts, RefusesOtherText) {
  for (const char* text : {"", "1", "1,2", "1,2,3,4", "1,2,x", "1,-1,1", "1,nan,1", "inf,1,1",
                           "1,,1", "1e999,1,1", "1,1,1\n\n1,1,1", "1;1;1", "1,1,1x"}) {
    EXPECT_THAT(error_of([&] { parse_costs(text, "c", 1); }),
                HasSubstr("is not the three costs F,I,W"))
        << text;
  }
  EXPECT_EQ(error_of([] { parse_costs("1,1,1\n1,2,-3", "c", 2); }),
            "c:2: is not the three costs F,I,W, each a number >= 0; write for example 1,1,1 or "
            "1,1.2,0.8");
  EXPECT_THAT(error_of([] { parse_costs("1,1,1\n1,1,1", "c", 3); }),
              HasSubstr("c: has 2 lines of costs for 3 virtual stages"));
  EXPECT_THAT(error_of([] { parse_costs("0,0,0", "c", 3); }), HasSubstr("add up to 0"));
  EXPECT_THAT(error_of([] { parse_costs("1e308,1e308,1", "c", 1); }), HasSubstr("less than 1e100"));
  EXPECT_THAT(error_of([] { read_costs("/nowhere/costs", 1); }), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace trireme::schedule
