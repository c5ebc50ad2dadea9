// Groups that share memory give the bits of messages, for any size and with other operations
// pending; and late or inconsistent ranks.
#include <chrono>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/progress.hpp"

#include "groups.hpp"

namespace trireme::comm::testing {
namespace {

using ::testing::HasSubstr;

/// More than a ring holds of one rank's contributions, plus a remainder.
constexpr std::int64_t crossing_rings = (std::int64_t{5} << 18) + 3;  // floats

/// Numbers of many magnitudes, so that another order of addition gives other bits.
void make_wild(Elements& elements, int rank, DType type) {
  std::uint32_t state = 77 + 1000 * static_cast<std::uint32_t>(rank);
  for (std::int64_t i = 0; i < elements.count(); ++i) {
    state = state * 1664525 + 1013904223;  // Numerical Recipes' linear congruence
    const auto value = static_cast<double>(state >> 8U & 0x1fffU);
    const double scale = 1.0 / static_cast<double>(1U << (state >> 28U));
    elements.set(i, has_sign(type) ? (value - 4096) * scale : value / 64);
  }
}

/// One group's results of the same operations on the same data.
class Script {
 public:
  Script(Communicator& group, DType type, std::int64_t count) : group_(group), type_(type) {
    const int size = group.size();
    for (int r = 0; r < size; ++r) counts_.push_back(r % 3 == 1 ? 0 : count / (r + 1) + r);
    const auto own = counts_.begin() + group.rank();
    own_ = *own;
    before_ = std::accumulate(counts_.begin(), own, std::int64_t{0});
    all_ = std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
    count_ = count;
  }
  /// All at once on one stream; only the last operation's events are waited for.
  void enqueue(device::Stream& stream) {
    const auto wild = [&](std::int64_t n) -> Elements& {
      results_.push_back(std::make_unique<Elements>(type_, n));
      make_wild(*results_.back(), group_.rank(), type_);
      return *results_.back();
    };
    const bool sums = std::find(std::begin(reducible_types), std::end(reducible_types), type_) !=
                      std::end(reducible_types);
    const int size = group_.size();
    if (sums) {
      for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
        group_.all_reduce(wild(count_).tensor(), reduction, stream);
        Elements& even = wild(count_ * size);
        group_.reduce_scatter(wild(count_).tensor(), even.tensor(), reduction, stream);
        Elements& apart = wild(own_);
        group_.reduce_scatter_v(apart.tensor(), wild(all_).tensor(), counts_, reduction, stream);
        Elements& place = wild(all_);
        group_.reduce_scatter_v(place.tensor(before_, own_), place.tensor(), counts_, reduction,
                                stream);
      }
    }
    Elements& gathered = wild(count_ * size);
    group_.all_gather(gathered.tensor(), wild(count_).tensor(), stream);
    Elements& unequal = wild(all_);
    group_.all_gather_v(unequal.tensor(), unequal.tensor(before_, own_), counts_, stream);
    for (int root = 0; root < size; ++root) {
      group_.broadcast(wild(count_).tensor(), root, stream);
    }
    group_.all_to_all(wild(count_ * size).tensor(), gathered.tensor(), stream);
  }
  /// The first result that differs, or −1.
  int first_difference(const Script& other) const {
    EXPECT_EQ(results_.size(), other.results_.size());
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (!results_[i]->same_bytes(*other.results_[i])) return static_cast<int>(i);
      if (!results_[i]->spare_untouched()) return static_cast<int>(i);
    }
    return -1;
  }

 private:
  Communicator& group_;
  DType type_;
  std::vector<std::int64_t> counts_;
  std::int64_t own_ = 0, before_ = 0, all_ = 0, count_ = 0;
  std::vector<std::unique_ptr<Elements>> results_;
};

TEST(Shared, MatchesMessagesBitForBit) {
  int rank = 0;
  int world = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  for (int size = 1; size <= world; ++size) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank < size ? 0 : MPI_UNDEFINED, size % 2 == 0 ? rank : -rank,
                   &comm);
    if (comm == MPI_COMM_NULL) continue;
    {
      device::MemoryLedger ledger;
      std::vector<std::unique_ptr<SharedWindow>> windows;
      const auto messages = make_mpi_communicator(comm, ledger);
      const auto shared = make_shared_group(comm, ledger, windows);
      for (const DType type : all_types) {
        for (const std::int64_t count :
             {std::int64_t{0}, std::int64_t{1}, std::int64_t{1001}, std::int64_t{20'011}}) {
          if (count > 1001 && type != DType::f32 && type != DType::bf16) continue;  // saves time
          SCOPED_TRACE(fmt::format("{} ranks, {} of {}", size, count, name_of(type)));
          Script one(*messages, type, count);
          Script other(*shared, type, count);
          device::Stream stream;
          one.enqueue(stream);
          other.enqueue(stream);
          stream.synchronize();
          EXPECT_EQ(one.first_difference(other), -1);
        }
      }
      Elements one(DType::f32, crossing_rings);
      make_wild(one, rank, DType::f32);
      Elements other = one;
      device::Stream stream;
      messages->all_reduce(one.tensor(), Reduction::sum, stream);
      shared->all_reduce(other.tensor(), Reduction::sum, stream);
      stream.synchronize();
      EXPECT_TRUE(one.same_bytes(other)) << size;
    }
    MPI_Comm_free(&comm);
  }
}

GridShape crowded_shape(int world) {
  if (world == 8) return {{2, 1, 2, 2}};
  if (world == 4) return {{2, 1, 2, 1}};
  return {{1, 1, world, 1}};
}

// Every group of a grid with several operations pending, each on its own stream served by a
// progress thread, in a different order on every rank.
TEST(Shared, GroupsDoNotDisturbEachOther) {
  const Session session(nullptr, nullptr);
  const GridShape shape = crowded_shape(session.size());
  device::MemoryLedger ledger;
  GridOptions by_messages;
  for (std::string* key : {&by_messages.comm.tensor, &by_messages.comm.data,
                           &by_messages.comm.pipeline, &by_messages.comm.world}) {
    *key = "mpi";
  }
  GridOptions by_memory;
  by_memory.comm.world = by_memory.comm.pipeline = "shared";
  Grid messages(session, shape, ledger, by_messages);
  Grid shared(session, shape, ledger, by_memory);
  std::vector<device::Stream> streams(2 * static_cast<std::size_t>(group_kinds));
  std::vector<device::Stream*> served;
  for (device::Stream& stream : streams) served.push_back(&stream);
  for (int round = 0; round < 2; ++round) {
    Progress progress(served);
    std::vector<std::unique_ptr<Script>> scripts(streams.size());
    for (int step = 0; step < group_kinds; ++step) {
      const int index = (step + session.rank()) % group_kinds;
      const auto kind = static_cast<GroupKind>(index);
      EXPECT_EQ(messages.backend(kind), Backend::mpi);
      EXPECT_EQ(shared.backend(kind), Backend::shared);
      for (const int way : {0, 1}) {
        const auto at = 2 * static_cast<std::size_t>(index) + static_cast<std::size_t>(way);
        scripts[at] = std::make_unique<Script>((way == 0 ? messages : shared).group(kind),
                                               index % 2 == 0 ? DType::f32 : DType::bf16, 20'011);
        scripts[at]->enqueue(streams[at]);
      }
      progress.wake();
    }
    for (device::Stream& stream : streams) stream.synchronize();
    for (std::size_t i = 0; i < streams.size(); i += 2) {
      EXPECT_EQ(scripts[i]->first_difference(*scripts[i + 1]), -1)
          << name_of(static_cast<GroupKind>(i / 2));
    }
  }
}

class SharedGroups : public ::testing::Test {
 protected:
  SharedGroups() { group_ = make_shared_group(MPI_COMM_WORLD, ledger_, windows_); }
  device::MemoryLedger ledger_;
  std::vector<std::unique_ptr<SharedWindow>> windows_;
  std::unique_ptr<Communicator> group_;
};

// Each rank in turn is late: the others fill their rings and must wait with the rest.
TEST_F(SharedGroups, WaitForReadersThatAreLate) {
  for (int late = 0; late < group_->size(); ++late) {
    Elements data(DType::f32, crossing_rings);
    Elements sum(DType::f64, crossing_rings / 4);
    for (std::int64_t i = 0; i < data.count(); ++i) data.set(i, pattern(group_->rank(), i));
    for (std::int64_t i = 0; i < sum.count(); ++i) sum.set(i, pattern(group_->rank(), i));
    group_->barrier();
    if (group_->rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    device::Stream stream;
    const int root = (late + 1) % group_->size();
    group_->broadcast(data.tensor(), root, stream);
    group_->all_reduce(sum.tensor(), Reduction::max, stream);
    stream.synchronize();
    EXPECT_EQ(first_wrong(data, [&](std::int64_t i) { return pattern(root, i); }), -1) << late;
    EXPECT_EQ(first_wrong(sum,
                          [&](std::int64_t i) {
                            double most = pattern(0, i);
                            for (int r = 1; r < group_->size(); ++r) {
                              most = std::max(most, pattern(r, i));
                            }
                            return most;
                          }),
              -1)
        << late;
  }
}

// A root is done once its data are in the ring; the others fetch them when they arrive.
TEST_F(SharedGroups, ARootDoesNotWaitWhileTheRingHasSpace) {
  std::int64_t value = group_->rank() == 0 ? 5 : 0;
  if (group_->rank() != 0) group_->barrier();
  device::Stream stream;
  group_->broadcast(Tensor(&value, {1}), 0, stream).wait();
  if (group_->rank() == 0) group_->barrier();
  EXPECT_EQ(value, 5);
}

// Also where only the size of the operation differs.
TEST_F(SharedGroups, InconsistentRanksFail) {
  if (group_->size() == 1) return;
  for (const bool size : {false, true}) {
    std::vector<std::unique_ptr<SharedWindow>> windows;
    const auto group = make_shared_group(MPI_COMM_WORLD, ledger_, windows);
    std::vector<float> data(100'000);
    const bool odd = group->rank() == group->size() - 1;
    device::Stream stream;
    const Tensor all(data.data(), {odd && size ? 50'000 : 100'000});
    const device::Event event = odd && !size ? group->broadcast(all, 0, stream)
                                             : group->all_reduce(all, Reduction::sum, stream);
    try {
      event.wait();
      ADD_FAILURE() << "rank " << group->rank() << " got no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("ranks must agree on every operation and size"));
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST_F(SharedGroups, TakeTheCountedMemory) {
  const auto held = [&] { return ledger_.held(device::Use::communication); };
  const std::int64_t before = held();
  EXPECT_EQ(before, static_cast<std::int64_t>(shared_area_bytes(group_->size()) +
                                              scratch_bytes(group_->size(), 0)));
  std::vector<float> data(1'000'000);
  device::Stream stream;
  group_->all_reduce(Tensor(data.data(), {1'000'000}), Reduction::sum, stream).wait();
  EXPECT_EQ(held(), before);
  group_.reset();
  windows_.clear();
  EXPECT_EQ(held(), 0);
}

}  // namespace
}  // namespace trireme::comm::testing
