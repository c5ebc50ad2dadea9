// What is reported of steps that independent workers made apart from each other.
#include <gtest/gtest.h>

#include "trireme/data_parallel/averaging.hpp"

namespace trireme::data_parallel {
namespace {

using train::StepOutcome;
using train::StepResult;

TEST(MergeWorkers, LossesAreOfTheGlobalBatchAndSecondsOfThePeriod) {
  std::vector<report::StepMetrics> metrics{{.step = 4, .loss = 99, .seconds = 1},
                                           {.step = 5, .loss = 99, .seconds = 4}};
  merge_workers(metrics, {{{{.loss = 2, .weight = 1}, 1, {}}, {{.loss = 8, .weight = 2}, 5, {}}},
                          {{{.loss = 6, .weight = 3}, 2, {}}, {{.loss = 4, .weight = 2}, 6, {}}}});
  EXPECT_EQ(metrics[0].loss, 2);
  EXPECT_EQ(metrics[0].gradient_norm, 1.5);
  EXPECT_EQ(metrics[1].loss, 3);
  EXPECT_EQ(metrics[1].gradient_norm, 5.5);
  EXPECT_EQ(metrics[0].step, 4);
  for (const auto& step : metrics) {
    EXPECT_EQ(step.seconds, 2.5);
    EXPECT_EQ(step.skipped, "");
  }
}

TEST(MergeWorkers, NamesTheMostSevereOutcomeAndHowManySkipped) {
  std::vector<report::StepMetrics> metrics{{.seconds = 1}};
  const parallel::LossSum one{.loss = 1, .weight = 1};
  merge_workers(metrics, {{{one, 1, StepOutcome::overflow}},
                          {{one, 1, StepOutcome::sound}},
                          {{one, 1, StepOutcome::not_finite}}});
  EXPECT_EQ(metrics[0].skipped, "not finite (by 2 of 3 workers)");
}

}  // namespace
}  // namespace trireme::data_parallel
