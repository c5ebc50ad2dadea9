#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "trireme/ops/ops.hpp"
#include "trireme/train/policies.hpp"

#include "support.hpp"

namespace trireme::train {
namespace {

using ::testing::HasSubstr;

TEST(ParseSignals, NamesWithAndWithoutSig) {
  EXPECT_EQ(parse_signals("TERM, SIGUSR1,USR2"),
            (std::map<int, std::string>{
                {SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}}));
  EXPECT_TRUE(parse_signals("none").empty());
  EXPECT_TRUE(parse_signals("").empty());
  for (const char* wrong : {"KILL", "STOP", "SEGV", "usr1", "TERM,", "10"}) {
    EXPECT_THAT(error_of([&] { parse_signals(wrong); }), HasSubstr("train.signals = ")) << wrong;
  }
}

TEST(SignalWatch, RecordsSignalsAndRestoresHandlers) {
  struct sigaction before {};
  ::sigaction(SIGUSR1, nullptr, &before);
  {
    const SignalWatch watch(parse_signals("USR1,USR2"));
    EXPECT_EQ(watch.caught(), 0);
    ::kill(::getpid(), SIGUSR2);
    for (int i = 0; i < 5000 && watch.caught() == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(watch.caught(), SIGUSR2);
  }
  struct sigaction after {};
  ::sigaction(SIGUSR1, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
  EXPECT_EQ(SignalWatch(parse_signals("USR1")).caught(), 0);  // the last signal is cleared
}

/// oneDNN's AVX-512 products fail if a signal's frame is on their stack.
TEST(SignalWatch, SignalsDoNotReachProducts) {
  const SignalWatch watch(parse_signals("USR1"));
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    while (!stop) {
      ::kill(::getpid(), SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  const auto ops = ops::make_cpu_ops(1);
  bool right = true;
  for (int round = 0; round < 3000; ++round) {
    constexpr std::int64_t m = 132, n = 192, k = 48;
    std::vector<float> a(m * k, 1), b(n * k, 1), c(m * n);
    const Tensor x(a.data(), {m, k}), w(b.data(), {n, k}), y(c.data(), {m, n});
    ops->matmul(y, x, w, {.transpose_b = true});
    ops->matmul(w, y, x, {.transpose_a = true, .accumulate = true});
    right = right && std::all_of(c.begin(), c.end(), [](float v) { return v == 48; });
  }
  stop = true;
  sender.join();
  EXPECT_TRUE(right);
  EXPECT_EQ(watch.caught(), SIGUSR1);
}

TEST(ParseDuration, AsSchedulersWriteIt) {
  EXPECT_EQ(parse_duration("none"), std::nullopt);
  EXPECT_EQ(parse_duration("0"), std::nullopt);
  EXPECT_EQ(parse_duration("90"), 90);
  EXPECT_EQ(parse_duration("0.5"), 0.5);
  EXPECT_EQ(parse_duration("15:30"), 930);
  EXPECT_EQ(parse_duration("2:00:00"), 7200);
  EXPECT_EQ(parse_duration("1-12:00:00"), 129600);
  for (const char* wrong : {"x", "-5", "1:2:3:4", "1-2:00", "1-", ":", "5m", "nan", "inf", " 5"}) {
    EXPECT_THAT(error_of([&] { parse_duration(wrong); }), HasSubstr("train.time_limit = "))
        << wrong;
  }
}

TEST(SlurmSecondsLeft, FromTheEndOfTheJob) {
  const auto now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
  ::setenv("SLURM_JOB_END_TIME", std::to_string(static_cast<long long>(now.count()) + 100).c_str(),
           1);
  ASSERT_TRUE(slurm_seconds_left().has_value());
  EXPECT_NEAR(*slurm_seconds_left(), 100, 2);
  for (const char* useless : {"", "0", "soon"}) {
    ::setenv("SLURM_JOB_END_TIME", useless, 1);
    EXPECT_EQ(slurm_seconds_left(), std::nullopt) << useless;
  }
  ::unsetenv("SLURM_JOB_END_TIME");
  EXPECT_EQ(slurm_seconds_left(), std::nullopt);
}

}  // namespace
}  // namespace trireme::train
