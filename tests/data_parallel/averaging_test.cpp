// After which steps workers average.
#include "trireme/data_parallel/averaging.hpp"

#include <gtest/gtest.h>

namespace trireme::data_parallel::test {
namespace {

TEST(AverageSchedule, EveryNStepsAndAfterTheLast) {
  const AverageSchedule schedule{{.every = 4}, 8, 1000, 10};
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 1; step <= 10; ++step) {
    if (schedule.due(step, 8 * step)) steps.push_back(step);
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{4, 8, 10}));
}

// 103 windows a pass, 8 per step: parts of a pass end inside steps.
TEST(AverageSchedule, NTimesAPass) {
  for (const std::int64_t times : {1, 3, 5, 12}) {
    const AverageSchedule schedule{{.every = 2, .per_epoch = times}, 8, 103, 100000};
    for (std::int64_t pass = 0; pass < 5; ++pass) {
      std::int64_t averages = 0, last = 0, longest = 0;
      for (std::int64_t step = 1; step <= 100; ++step) {
        const std::int64_t samples = 8 * step;
        // A part of a pass ends with the step that reads its last window.
        if (schedule.due(step, samples) && (samples * times) / 103 > pass * times &&
            (samples * times) / 103 <= (pass + 1) * times) {
          ++averages;
          if (last > 0) longest = std::max(longest, step - last);
          last = step;
        }
      }
      EXPECT_EQ(averages, times) << times << " times, pass " << pass;
      EXPECT_LE(longest, 103 / (8 * times) + 1);
    }
  }
}

// More parts than steps: an average after each of them.
TEST(AverageSchedule, AtMostOnceAStep) {
  const AverageSchedule schedule{{.every = 2, .per_epoch = 50}, 8, 103, 100000};
  for (std::int64_t step = 1; step <= 100; ++step) EXPECT_TRUE(schedule.due(step, 8 * step));
}

}  // namespace
}  // namespace trireme::data_parallel::test
