#include "trireme/device/stream.hpp"

#include <chrono>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace trireme::device {
namespace {

/// Runs `begin` at its start, then needs `tests` polls; `body` runs at the last one.
class Steps : public Operation {
 public:
  explicit Steps(int tests, std::function<void()> body = {}, std::function<void()> begin = {})
      : tests_(tests), body_(std::move(body)), begin_(std::move(begin)) {}
  void start() override {
    if (begin_) begin_();
  }
  bool test() override {
    if (--tests_ > 0) return false;
    if (body_) body_();
    return true;
  }

 private:
  int tests_;
  std::function<void()> body_, begin_;
};

TEST(Event, ADefaultOneIsFinished) {
  const Event event;
  EXPECT_TRUE(event.done());
  event.wait();
}

TEST(Stream, RunsInOrderOneAtATime) {
  Stream stream;
  std::vector<int> log;
  std::vector<Event> events;
  for (int i = 0; i < 5; ++i) {
    events.push_back(stream.enqueue(std::make_unique<Steps>(
        3 - i % 2, [&, i] { log.push_back(2 * i + 1); }, [&, i] { log.push_back(2 * i); })));
  }
  EXPECT_TRUE(log.empty());  // nothing runs in enqueue
  EXPECT_FALSE(stream.idle());
  events[2].wait();
  EXPECT_TRUE(events[0].done());
  EXPECT_TRUE(events[1].done());
  EXPECT_FALSE(events[3].done());
  stream.synchronize();
  EXPECT_TRUE(stream.idle());
  EXPECT_EQ(log, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Stream, PollFinishesOneAndStartsTheNext) {
  Stream stream;
  bool started = false;
  EXPECT_FALSE(stream.poll());
  const Event first = stream.enqueue(std::make_unique<Steps>(2));
  const Event second = stream.enqueue(std::make_unique<Steps>(
      2, [] {}, [&] { started = true; }));
  EXPECT_FALSE(stream.poll());
  EXPECT_FALSE(started);
  EXPECT_TRUE(stream.poll());
  EXPECT_TRUE(first.done());
  EXPECT_TRUE(started);
  EXPECT_FALSE(second.done());
}

TEST(Stream, ErrorsReachOnlyTheWaitersOfThatEvent) {
  Stream stream;
  const Event at_start = stream.enqueue(std::make_unique<Steps>(
      1, [] {}, [] { throw std::runtime_error("at start"); }));
  const Event fine = stream.enqueue(std::make_unique<Steps>(2));
  const Event at_test =
      stream.enqueue(std::make_unique<Steps>(2, [] { throw std::logic_error("at test"); }));
  EXPECT_THROW(at_test.wait(), std::logic_error);
  EXPECT_NO_THROW(fine.wait());
  // Events are handles: a copy refers to the same steps.
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): the copy is what is tested
  const Event copy = at_start;
  EXPECT_THROW(at_start.wait(), std::runtime_error);
  EXPECT_THROW(copy.wait(), std::runtime_error);
  EXPECT_TRUE(stream.idle());
}

TEST(Event, CheckRethrowsWithoutAWait) {
  Event().check();
  Stream stream;
  const Event failing =
      stream.enqueue(std::make_unique<Steps>(2, [] { throw std::runtime_error("at test"); }));
  failing.check();  // not finished
  while (!failing.done()) stream.poll();
  EXPECT_THROW(failing.check(), std::runtime_error);
}

// Queued operations may depend on the one that failed.
TEST(Stream, AnExceptionInFlightDoesNotWaitForQueuedWork) {
  const auto never = std::numeric_limits<int>::max();
  EXPECT_THROW(
      {
        Stream stream;
        stream.enqueue(std::make_unique<Steps>(never));
        stream.poll();
        stream.enqueue(std::make_unique<Steps>(never));
        throw std::runtime_error("on its way");
      },
      std::runtime_error);
}

TEST(Stream, SynchronizeFinishesAllAndRethrowsTheFirst) {
  Stream stream;
  bool last = false;
  stream.enqueue(std::make_unique<Steps>(1, [] { throw std::runtime_error("first"); }));
  stream.enqueue(std::make_unique<Steps>(1, [] { throw std::logic_error("second"); }));
  stream.enqueue(std::make_unique<Steps>(5, [&] { last = true; }));
  EXPECT_THROW(stream.synchronize(), std::runtime_error);
  EXPECT_TRUE(last);
  EXPECT_NO_THROW(stream.synchronize());
}

TEST(Stream, DestructionWaitsForQueuedWork) {
  int finished = 0;
  Event event;
  {
    Stream stream;
    stream.enqueue(std::make_unique<Steps>(3, [&] { ++finished; }));
    stream.enqueue(std::make_unique<Steps>(1, [] { throw std::runtime_error("unseen"); }));
    event = stream.enqueue(std::make_unique<Steps>(3, [&] { ++finished; }));
  }
  EXPECT_EQ(finished, 2);
  EXPECT_TRUE(event.done());
  event.wait();
}

/// Records in its destructor whether its event was done.
class Witness : public Operation {
 public:
  Witness(const Event& event, bool& early) : event_(event), early_(early) {}
  ~Witness() override { early_ = event_.done(); }
  void start() override {}
  bool test() override { return true; }

 private:
  const Event& event_;
  bool& early_;
};

// An operation's resources (scratch, requests) are released before its waiter continues.
TEST(Stream, TheOperationIsDestroyedBeforeItsEventIsDone) {
  Event event;
  bool early = true;
  Stream stream;
  event = stream.enqueue(std::make_unique<Witness>(event, early));
  event.wait();
  EXPECT_FALSE(early);
}

// Two pollers, several waiters and several producers; operations of a stream write plain data, so
// ThreadSanitizer reports any concurrent or unordered execution.
TEST(Stream, ManyThreadsShareIt) {
  constexpr int per_thread = 2'000;
  Stream stream;
  std::int64_t sum = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> pollers;
  for (int t = 0; t < 2; ++t) {
    pollers.emplace_back([&] {
      while (!stop) {
        if (!stream.poll()) std::this_thread::yield();
      }
    });
  }
  std::vector<std::thread> workers;
  std::atomic<int> errors = 0;
  for (int t = 0; t < 3; ++t) {
    workers.emplace_back([&] {
      for (int i = 0; i < per_thread; ++i) {
        const bool fails = i % 10 == 0;
        const Event event = stream.enqueue(std::make_unique<Steps>(1 + i % 3, [&sum, fails] {
          ++sum;
          if (fails) throw std::runtime_error("expected");
        }));
        try {
          if (i % 2 == 0) event.wait();
        } catch (const std::runtime_error&) {
          ++errors;
        }
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  try {
    stream.synchronize();
  } catch (const std::runtime_error&) {  // NOLINT(bugprone-empty-catch): some fail on purpose
  }
  EXPECT_EQ(sum, 3 * per_thread);
  EXPECT_EQ(errors, 3 * per_thread / 10);
  EXPECT_TRUE(stream.idle());
  stop = true;
  for (std::thread& poller : pollers) poller.join();
}

// A waiter whose operation another thread executes must yield the core to that thread.
TEST(Stream, WaitingDoesNotSpin) {
  Stream stream;
  std::atomic<bool> running = false;
  const Event event = stream.enqueue(std::make_unique<Steps>(
      1, [] {},
      [&] {
        running = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }));
  std::thread poller([&] { stream.poll(); });
  while (!running) std::this_thread::yield();
  const auto busy_seconds = [] {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const double before = busy_seconds();
  event.wait();
  // A spinning waiter takes all of the 0.2 s; a sleeping one wakes for a few µs every 20 µs.
  EXPECT_LT(busy_seconds() - before, 0.1);
  poller.join();
}

}  // namespace
}  // namespace trireme::device
