// The NCCL communicator, on a fake NCCL.
#include <chrono>
#include <exception>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device_groups.hpp"
#include "support/nccl_double.hpp"

namespace trireme::comm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::NcclDouble;
using Result = NcclApi::Result;
using namespace std::chrono_literals;

class Nccl : public ::testing::Test {
 protected:
  explicit Nccl(NcclOptions options = {.scratch = 10'000, .period = 20ms}, bool ordered = false,
                bool recent = true)
      : options_(options), ordered_(ordered), recent_(recent) {}
  void make() {
    groups_.make([this](const TestGroup& group) {
      return runtime_->make(make_mpi_communicator(group.oracle, groups_.ledger), group.name,
                            "comm.data");
    });
  }
  void TearDown() override {
    groups_.groups.clear();
    runtime_.reset();
    EXPECT_EQ(double_.alive(), 0);
    EXPECT_EQ(double_.calls("parent ended first"), 0);
  }
  const DeviceGroups::Group& world() const { return groups_.groups[1]; }
  static std::string what(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  /// Two groups of the world's ranks, whose streams nobody else polls, on a device with room for
  /// one operation. Half of the ranks are slow to hand over the first group's: if they handed over
  /// the second's meanwhile, each half would wait for the other.
  void expect_one_order(bool splits = false) {
    if (groups_.hosts.world()->size() == 1) return;
    const auto make_own = [&](const char* name) {
      auto mpi = make_mpi_communicator(MPI_COMM_WORLD, groups_.ledger);
      if (splits)
        return runtime_->make(std::move(mpi), name, "comm.data", {*groups_.hosts.world()});
      return runtime_->make(std::move(mpi), name, "comm.data");
    };
    const auto tensor = make_own("tensor"), data = make_own("data");
    OnDevice first(groups_, DType::f32, 1000), second(groups_, DType::f32, 1000);
    device::Stream streams[2] = {device::Stream(groups_.device), device::Stream(groups_.device)};
    double_.leave_room_for_one();
    for (int i = 0; i < 10; ++i) {
      if (tensor->rank() % 2 == 1) double_.hold_next(50);
      tensor->all_reduce(first.tensor(), Reduction::max, streams[0]);
      data->all_reduce(second.tensor(), Reduction::max, streams[1]).wait();
    }
    const auto fence = groups_.device.fence();
    const auto late = std::chrono::steady_clock::now() + 20s;
    while (fence && !fence->reached() && std::chrono::steady_clock::now() < late) {
      std::this_thread::sleep_for(1ms);
    }
    const bool done = !fence || fence->reached();
    EXPECT_TRUE(done) << "ranks wait for one another";
    if (!tensor->all_agree(done)) runtime_->abandon(std::make_exception_ptr(Error("enough")));
  }

  NcclOptions options_;
  bool ordered_, recent_;
  DeviceGroups groups_{11};
  NcclDouble double_{groups_.device, ordered_, recent_};
  std::unique_ptr<NcclRuntime> runtime_ =
      std::make_unique<NcclRuntime>(double_, groups_.ledger, options_);
};

TEST_F(Nccl, EveryCollectiveMatchesMpiBitForBit) {
  make();
  try_everything(groups_, 10'007);
  for (const char* name : {"all_reduce", "reduce_scatter", "reduce"}) {
    EXPECT_EQ(double_.calls(name), 0) << name;  // no sum by the library
  }
  EXPECT_EQ(double_.calls("all_gather") > 0, world()->size() > 1);
}

class Alone : public Nccl {
 protected:
  Alone() : Nccl({.library_sums = true, .scratch = 10'000, .period = 20ms, .alone = true}) {}
};

// What one GPU can show of NCCL.
TEST_F(Alone, GroupsOfOneRankUseTheLibraryToo) {
  make();
  EXPECT_EQ(double_.alive(), static_cast<int>(groups_.groups.size()));
  try_everything(groups_, 10'007, true);
  for (const char* name : {"all_reduce", "reduce_scatter", "all_gather", "broadcast"}) {
    EXPECT_GT(double_.calls(name), 0) << name;
  }
}

class LibrarySums : public Nccl {
 protected:
  LibrarySums() : Nccl({.library_sums = true, .scratch = 10'000, .period = 20ms}) {}
};

TEST_F(LibrarySums, EveryCollectiveOfWholeNumbersMatchesMpiBitForBit) {
  make();
  try_everything(groups_, 10'007, true);
  for (const char* name : {"all_reduce", "reduce_scatter"}) {
    EXPECT_EQ(double_.calls(name) > 0, world()->size() > 1) << name;
  }
}

TEST_F(LibrarySums, MaximaAnd16BitSumsDoNotUseTheLibrary) {
  make();
  const Trial trial{groups_, world()};
  for (const DType type : {DType::bf16, DType::f16}) {
    trial.expect_same(type, {1001}, [](Communicator& group, const Tensors& t, device::Stream& s) {
      group.all_reduce(t[0], Reduction::sum, s).wait();
    });
  }
  trial.expect_same(DType::f32, {1001},
                    [](Communicator& group, const Tensors& t, device::Stream& s) {
                      group.all_reduce(t[0], Reduction::max, s).wait();
                    });
  EXPECT_EQ(double_.calls("all_reduce"), 0);
}

TEST_F(Nccl, ANaNReachesEveryRank) {
  make();
  for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
    OnDevice data(groups_, DType::f32, 3);
    Elements values(DType::f32, 3);
    for (int i = 0; i < 3; ++i) values.set(i, i);
    if (world()->rank() == world()->size() - 1) values.set(1, std::nan(""));
    data.put(values);
    device::Stream stream(groups_.device);
    world()->all_reduce(data.tensor(), reduction, stream).wait();
    const Elements result = data.get();
    EXPECT_FALSE(std::isnan(result.get(0)));
    EXPECT_TRUE(std::isnan(result.get(1)));
  }
}

// Operations are queued on the device: the host neither waits nor copies.
TEST_F(Nccl, TheHostDoesNotWait) {
  make();
  if (world()->size() == 1) return;
  OnDevice data(groups_, DType::f32, 1000);
  device::Stream stream(groups_.device);
  std::atomic<bool> open = false;
  groups_.device.repeat(groups_.device.native(), [&] { return open.load(); });
  const device::Event event = world()->all_reduce(data.tensor(), Reduction::sum, stream);
  event.wait();
  EXPECT_FALSE(event.done());
  open = true;
  groups_.device.synchronize();
  EXPECT_TRUE(event.done());
}

TEST_F(Nccl, OperationsAreSpansOfTheirQueue) {
  make();
  if (world()->size() == 1) return;
  OnDevice data(groups_, DType::f32, 1000);
  device::Stream stream(groups_.device);
  const auto reduce = [&] { world()->all_reduce(data.tensor(), Reduction::sum, stream).wait(); };
  const auto spans = [&] {
    stream.queue().synchronize();
    groups_.device.synchronize();
    return groups_.device.read_queues();
  };
  reduce();
  EXPECT_TRUE(spans().empty()) << "tracing is off";
  groups_.device.trace_queues();
  const auto before = device::Timeline::Clock::now();
  reduce();
  reduce();
  const auto after = [&] {
    auto found = spans();
    return std::pair(std::move(found), device::Timeline::Clock::now());
  }();
  ASSERT_EQ(after.first.size(), 2U) << "copies inside are not separate";
  auto end = before;
  for (const device::QueueSpan& span : after.first) {
    EXPECT_STREQ(span.name, "all_reduce");
    EXPECT_GT(span.queue, 0);
    EXPECT_GE(span.begin, end);
    EXPECT_GT(span.end, span.begin);
    end = span.end;
  }
  EXPECT_LE(end, after.second);
  EXPECT_TRUE(spans().empty()) << "spans are read once";
}

TEST_F(Nccl, HostTensorsAndAgreementUseMpi) {
  make();
  for (const DeviceGroups::Group& group : groups_.groups) {
    std::vector<std::int64_t> values(100, group->rank());
    device::Stream host;
    const int before = double_.calls("group_end");
    group->all_reduce(Tensor(values.data(), {100}), Reduction::max, host).wait();
    EXPECT_EQ(values, std::vector<std::int64_t>(100, group->size() - 1));
    EXPECT_EQ(group->all_reduce(std::int64_t{1}, Reduction::sum), group->size());
    EXPECT_EQ(double_.calls("group_end"), before);
    EXPECT_EQ(group->traffic().total().operations, group->size() > 1 ? 1 : 0);
    group->reset_traffic();
    EXPECT_EQ(group->traffic().total().operations, 0);
  }
}

TEST_F(Nccl, TrafficMatchesMpi) {
  make();
  for (const DeviceGroups::Group& group : groups_.groups) {
    group.host->reset_traffic();
    const int n = group->size();
    const int rank = group->rank();
    std::vector<std::int64_t> counts(static_cast<std::size_t>(n), 7);
    counts.front() = 0;
    Trial{groups_, group}.expect_same(
        DType::bf16, {12 * n + 1, 12 * n, 12, 7 * (n - 1), rank == 0 ? 0 : 7, 12 * n},
        [&](Communicator& each, const Tensors& t, device::Stream& stream) {
          each.all_reduce(t[0], Reduction::sum, stream);
          each.reduce_scatter(t[2], t[1], Reduction::sum, stream);
          each.reduce_scatter_v(t[4], t[3], counts, Reduction::max, stream);
          each.all_gather(t[1], t[2], stream);
          each.all_gather_v(t[3], t[4], counts, stream);
          each.all_to_all(t[5], t[1], stream);
          each.exchange({{t[1].slice(0, 0, 3), (rank + 1) % n, true},
                         {t[5].slice(0, 0, 3), (rank + n - 1) % n, false}},
                        stream)
              .wait();
        });
    const TrafficByKind own = group->traffic(), theirs = group.host->traffic();
    for (std::size_t kind = 0; kind < operation_kinds; ++kind) {
      const auto name = name_of(static_cast<OperationKind>(kind));
      EXPECT_EQ(own.kinds[kind].bytes, theirs.kinds[kind].bytes) << name;
      EXPECT_EQ(own.kinds[kind].operations, theirs.kinds[kind].operations) << name;
      EXPECT_EQ(own.kinds[kind].seconds > 0, own.kinds[kind].operations > 0) << name;
    }
  }
}

TEST_F(Nccl, ScratchMatchesThePrediction) {
  make();
  const auto held = [&] { return groups_.ledger.held(device::Use::communication); };
  const std::int64_t before = held();
  OnDevice data(groups_, DType::f32, 200'000);
  device::Stream stream(groups_.device);
  for (const std::int64_t count : {10, 1000, 200'000}) {
    world()->all_reduce(data.tensor(0, count), Reduction::max, stream).wait();
    EXPECT_EQ(held() - before, static_cast<std::int64_t>(nccl_scratch_bytes(
                                   world()->size(), static_cast<std::size_t>(count) * 4, options_)))
        << count;
  }
  groups_.device.synchronize();
}

TEST_F(Nccl, MemoryIsRegisteredUntilItsRegistrationEnds) {
  make();
  OnDevice data(groups_, DType::f32, 1000);
  int registered = 0;
  for (const DeviceGroups::Group& group : groups_.groups) {
    const auto registration = group->register_memory(data.tensor());
    EXPECT_EQ(registration != nullptr, group->size() > 1) << group.name;
    if (group->size() == 1) continue;
    EXPECT_EQ(double_.calls("register_memory"), ++registered);
    device::Stream stream(groups_.device);
    group->broadcast(data.tensor(), 0, stream).wait();
    EXPECT_EQ(double_.calls("register_memory"), registered) << "once";
    EXPECT_EQ(double_.calls("deregister_memory"), registered - 1);
  }
  EXPECT_EQ(double_.calls("deregister_memory"), registered);
  EXPECT_EQ(runtime_->refusal(), "");
}

// All ranks or none: NCCL may wait for what another rank has registered.
TEST_F(Nccl, ARefusalToRegisterIsOfAllRanksAndEndsNothing) {
  make();
  if (world()->size() == 1) return;
  const bool refuses = world()->rank() == world()->size() - 1;
  if (refuses) double_.refuse("register_memory", Result::internal_error);
  OnDevice data(groups_, DType::f32, 1000);
  EXPECT_EQ(world()->register_memory(data.tensor()), nullptr);
  EXPECT_EQ(double_.calls("deregister_memory"), refuses ? 0 : 1);
  EXPECT_THAT(runtime_->refusal(), HasSubstr(refuses ? "words for 3" : "another rank cannot"));
  device::Stream stream(groups_.device);
  world()->all_reduce(data.tensor(), Reduction::max, stream).wait();
  groups_.device.synchronize();
  EXPECT_EQ(double_.calls("register_memory"), 1) << "nor is scratch";
}

TEST_F(Nccl, ScratchIsRegisteredWhereverItMoves) {
  make();
  if (world()->size() == 1) return;
  OnDevice data(groups_, DType::f32, 200'000);
  const auto registration = world()->register_memory(data.tensor());
  device::Stream stream(groups_.device);
  int moves = 0;
  std::int64_t held = 0;
  for (const std::int64_t count : {10, 1000, 200'000, 1000, 200'000}) {
    world()->all_reduce(data.tensor(0, count), Reduction::max, stream).wait();
    moves += groups_.ledger.held(device::Use::communication) >
             std::exchange(held, groups_.ledger.held(device::Use::communication));
    EXPECT_EQ(double_.calls("register_memory"), 1 + moves) << count;
    EXPECT_EQ(double_.calls("deregister_memory"), moves - 1) << count;
  }
  EXPECT_GT(moves, 1);
}

TEST_F(Nccl, ARegistrationEndsAfterTheWorkThatWasQueued) {
  make();
  if (world()->size() == 1) return;
  OnDevice data(groups_, DType::f32, 1000);
  auto registration = world()->register_memory(data.tensor());
  device::Stream stream(groups_.device);
  std::atomic<bool> open = false;
  groups_.device.repeat(groups_.device.native(), [&] { return open.load(); });
  world()->broadcast(data.tensor(), 0, stream).wait();
  std::thread end([&] { registration.reset(); });
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(double_.calls("deregister_memory"), 0);
  open = true;
  end.join();
  EXPECT_EQ(double_.calls("deregister_memory"), 1);
}

TEST_F(Nccl, AnAbortEndsRegistrations) {
  make();
  if (world()->size() == 1) return;
  OnDevice data(groups_, DType::f32, 1000);
  auto registration = world()->register_memory(data.tensor());
  device::Stream stream(groups_.device);
  const int next = (world()->rank() + 1) % world()->size();
  world()->exchange({{data.tensor(), next, false}}, stream);  // never sent
  while (!stream.idle()) stream.poll();
  runtime_->abandon(std::make_exception_ptr(Error("enough")));
  registration.reset();
  EXPECT_EQ(double_.calls("deregister_memory"), 0);
}

class Old : public Nccl {
 protected:
  Old() : Nccl({.scratch = 10'000, .period = 20ms}, false, false) {}
};

TEST_F(Old, RegistersNothingInSilence) {
  make();
  OnDevice data(groups_, DType::f32, 1000);
  EXPECT_EQ(world()->register_memory(data.tensor()), nullptr);
  EXPECT_EQ(double_.calls("register_memory"), 0);
  EXPECT_EQ(runtime_->refusal(), "");
}

// On one rank, while the others wait for it: they see the error as from a real network.
TEST_F(Nccl, ARefusedCallEndsTheGroupEverywhere) {
  make();
  if (world()->size() == 1) return;
  const int last = world()->size() - 1;
  OnDevice data(groups_, DType::f32, 1000);
  device::Stream stream(groups_.device);
  world()->all_reduce(data.tensor(), Reduction::max, stream).wait();
  groups_.device.synchronize();
  world()->barrier();
  if (world()->rank() == last) double_.refuse("group_end", Result::system_error);
  const device::Event event = world()->all_reduce(data.tensor(), Reduction::max, stream);
  if (world()->rank() == last) {
    const auto expected = AllOf(HasSubstr("nccl: all_reduce on rank"), HasSubstr("of group world"),
                                HasSubstr("NCCL's words for 2"));
    EXPECT_THAT(what([&] { event.wait(); }), expected);
    EXPECT_THAT(what([&] { groups_.device.synchronize(); }), expected);
    // NCCL is not called any more.
    const int calls = double_.calls("send");
    EXPECT_THAT(what([&] { world()->broadcast(data.tensor(), 0, stream).wait(); }), expected);
    EXPECT_EQ(double_.calls("send"), calls);
    // Other groups fail too, through the watch: their queued work may wait for this one.
    for (int i = 0; double_.alive() > 0 && i < 1000; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(double_.alive(), 0);
    EXPECT_GT(double_.calls("abort"), 1);
  } else {
    double_.break_links(Result::remote_error);
    EXPECT_THAT(what([&] {
                  event.wait();
                  groups_.device.synchronize();
                }),
                AllOf(HasSubstr("of group "), HasSubstr("NCCL's words for 6")));
  }
  EXPECT_THROW(data.get(), Error);  // its results are discarded
  MPI_Barrier(MPI_COMM_WORLD);
}

// The host waits for the device, the device for a rank that never arrives.
TEST_F(Nccl, AnErrorBetweenPollsEndsTheWork) {
  make();
  if (world()->size() == 1) return;
  OnDevice data(groups_, DType::f32, 1000);
  device::Stream stream(groups_.device);
  if (world()->rank() == 0) {
    const device::Event event = world()->all_reduce(data.tensor(), Reduction::sum, stream);
    // NCCL may need several polls to queue it.
    event.wait();
    std::thread fault([&] {
      std::this_thread::sleep_for(100ms);
      double_.break_links(Result::remote_error);
    });
    EXPECT_THAT(what([&] { groups_.device.synchronize(); }),
                AllOf(HasSubstr("nccl: work under way on rank 0"), HasSubstr("words for 6")));
    fault.join();
    EXPECT_THROW(event.wait(), Error);
  }
  if (world()->rank() != 0) double_.break_links(Result::remote_error);  // like a network
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_F(Nccl, WithoutAnIdAllRanksFail) {
  const int root = groups_.hosts.world()->rank();
  if (root == 0) double_.refuse("get_unique_id", Result::unhandled_cuda_error);
  if (groups_.hosts.world()->size() == 1) return;
  try {
    runtime_->make(make_mpi_communicator(MPI_COMM_WORLD, groups_.ledger), "shard", "comm.data");
    ADD_FAILURE() << "made";
  } catch (const AgreedError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("group shard"), HasSubstr("NCCL's words for 1"),
                                    HasSubstr("; comm.data = mpi avoids")));
  }
  EXPECT_EQ(double_.calls("init"), 0);
}

TEST_F(Nccl, ARefusedInitializationIsAnError) {
  if (groups_.hosts.world()->size() == 1) return;
  double_.refuse("init", Result::internal_error);
  EXPECT_THAT(what([&] {
                runtime_->make(make_mpi_communicator(MPI_COMM_WORLD, groups_.ledger), "context",
                               "comm.tensor");
              }),
              AllOf(HasSubstr("nccl: init on rank"), HasSubstr("of group context"),
                    HasSubstr("words for 3"),
                    HasSubstr("; NCCL_DEBUG=WARN shows more, comm.tensor = mpi avoids NCCL")));
  EXPECT_THROW(groups_.device.synchronize(), Error);
  EXPECT_EQ(double_.alive(), 0);
}

TEST_F(Nccl, ARefusedSplitIsAnErrorOfTheGroup) {
  if (groups_.hosts.world()->size() == 1) return;
  double_.refuse("split", Result::internal_error);
  EXPECT_THAT(what([&] {
                runtime_->make(make_mpi_communicator(MPI_COMM_WORLD, groups_.ledger), "shard",
                               "comm.data", {*groups_.hosts.world()});
              }),
              AllOf(HasSubstr("nccl: split for group shard on rank"), HasSubstr("words for 3"),
                    HasSubstr("; NCCL_DEBUG=WARN shows more, comm.data = mpi avoids NCCL")));
  EXPECT_THROW(groups_.device.synchronize(), Error);
  for (int i = 0; double_.alive() > 0 && i < 1000; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(double_.alive(), 0);
}

// An exception in flight waits for no other rank, nor for the device's pending work.
TEST_F(Nccl, AnExceptionInFlightAborts) {
  if (groups_.hosts.world()->size() == 1) return;
  const auto fails = [&] {
    const auto own = runtime_->make(make_mpi_communicator(MPI_COMM_WORLD, groups_.ledger), "world",
                                    "comm.world");
    OnDevice data(groups_, DType::f32, 1000);
    device::Stream stream(groups_.device);
    try {
      // Never sent.
      own->exchange({{data.tensor(), (own->rank() + 1) % own->size(), false}}, stream).wait();
      throw Error("on its way");
    } catch (...) {
      runtime_->abandon(std::current_exception());
      EXPECT_EQ(double_.alive(), 0);
      throw;
    }
  };
  EXPECT_EQ(what(fails), "on its way");
  EXPECT_EQ(what([&] { groups_.device.synchronize(); }), "on its way");
  EXPECT_EQ(double_.calls("abort"), 1);
  MPI_Barrier(MPI_COMM_WORLD);
}

// The second group's work, which is aborted first, is queued behind the first's, which waits for a
// rank that never arrives.
TEST_F(Nccl, NoAbortWaitsForAnotherGroupsWork) {
  if (groups_.hosts.world()->size() == 1) return;
  const auto make_own = [&](const char* name) {
    return runtime_->make(make_mpi_communicator(MPI_COMM_WORLD, groups_.ledger), name, "comm.data");
  };
  const auto first = make_own("data"), second = make_own("shard");
  OnDevice data(groups_, DType::f32, 1000);
  device::Stream stream(groups_.device);
  const int next = (first->rank() + 1) % first->size();
  for (const auto* each : {&first, &second}) {
    (*each)->exchange({{data.tensor(), next, false}}, stream);
    while (!stream.idle()) stream.poll();
  }
  runtime_->abandon(std::make_exception_ptr(Error("enough")));
  EXPECT_EQ(double_.calls("abort"), 2);
  EXPECT_EQ(double_.calls("abort that hangs"), 0);
  EXPECT_EQ(what([&] { groups_.device.synchronize(); }), "enough");
  MPI_Barrier(MPI_COMM_WORLD);
}

// Like NCCL, and why one communicator cannot be a pipeline's channel: a send waits for the receive
// called before it, on any stream.
TEST_F(Nccl, OperationsOfOneGroupAreDoneInOrderOnAllStreams) {
  make();
  const int size = world()->size();
  if (size == 1) return;
  OnDevice data(groups_, DType::f32, 10);
  device::Stream first(groups_.device), second(groups_.device);
  // Not Event::wait: it would order computation, and so the next exchange, after it.
  const auto queue_all = [](device::Stream& stream) {
    while (!stream.idle()) stream.poll();
  };
  const int next = (world()->rank() + 1) % size;
  const int previous = (world()->rank() + size - 1) % size;
  world()->exchange({{data.tensor(0, 5), previous, false}}, first);
  queue_all(first);
  const device::Event sent = world()->exchange({{data.tensor(5, 5), next, true}}, second);
  queue_all(second);
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(sent.done());
  runtime_->abandon(std::make_exception_ptr(Error("enough")));
  EXPECT_EQ(what([&] { groups_.device.synchronize(); }), "enough");
  world()->barrier();
}

TEST_F(Nccl, GroupsStartInTheOrderOfTheirCallsOnEveryRank) { expect_one_order(); }

class Ordered : public Nccl {
 protected:
  Ordered() : Nccl({.scratch = 10'000, .period = 20ms}, true) {}
};

// NCCL keeps the order on the device; that of the calls is still ours.
TEST_F(Ordered, GroupsStartInTheOrderOfTheirCallsOnEveryRank) { expect_one_order(); }

// Groups that share resources run one after another in the order of the calls, which must be the
// same on all ranks.
TEST_F(Ordered, GroupsOfOneParentStartInTheOrderOfTheirCalls) { expect_one_order(true); }

/// Work of a stream that never ends.
class Endless final : public device::Operation {
  void start() override {}
  bool test() override { return false; }
};

// The first group's operation is behind work that never ends, and the second's waits for its turn.
TEST_F(Nccl, AnAbortReachesWhoeverWaitsForATurn) {
  if (groups_.hosts.world()->size() == 1) return;
  const auto make_own = [&](const char* name) {
    return runtime_->make(make_mpi_communicator(MPI_COMM_WORLD, groups_.ledger), name, "comm.data");
  };
  const auto first = make_own("data"), second = make_own("tensor");
  const auto fails = [&] {
    OnDevice data(groups_, DType::f32, 1000);
    device::Stream streams[2] = {device::Stream(groups_.device), device::Stream(groups_.device)};
    streams[0].enqueue(std::make_unique<Endless>());
    first->all_reduce(data.tensor(), Reduction::max, streams[0]);
    const device::Event event = second->all_reduce(data.tensor(), Reduction::max, streams[1]);
    for (int i = 0; i < 20; ++i) streams[1].poll();
    EXPECT_FALSE(event.done());
    runtime_->abandon(std::make_exception_ptr(Error("enough")));
    event.wait();
  };
  EXPECT_EQ(what(fails), "enough");
  EXPECT_EQ(what([&] { groups_.device.synchronize(); }), "enough");
  MPI_Barrier(MPI_COMM_WORLD);
}

// Two threads poll streams of one group: neither calls while the other's call is in progress.
TEST_F(Nccl, ThreadsTakeTurnsWithAGroup) {
  make();
  if (world()->size() == 1) return;
  const bool sends = world()->rank() == 0;
  OnDevice data(groups_, DType::f32, 4);
  device::Stream streams[2] = {device::Stream(groups_.device), device::Stream(groups_.device)};
  std::string ends[2] = {"done", "done"};
  const auto poll = [&](int own) {
    ends[own] = what([&] {
      // One rank only sends and one only receives, so the order of the threads does not matter.
      // Many empty messages widen the gap between polling the group and calling it.
      const int peer = sends ? 1 : 0;
      std::vector<Communicator::Message> messages(20'000, {data.tensor(0, 0), peer, sends});
      messages.push_back({data.tensor(2 * own, 2), peer, sends});
      for (int i = 0; i < 40; ++i) world()->exchange(messages, streams[own]);
      streams[own].synchronize();
      throw Error("done");
    });
  };
  if (world()->rank() < 2) {
    std::thread thread([&] { poll(1); });
    poll(0);
    thread.join();
  }
  EXPECT_EQ(ends[0], "done");
  EXPECT_EQ(ends[1], "done");
  if (!world()->all_agree(ends[0] == ends[1])) {
    runtime_->abandon(std::make_exception_ptr(Error("the other thread's")));
  }
}

}  // namespace
}  // namespace trireme::comm::testing
