#include "trireme/data_parallel/tickets.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "trireme/core/error.hpp"

namespace trireme::data_parallel {
namespace {

constexpr Tickets::Plan plan{
    .workers = 3, .batch = 12, .first_step = 5, .first_sample = 60, .staleness = 2};

TEST(Tickets, CutEveryBatchIntoShares) {
  Tickets tickets(plan);
  tickets.set_fence(7);
  const Ticket first = tickets.next(1).value();
  EXPECT_EQ(first, (Ticket{.kind = Ticket::Kind::train,
                           .number = 15,
                           .step = 5,
                           .share = 0,
                           .first = 60,
                           .count = 4}));
  const Ticket second = tickets.next(0).value();
  EXPECT_EQ(second.number, 16);
  EXPECT_EQ(second.first, 64);
  EXPECT_THROW(tickets.next(0), Error);    // has one
  EXPECT_THROW(tickets.finish(2), Error);  // has none
  EXPECT_EQ(tickets.finish(0), second);
}

TEST(Tickets, HoldFastWorkersToTheBound) {
  Tickets tickets(plan);
  tickets.set_fence(100);
  ASSERT_TRUE(tickets.next(0).has_value());  // and never finishes
  ASSERT_TRUE(tickets.next(2).has_value());
  tickets.finish(2);
  for (int clock = 0; clock <= plan.staleness; ++clock) {
    EXPECT_EQ(tickets.lead(1), clock);
    ASSERT_TRUE(tickets.next(1).has_value()) << clock;
    tickets.finish(1);
  }
  EXPECT_EQ(tickets.lead(1), plan.staleness + 1);
  EXPECT_FALSE(tickets.next(1).has_value());
  tickets.finish(0);
  EXPECT_TRUE(tickets.next(1).has_value());
}

TEST(Tickets, DeadWorkersDoNotBlockOthers) {
  Tickets tickets(plan);
  tickets.set_fence(100);
  const Ticket begun = tickets.next(0).value();
  for (int worker : {1, 2}) {
    for (int i = 0; i <= plan.staleness; ++i) {
      ASSERT_TRUE(tickets.next(worker).has_value());
      tickets.finish(worker);
    }
  }
  EXPECT_FALSE(tickets.next(1).has_value());
  EXPECT_EQ(tickets.lose(0), begun);
  EXPECT_EQ(tickets.alive(), 2);
  EXPECT_EQ(tickets.next(1), begun);  // the unfinished share first
  EXPECT_THROW(tickets.next(0), Error);
  EXPECT_EQ(tickets.lose(2), std::nullopt);
}

TEST(Tickets, FencesWaitForAll) {
  Tickets tickets(plan);
  EXPECT_TRUE(tickets.drained());
  tickets.set_fence(6);
  for (int worker = 0; worker < 3; ++worker) ASSERT_TRUE(tickets.next(worker).has_value());
  for (int worker = 0; worker < 3; ++worker) {
    EXPECT_FALSE(tickets.drained());
    tickets.finish(worker);
    EXPECT_FALSE(tickets.next(worker).has_value());
  }
  EXPECT_TRUE(tickets.drained());
  tickets.evaluate(2, 1);
  EXPECT_FALSE(tickets.drained());
  EXPECT_EQ(tickets.next(0).value().kind, Ticket::Kind::evaluate);
  EXPECT_EQ(tickets.next(1).value().share, 1);
  EXPECT_FALSE(tickets.next(2).has_value());
  tickets.finish(0);
  tickets.lose(1);
  EXPECT_EQ(tickets.next(2).value().share, 1);
  tickets.finish(2);
  EXPECT_TRUE(tickets.drained());
  tickets.set_fence(50);
  tickets.next(0);
  tickets.close_fence();  // ends with the started batch
  tickets.finish(0);
  tickets.next(2);
  tickets.finish(2);
  tickets.next(0);
  tickets.finish(0);
  EXPECT_FALSE(tickets.next(2).has_value());
  EXPECT_TRUE(tickets.drained());
}

/// Workers of random speed, some of which die: a surviving worker finishes each share once, and
/// none gets a share beyond the bound.
TEST(Tickets, EveryShareIsDoneOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int workers = 1 + static_cast<int>(random() % 6);
    const auto staleness = static_cast<std::int64_t>(random() % 4);
    Tickets tickets({.workers = workers, .batch = 4 * workers, .staleness = staleness});
    std::set<int> living;
    std::set<int> busy;
    for (int w = 0; w < workers; ++w) living.insert(w);
    std::map<std::int64_t, int> done;
    const std::int64_t steps = 20;
    tickets.set_fence(steps);
    for (int turn = 0; !tickets.drained(); ++turn) {
      ASSERT_LT(turn, 100'000) << "no worker may continue";
      auto chosen = living.begin();
      std::advance(chosen, random() % living.size());
      const int worker = *chosen;
      if (living.size() > 1 && random() % 100 == 0) {
        tickets.lose(worker);
        living.erase(worker);
        busy.erase(worker);
      } else if (busy.contains(worker)) {
        if (worker > 0 || random() % 5 == 0) {  // the first is slow
          ++done[tickets.finish(worker).number];
          busy.erase(worker);
        }
      } else if (const auto ticket = tickets.next(worker)) {
        EXPECT_LE(tickets.lead(worker), staleness);
        busy.insert(worker);
      }
    }
    EXPECT_EQ(static_cast<std::int64_t>(done.size()), steps * workers);
    for (const auto& [number, times] : done) EXPECT_EQ(times, 1) << number;
  }
}

}  // namespace
}  // namespace trireme::data_parallel
