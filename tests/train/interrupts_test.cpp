#include "trireme/train/interrupts.hpp"

#include <chrono>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"
#include "trireme/train/inject.hpp"

namespace trireme::train {
namespace {

using ::testing::HasSubstr;

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

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

TEST(SignalWatch, NotesWhatComesAndPutsBackWhatWas) {
  struct sigaction before {};
  ::sigaction(SIGUSR1, nullptr, &before);
  {
    const SignalWatch watch(parse_signals("USR1,USR2"));
    EXPECT_EQ(watch.caught(), 0);
    std::raise(SIGUSR2);
    EXPECT_EQ(watch.caught(), SIGUSR2);
    EXPECT_EQ(watch.name_of(SIGUSR2), "SIGUSR2");
  }
  struct sigaction after {};
  ::sigaction(SIGUSR1, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
  EXPECT_EQ(SignalWatch(parse_signals("USR1")).caught(), 0);  // nothing is left of the last one
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

TEST(ParseFaults, KindStepAndRank) {
  EXPECT_TRUE(parse_faults("none").empty());
  const auto faults = parse_faults("nan@7, spike@8/2,flip@12/1");
  ASSERT_EQ(faults.size(), 3U);
  EXPECT_EQ(faults[0].kind, Fault::Kind::nan);
  EXPECT_EQ(faults[0].step, 7);
  EXPECT_EQ(faults[0].rank, 0);
  EXPECT_EQ(faults[1].kind, Fault::Kind::spike);
  EXPECT_EQ(faults[1].rank, 2);
  EXPECT_EQ(faults[2].kind, Fault::Kind::flip);
  EXPECT_EQ(faults[2].step, 12);
  for (const char* wrong : {"nan", "nan@", "nan@0", "nan@-1", "nan@3/", "nan@3/-1", "x@3",
                            "nan@3,,", "@3", "nan@3/1/2"}) {
    EXPECT_THAT(error_of([&] { parse_faults(wrong); }), HasSubstr("train.inject = ")) << wrong;
  }
}

}  // namespace
}  // namespace trireme::train
