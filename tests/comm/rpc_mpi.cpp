// Remote calls between all ranks: every rank is caller and callee.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "trireme/comm/rpc.hpp"

namespace trireme::comm::rpc {
namespace {

using testing::HasSubstr;

struct Pair {
  std::int64_t first = 0;
  double second = 0;
};
constexpr Method<Pair, Pair> swap_signs{"swap_signs"};
constexpr Method<std::string, std::string> greet{"greet"};
constexpr Method<Nothing, Nothing> keep{"keep"};
constexpr Method<std::int64_t, std::int64_t> transform{"transform"};
constexpr Method<std::string, Nothing> misbehave{"misbehave"};

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}
void world_barrier() { MPI_Barrier(MPI_COMM_WORLD); }

/// Byte `i` of the message `seed`: no period that pieces could share.
std::byte pattern(std::uint64_t seed, std::size_t i) {
  std::uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ULL + i * 0xd1342543de82ef95ULL;
  x ^= x >> 29;
  return static_cast<std::byte>(x * 0xbf58476d1ce4e5b9ULL >> 56);
}
Bytes patterned(std::uint64_t seed, std::size_t bytes) {
  Bytes memory(bytes);
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = pattern(seed, i);
  return memory;
}

template <class Reply>
std::string failure_of(const Future<Reply>& future) {
  try {
    future.get();
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

/// A rank that leaves fails the calls of others to it.
void close_together(Endpoint& endpoint) {
  world_barrier();
  EXPECT_TRUE(endpoint.close());
}

/// Calls held until they are answered.
template <class Reply>
class Kept {
 public:
  void add(Call<Reply> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_all();
  }
  void wait_for(std::size_t calls) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return calls_.size() >= calls; });
  }
  void answer_all(const Reply& reply) {
    const std::lock_guard lock(mutex_);
    for (auto& call : calls_) call.reply(reply);
    calls_.clear();
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call<Reply>> calls_;
};

TEST(RemoteCall, CarriesTypedValues) {
  Endpoint endpoint(MPI_COMM_WORLD, {});
  endpoint.serve(swap_signs, [](Call<Pair> call, const Pair& pair) {
    call.reply({-pair.first, -pair.second});
  });
  endpoint.serve(greet, [&](Call<std::string> call, const std::string& name) {
    call.reply(fmt::format("{} from {} at {}", name, call.caller(), world_rank()));
  });
  endpoint.start();
  for (int peer = 0; peer < endpoint.size(); ++peer) {
    const Pair pair = endpoint.call(swap_signs, peer, {peer + 7, 0.5}).get();
    EXPECT_EQ(pair.first, -(peer + 7));
    EXPECT_EQ(pair.second, -0.5);
    EXPECT_EQ(endpoint.call(greet, peer, std::string("word")).get(),
              fmt::format("word from {} at {}", world_rank(), peer));
    EXPECT_EQ(endpoint.call(greet, peer, std::string()).get(),
              fmt::format(" from {} at {}", world_rank(), peer));
  }
  close_together(endpoint);
}

/// Receives bulk, and replies with shorter bulk than the buffer. `request` numbers it.
void serve_transform(Endpoint& endpoint, std::atomic<int>& sent) {
  endpoint.serve(transform, [&](Call<std::int64_t> call, std::int64_t request) {
    auto memory = std::make_shared<Bytes>(call.bulk_bytes());
    const std::span<std::byte> all(*memory);
    call.receive(all, [memory, request, &sent](Call<std::int64_t> call) {
      const std::uint64_t seed = static_cast<std::uint64_t>(request);
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < memory->size(); ++i) {
        wrong += (*memory)[i] != pattern(seed, i) ? 1 : 0;
      }
      auto answer = std::make_shared<Bytes>(patterned(seed + 1, call.capacity() * 2 / 3));
      call.reply(wrong, *answer, [answer, &sent] { ++sent; });
    });
  });
}

TEST(RemoteCall, CarriesBulkBothWays) {
  Endpoint endpoint(MPI_COMM_WORLD, {});
  std::atomic<int> sent = 0;
  serve_transform(endpoint, sent);
  endpoint.start();
  struct Exchange {
    Bytes out, in;
    std::uint64_t seed = 0;
    Future<std::int64_t> reply;
  };
  std::deque<Exchange> exchanges;
  std::uint64_t seed = static_cast<std::uint64_t>(world_rank()) * 1000;
  for (const std::size_t out : {0, 1, 3, 4096, 65'537, 1'048'576 + 7}) {
    for (const std::size_t in : {std::size_t{0}, std::size_t{5}, out + 1}) {
      for (int peer = 0; peer < endpoint.size(); ++peer) {
        Exchange& each = exchanges.emplace_back();
        each.seed = seed += 2;
        each.out = patterned(each.seed, out);
        each.in.assign(in, std::byte{0xee});
        each.reply =
            endpoint.call(transform, peer, static_cast<std::int64_t>(each.seed), each.out, each.in);
      }
    }
  }
  for (const Exchange& each : exchanges) {
    EXPECT_EQ(each.reply.get(), 0) << each.out.size() << " bytes arrived wrong";
    const std::size_t bytes = each.in.size() * 2 / 3;
    const Bytes expected = patterned(each.seed + 1, bytes);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), each.in.begin()));
    EXPECT_TRUE(std::all_of(each.in.begin() + static_cast<std::ptrdiff_t>(bytes), each.in.end(),
                            [](std::byte b) { return b == std::byte{0xee}; }));
  }
  close_together(endpoint);
  world_barrier();
  EXPECT_EQ(sent, static_cast<int>(exchanges.size()));  // all ranks make as many calls to each
}

TEST(RemoteCall, IsAnsweredLaterFromAnotherThread) {
  Kept<Nothing> kept;
  Endpoint endpoint(MPI_COMM_WORLD, {});
  endpoint.serve(keep, [&](Call<Nothing> call, Nothing) { kept.add(std::move(call)); });
  endpoint.serve(greet, [](Call<std::string> call, const std::string& name) { call.reply(name); });
  endpoint.start();
  std::thread answering;
  if (world_rank() == 0) {
    answering = std::thread([&] {
      kept.wait_for(static_cast<std::size_t>(world_size()));
      kept.answer_all({});
    });
  }
  const auto first = endpoint.call(keep, 0, {});
  if (world_rank() == world_size() - 1) {
    // The last rank starts late, and all others' calls wait for it.
    EXPECT_EQ(endpoint.call(greet, 0, std::string("x")).get(), "x");
  }
  first.get();
  if (answering.joinable()) answering.join();
  close_together(endpoint);
}

TEST(RemoteCall, ReturnsErrors) {
  Endpoint endpoint(MPI_COMM_WORLD, {});
  endpoint.serve(misbehave, [](Call<Nothing> call, const std::string& how) {
    if (how == "throw") throw std::runtime_error("thrown on purpose");
    if (how == "drop") return;
    if (how == "fail") return call.fail("failed on purpose");
    static const Bytes much(1000);
    if (how == "capacity") return call.reply({}, much);
    if (how == "wrong") return call.receive({}, [](const Call<Nothing>&) {});
    auto memory = std::make_shared<Bytes>(call.bulk_bytes());
    call.receive(*memory, [memory](const Call<Nothing>&) { throw Error("thrown after bulk"); });
  });
  endpoint.start();
  const Bytes bulk = patterned(1, 200'001);  // mostly never received
  for (int peer = 0; peer < endpoint.size(); ++peer) {
    const auto words = [&](const std::string& how) {
      const auto future = endpoint.call(misbehave, peer, how, bulk);
      EXPECT_THROW(future.get(), RemoteError);
      return failure_of(future);
    };
    const std::string where = fmt::format("rank {}, misbehave: ", peer);
    EXPECT_EQ(words("throw"), where + "thrown on purpose");
    EXPECT_EQ(words("drop"), where + "destroyed unanswered");
    EXPECT_EQ(words("fail"), where + "failed on purpose");
    EXPECT_EQ(words("after"), where + "thrown after bulk");
    EXPECT_THAT(words("capacity"),
                HasSubstr("1000 bytes of bulk to misbehave: its caller takes at most 0"));
    EXPECT_THAT(words("wrong"), HasSubstr("200001 bytes of bulk for memory of 0"));
    EXPECT_EQ(failure_of(endpoint.call(greet, peer, std::string("x"))),
              fmt::format("rank {0}, greet: rank {0} serves no method of this name", peer));
    constexpr Method<Pair, Nothing> other_types{"misbehave_not"};
    EXPECT_THAT(failure_of(endpoint.call(other_types, peer, {})), HasSubstr("serves no method"));
  }
  close_together(endpoint);
}

TEST(RemoteCall, RefusesOtherTypes) {
  Endpoint endpoint(MPI_COMM_WORLD, {});
  endpoint.serve(swap_signs, [](Call<Pair> call, const Pair& pair) { call.reply(pair); });
  endpoint.start();
  constexpr Method<std::int32_t, Pair> narrower{"swap_signs"};
  EXPECT_THAT(failure_of(endpoint.call(narrower, 0, 1)),
              HasSubstr("4 bytes where the type has 16"));
  constexpr Method<Pair, std::int32_t> other_reply{"swap_signs"};
  EXPECT_THAT(failure_of(endpoint.call(other_reply, 0, {})),
              HasSubstr("16 bytes where the type has 4"));
  close_together(endpoint);
}

TEST(RemoteCall, OutstandingCallsKeepTheirBulkApart) {
  constexpr std::size_t calls = 5;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<Call<std::int64_t>, std::uint64_t>> kept;  // with their seeds
  Endpoint endpoint(MPI_COMM_WORLD, {});
  endpoint.serve(transform, [&](Call<std::int64_t> call, std::int64_t seed) {
    const std::lock_guard lock(mutex);
    kept.emplace_back(std::move(call), static_cast<std::uint64_t>(seed));
    changed.notify_all();
  });
  endpoint.start();
  const int peer = (world_rank() + 1) % world_size();
  // The second round finds the slots of the first, which came back in another order.
  for (std::size_t round = 0; round < 2; ++round) {
    std::deque<Bytes> bulk;
    std::vector<Future<std::int64_t>> futures;
    for (std::size_t i = 0; i < calls; ++i) {
      const std::uint64_t seed = 10 * round + i;
      bulk.push_back(patterned(seed, 70'000 + 1000 * i));
      futures.push_back(
          endpoint.call(transform, peer, static_cast<std::int64_t>(seed), bulk.back()));
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return kept.size() == calls; });
    std::vector<std::pair<Call<std::int64_t>, std::uint64_t>> all;
    all.swap(kept);
    lock.unlock();
    std::reverse(all.begin(), all.end());
    for (auto& [call, seed] : all) {
      auto memory = std::make_shared<Bytes>(call.bulk_bytes());
      call.receive(*memory, [memory, seed = seed](Call<std::int64_t> whole) {
        whole.reply(*memory == patterned(seed, memory->size()) ? 0 : 1);
      });
    }
    for (const auto& future : futures) EXPECT_EQ(future.get(), 0);
  }
  close_together(endpoint);
}

TEST(RemoteCall, HandlersMustNotWait) {
  Kept<Nothing> kept;
  Endpoint endpoint(MPI_COMM_WORLD, {});
  std::vector<Future<Nothing>> inner;  // the service thread's
  endpoint.serve(keep, [&](Call<Nothing> call, Nothing) { kept.add(std::move(call)); });
  endpoint.serve(misbehave, [&](Call<Nothing> call, const std::string& how) {
    inner.push_back(endpoint.call(keep, world_rank(), {}));
    if (how == "wait") inner.back().get();
    call.reply({});
  });
  endpoint.start();
  world_barrier();
  if (world_rank() == 0) {
    EXPECT_THAT(failure_of(endpoint.call(misbehave, 0, std::string("wait"))),
                HasSubstr("a handler waits for a reply"));
    EXPECT_EQ(failure_of(endpoint.call(misbehave, 0, std::string("call"))), "no failure");
    kept.wait_for(2);
    kept.answer_all({});
  }
  close_together(endpoint);
}

TEST(RemoteCall, CloseFailsHeldCalls) {
  Kept<Nothing> kept;
  Endpoint endpoint(MPI_COMM_WORLD, {});
  endpoint.serve(keep, [&](Call<Nothing> call, Nothing) { kept.add(std::move(call)); });
  endpoint.start();
  const Bytes bulk = patterned(3, 300'003);  // never received
  const auto others = static_cast<std::size_t>(world_size() - 1);
  if (world_rank() == 0) {
    kept.wait_for(others);
    EXPECT_TRUE(endpoint.close());
    EXPECT_THROW(endpoint.call(keep, 0, {}), Error);
  } else {
    const auto future = endpoint.call(keep, 0, {}, bulk);
    EXPECT_EQ(failure_of(future), "rank 0, keep: its endpoint was closed");
    EXPECT_THROW(future.get(), RemoteError);
    // Until its disconnect has come, rank 0 refuses calls itself.
    Future<Nothing> late;
    do {
      late = endpoint.call(keep, 0, {}, bulk);
    } while (failure_of(late) == "rank 0, keep: rank 0 has left");
    EXPECT_EQ(failure_of(late), "rank 0, keep: has left");
    EXPECT_THROW(late.get(), PeerLost);
    EXPECT_TRUE(endpoint.close());
  }
  kept.forget();
}

TEST(RemoteCall, CloseFailsOwnCalls) {
  Kept<Nothing> kept;
  Endpoint endpoint(MPI_COMM_WORLD, {});
  endpoint.serve(keep, [&](Call<Nothing> call, Nothing) { kept.add(std::move(call)); });
  endpoint.start();
  const Bytes bulk = patterned(3, 300'003);
  const auto others = static_cast<std::size_t>(world_size() - 1);
  if (world_rank() == 0) {
    kept.wait_for(others);
    world_barrier();
    world_barrier();
    kept.answer_all({});  // without a receiver
    EXPECT_TRUE(endpoint.close());
  } else {
    const auto future = endpoint.call(keep, 0, {}, bulk);
    world_barrier();
    EXPECT_TRUE(endpoint.close());
    EXPECT_TRUE(future.ready());
    EXPECT_EQ(failure_of(future), "rank 0, keep: the endpoint was closed before the reply");
    try {
      future.get();
    } catch (const PeerLost&) {
      ADD_FAILURE() << "rank 0 was not lost";
    } catch (const Error&) {
    }
    world_barrier();
  }
}

TEST(RemoteCall, CloseWithTrafficInFlight) {
  // Each rank leaves at its own time while the others still call it.
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> sent = 0;
    Endpoint endpoint(MPI_COMM_WORLD, {});
    serve_transform(endpoint, sent);
    endpoint.start();
    std::deque<std::pair<Bytes, Bytes>> memory;
    std::vector<Future<std::int64_t>> futures;
    for (int i = 0; i < 10 + 7 * world_rank(); ++i) {
      const int peer = (world_rank() + i) % world_size();
      auto& [out, in] = memory.emplace_back(patterned(static_cast<std::uint64_t>(i), 50'001),
                                            Bytes(20'000 + static_cast<std::size_t>(i)));
      futures.push_back(endpoint.call(transform, peer, i, out, in));
    }
    EXPECT_TRUE(endpoint.close()) << "round " << round;
    for (const auto& future : futures) {
      ASSERT_TRUE(future.ready());
      try {
        EXPECT_EQ(future.get(), 0);
      } catch (const Error&) {
        // left before it answered
      }
    }
  }
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(RemoteCall, IdleEndpointsCostNoCore) {
  Options options;
  options.silence = 5;
  Kept<Nothing> kept;
  Endpoint endpoint(MPI_COMM_WORLD, options);
  endpoint.serve(keep, [&](Call<Nothing> call, Nothing) { kept.add(std::move(call)); });
  endpoint.start();
  const auto waiting = endpoint.call(keep, (world_rank() + 1) % world_size(), {});
  kept.wait_for(1);
  world_barrier();
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  // Polling without a pause takes 2 s with a core, at least 0.5 s where four ranks share two; one
  // poll per millisecond costs about ten microseconds.
  EXPECT_LT(cpu_seconds() - before, 0.16);
  if (world_rank() == 0) std::printf("idle: %.1f %% of a core\n", (cpu_seconds() - before) * 50);
  world_barrier();
  kept.answer_all({});
  waiting.get();
  close_together(endpoint);
}

TEST(RemoteCall, LosesOnlySilentPeers) {
  // Rank 0 declares the last rank lost and stops its heartbeats to it, so each loses the other; the
  // rest of the world is unaffected.
  if (world_size() < 2) GTEST_SKIP();
  const int last = world_size() - 1;
  std::mutex mutex;
  std::vector<std::string> reports;
  Options options;
  options.silence = 1;
  options.on_lost = [&](int peer, const std::string& why) {
    const std::lock_guard lock(mutex);
    reports.push_back(fmt::format("{}: {}", peer, why));
  };
  Kept<Nothing> kept;
  Endpoint endpoint(MPI_COMM_WORLD, options);
  endpoint.serve(keep, [&](Call<Nothing> call, Nothing) { kept.add(std::move(call)); });
  endpoint.serve(greet, [](Call<std::string> call, const std::string& name) { call.reply(name); });
  endpoint.start();
  const Bytes bulk = patterned(5, 500'005);
  const bool partner = world_rank() == 0 || world_rank() == last;
  const int other = world_rank() == 0 ? last : 0;
  std::this_thread::sleep_for(std::chrono::seconds(2));
  {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(reports.empty());  // heartbeats arrive without calls
  }
  world_barrier();
  if (partner) {
    const auto future = endpoint.call(keep, other, {}, bulk);
    kept.wait_for(1);
    if (world_rank() == 0) {
      endpoint.lose(last, "declared lost");
      EXPECT_EQ(failure_of(future), fmt::format("rank {}, keep: declared lost", last));
    } else {
      EXPECT_THAT(failure_of(future), HasSubstr("rank 0, keep: silent for 1."));
    }
    EXPECT_THROW(future.get(), PeerLost);
    EXPECT_THROW(endpoint.call(keep, other, {}, bulk).get(), PeerLost);
    const std::lock_guard lock(mutex);
    EXPECT_THAT(reports, ::testing::ElementsAre(::testing::StartsWith(fmt::format("{}: ", other))));
  }
  for (int peer = 0; peer < world_size(); ++peer) {
    if (partner && peer == other) continue;
    EXPECT_EQ(endpoint.call(greet, peer, std::string("still there")).get(), "still there");
  }
  kept.forget();
  world_barrier();
  EXPECT_EQ(endpoint.close(), !partner);
}

TEST(RemoteCall, CloseEndsInTimeIfPeersDoNot) {
  // The last rank's endpoint is unresponsive: its service thread sleeps in a handler.
  if (world_size() < 2) GTEST_SKIP();
  const int last = world_size() - 1;
  Endpoint endpoint(MPI_COMM_WORLD, {});
  std::atomic<bool> asleep = false;
  std::atomic<bool> wake = false;
  endpoint.serve(keep, [&](Call<Nothing> call, Nothing) {
    asleep = true;
    while (!wake) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    call.reply({});
  });
  endpoint.start();
  if (world_rank() == 0) {
    const auto future = endpoint.call(keep, last, {});
    world_barrier();
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(endpoint.close(0.5));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(took.count(), 0.4);
    EXPECT_LT(took.count(), 5);
    EXPECT_EQ(failure_of(future), fmt::format("rank {}, keep: did not confirm the end", last));
    EXPECT_THROW(future.get(), PeerLost);
    world_barrier();
  } else {
    if (world_rank() == last) {
      while (!asleep) std::this_thread::yield();
    }
    world_barrier();
    world_barrier();
    wake = true;
    endpoint.close(0.5);
  }
}

TEST(RemoteCall, CloseWaitsUntilItsAcknowledgementIsRead) {
  // Rank 0 says that it leaves, and its service thread then reads nothing for a while. The others
  // answer only after that, and must not end before rank 0 has read their answers.
  if (world_size() < 2) GTEST_SKIP();
  std::atomic<bool> asleep = false;
  std::atomic<bool> wake = false;
  const auto sleep = [&] {
    asleep = true;
    while (!wake) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  Options options;
  options.on_lost = [&](int, const std::string&) { sleep(); };
  Endpoint endpoint(MPI_COMM_WORLD, options);
  endpoint.serve(keep, [&](Call<Nothing>, Nothing) { sleep(); });
  endpoint.start();
  const auto wait_asleep = [&] {
    while (!asleep) std::this_thread::yield();
  };
  if (world_rank() == 0) {
    for (int peer = 1; peer < world_size(); ++peer) endpoint.call(keep, peer, {});
    world_barrier();
    std::thread closer([&] { endpoint.close(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    endpoint.lose(0, "a report that takes its time");
    wait_asleep();
    world_barrier();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    wake = true;
    closer.join();
  } else {
    wait_asleep();
    world_barrier();
    const auto begin = std::chrono::steady_clock::now();
    world_barrier();
    wake = true;
    EXPECT_TRUE(endpoint.close());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(took.count(), 0.5);
  }
}

}  // namespace
}  // namespace trireme::comm::rpc
