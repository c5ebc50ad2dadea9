#include "trireme/core/recorder.hpp"

#include <thread>

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Recorder, AddsSections) {
  Recorder recorder;
  const auto begin = Recorder::Clock::now();
  recorder.add("forward", 0, begin, begin + std::chrono::milliseconds(250));
  recorder.add("forward", 0, begin, begin + std::chrono::milliseconds(500));
  recorder.add("reduce", 1, begin, begin + std::chrono::milliseconds(125));
  EXPECT_EQ(recorder.seconds().size(), 2U);
  EXPECT_NEAR(recorder.seconds().at("forward"), 0.75, 1e-9);
  ASSERT_EQ(recorder.spans().size(), 3U);
  EXPECT_EQ(recorder.spans()[2].stream, 1);
  EXPECT_NEAR(recorder.spans()[2].duration_us, 125'000, 1e-3);
  EXPECT_GE(recorder.spans()[0].begin_us, 0);
  recorder.reset();
  EXPECT_TRUE(recorder.seconds().empty());
  EXPECT_TRUE(recorder.spans().empty());
}

TEST(Recorder, NestedSectionsCountInBoth) {
  Recorder recorder;
  {
    const Section outer(recorder, "outer");
    const Section inner(recorder, "inner");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_GE(recorder.seconds().at("inner"), 2e-3);
  EXPECT_GE(recorder.seconds().at("outer"), recorder.seconds().at("inner"));
  const auto exclusive = recorder.exclusive_seconds();
  const double outer = exclusive.at({"outer", "outer"}), inner = exclusive.at({"outer", "inner"});
  EXPECT_EQ(inner, recorder.seconds().at("inner"));
  EXPECT_NEAR(outer + inner, recorder.seconds().at("outer"), 1e-9);
  EXPECT_LE(outer + inner, recorder.elapsed());
}

TEST(Recorder, KeepsTheFirstSpansOnly) {
  Recorder recorder;
  const auto begin = Recorder::Clock::now();
  for (std::size_t i = 0; i < Recorder::trace_capacity + 10; ++i) {
    recorder.add("step", 0, begin, begin + std::chrono::seconds(1));
  }
  EXPECT_EQ(recorder.spans().size(), Recorder::trace_capacity);
  EXPECT_EQ(recorder.seconds().at("step"), double{Recorder::trace_capacity + 10});
}

TEST(Recorder, TakesEntriesFromManyThreads) {
  Recorder recorder;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        const Section section(recorder, "work", 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder.spans().size(), 4000U);
  EXPECT_TRUE(recorder.exclusive_seconds().empty()) << "of the thread that made it alone";
}

}  // namespace
}  // namespace trireme
