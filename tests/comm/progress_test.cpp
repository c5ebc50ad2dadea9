#include "trireme/comm/progress.hpp"

#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>

#include <gtest/gtest.h>

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;

class Countdown : public device::Operation {
 public:
  Countdown(int tests, std::function<void()> body) : tests_(tests), body_(std::move(body)) {}
  void start() override {}
  bool test() override {
    if (--tests_ > 0) return false;
    body_();
    return true;
  }

 private:
  int tests_;
  std::function<void()> body_;
};

bool within_seconds(double seconds, const std::function<bool()>& condition) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

TEST(Progress, FinishesOperationsWithoutAWaiter) {
  device::Stream first;
  device::Stream second;
  Progress progress({&first, &second});
  for (int round = 0; round < 50; ++round) {
    int done = 0;
    const device::Event a = first.enqueue(std::make_unique<Countdown>(30, [&] { ++done; }));
    const device::Event b = first.enqueue(std::make_unique<Countdown>(2, [&] { ++done; }));
    progress.wake();
    ASSERT_TRUE(within_seconds(20, [&] { return a.done() && b.done(); }));
    const device::Event c = second.enqueue(std::make_unique<Countdown>(3, [&] { ++done; }));
    progress.wake();
    ASSERT_TRUE(within_seconds(20, [&] { return c.done(); }));
    EXPECT_EQ(done, 3);
  }
}

TEST(Progress, WorksBesideWaitersThatPoll) {
  device::Stream stream;
  Progress progress({&stream});
  std::int64_t sum = 0;  // plain: ThreadSanitizer sees two pollers at once
  for (int i = 0; i < 2000; ++i) {
    const device::Event event =
        stream.enqueue(std::make_unique<Countdown>(1 + i % 4, [&] { ++sum; }));
    progress.wake();
    if (i % 3 != 0) event.wait();
  }
  stream.synchronize();
  EXPECT_EQ(sum, 2000);
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(Progress, CostsLittleWhileOperationsAreOutstanding) {
  device::Stream stream;
  std::atomic<bool> arrived = false;
  std::atomic<int> polls = 0;
  class Outstanding : public device::Operation {
   public:
    Outstanding(const std::atomic<bool>& arrived, std::atomic<int>& polls)
        : arrived_(arrived), polls_(polls) {}
    void start() override {}
    bool test() override {
      ++polls_;
      return arrived_;
    }

   private:
    const std::atomic<bool>& arrived_;
    std::atomic<int>& polls_;
  };
  Progress progress({&stream});
  const device::Event event = stream.enqueue(std::make_unique<Outstanding>(arrived, polls));
  progress.wake();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it backs off
  const int before = polls;
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const int polled = polls - before;
  const std::chrono::duration<double, std::milli> passed = Clock::now() - begin;
  // Polls are 1 ms apart on any machine; bench/progress_bench measures their cost.
  EXPECT_GT(polled, 0);
  EXPECT_LE(polled, passed.count() + 2);
  arrived = true;
  event.wait();
}

TEST(Progress, SleepsWhileIdleAndEndsAtOnce) {
  device::Stream stream;
  const double before = cpu_seconds();
  const auto begin = Clock::now();
  {
    const Progress progress({&stream});
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_LT(cpu_seconds() - before,
            0.05);  // of 0.2 s; a poller that never slept would use them all
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace trireme::comm
