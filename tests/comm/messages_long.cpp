// Messages of more than 2³¹ bytes, which no count of MPI 3.1 holds. Two ranks, about 5 GiB in all.
#include <cstring>
#include <vector>

#include "groups.hpp"

namespace trireme::comm::testing {
namespace {

/// Beyond 2 GiB, and no multiple of any piece.
constexpr std::int64_t large = (std::int64_t{1} << 31) + (std::int64_t{5} << 20) + 3;

/// Elements derived from their position, with a period that divides no power of two.
template <class T>
class Pattern {
 public:
  template <class Value>
  explicit Pattern(const Value& value) : period_(251 * 8) {
    for (std::size_t i = 0; i < period_.size(); ++i) period_[i] = static_cast<T>(value(i));
  }
  /// Elements [begin, end) of the pattern, stored at `data` + begin.
  void fill(T* data, std::int64_t begin, std::int64_t end) const {
    visit(begin, end, [&](std::int64_t at, const T* expected, std::size_t bytes) {
      std::memcpy(data + at, expected, bytes);
      return true;
    });
  }
  bool fills(const T* data, std::int64_t begin, std::int64_t end) const {
    return visit(begin, end, [&](std::int64_t at, const T* expected, std::size_t bytes) {
      return std::memcmp(data + at, expected, bytes) == 0;
    });
  }

 private:
  template <class Work>
  bool visit(std::int64_t begin, std::int64_t end, const Work& work) const {
    const auto period = static_cast<std::int64_t>(period_.size());
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t first = at % period;
      const std::int64_t count = std::min(period - first, end - at);
      const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
      if (!work(at, period_.data() + first, bytes)) return false;
      at += count;
    }
    return true;
  }
  std::vector<T> period_;
};

Pattern<std::uint8_t> bytes_of_rank(int rank) {
  return Pattern<std::uint8_t>(
      [&](std::size_t i) { return i * 7 + i / 251 + static_cast<std::size_t>(rank) * 101; });
}

TEST(LargeMessages, BroadcastArrivesWhole) {
  Groups groups;
  Communicator& world = *groups.world();
  std::vector<std::uint8_t> data(large + 1, 0xa5);
  const auto root = bytes_of_rank(1);
  if (world.rank() == world.size() - 1) root.fill(data.data(), 0, large);
  device::Stream stream;
  world.broadcast(Tensor(data.data(), {large}), world.size() - 1, stream).wait();
  EXPECT_TRUE(root.fills(data.data(), 0, large));
  EXPECT_EQ(data.back(), 0xa5);
  const bool root_here = world.rank() == world.size() - 1;
  EXPECT_EQ(world.traffic().total().bytes, root_here ? large * (world.size() - 1) : 0);
}

// One long message each way would take four buffers; the test sends one way, then the other.
TEST(LargeMessages, ExchangeArrivesWhole) {
  Groups groups;
  Communicator& world = *groups.world();
  ASSERT_EQ(world.size(), 2);
  std::vector<std::uint8_t> data(large + 1, 0xa5);
  for (const int sender : {0, 1}) {
    const bool sends = world.rank() == sender;
    if (sends) {
      bytes_of_rank(sender).fill(data.data(), 0, large);
    } else {
      std::fill(data.begin(), data.end(), 0xa5);
    }
    device::Stream stream;
    world.exchange({{Tensor(data.data(), {large}), 1 - world.rank(), sends}}, stream).wait();
    EXPECT_TRUE(bytes_of_rank(sender).fills(data.data(), 0, large)) << "from " << sender;
    EXPECT_EQ(data.back(), 0xa5);
  }
  EXPECT_EQ(world.traffic()[OperationKind::exchange].bytes, large);
}

// Unequal parts: one beyond 2 GiB, one small.
TEST(LargeMessages, AllGatherOfUnequalCountsArrivesWhole) {
  Groups groups;
  Communicator& world = *groups.world();
  ASSERT_EQ(world.size(), 2);
  const std::vector<std::int64_t> counts = {1001, large};
  std::vector<std::uint8_t> data(large + 1001 + 1, 0xa5);
  const std::int64_t begin = world.rank() == 0 ? 0 : counts[0];
  bytes_of_rank(world.rank()).fill(data.data() + begin, 0, counts[world.rank()]);
  device::Stream stream;
  const Tensor all(data.data(), {large + 1001});
  world.all_gather_v(all, all.slice(0, begin, begin + counts[world.rank()]), counts, stream).wait();
  EXPECT_TRUE(bytes_of_rank(0).fills(data.data(), 0, counts[0]));
  EXPECT_TRUE(bytes_of_rank(1).fills(data.data() + counts[0], 0, counts[1]));
  EXPECT_EQ(data.back(), 0xa5);
}

// More than 2 GiB of fp32, nearly all of it for one rank. Whole numbers with exact sums: element i
// of rank r is (i mod period) + r.
TEST(LargeMessages, ReductionsAreCorrectThroughout) {
  Groups groups;
  Communicator& world = *groups.world();
  ASSERT_EQ(world.size(), 2);
  constexpr std::int64_t small = 7'000'001;
  constexpr std::int64_t elements = large / 4 + small;
  std::vector<float> data(elements);
  const Pattern<float> own([&](std::size_t i) { return static_cast<int>(i) + world.rank(); });
  const Pattern<float> sum([](std::size_t i) { return 2 * i + 1; });
  const Tensor all(data.data(), {elements});
  device::Stream stream;
  own.fill(data.data(), 0, elements);
  world.all_reduce(all, Reduction::sum, stream).wait();
  EXPECT_TRUE(sum.fills(data.data(), 0, elements));
  const std::vector<std::int64_t> counts = {small, elements - small};
  const std::int64_t begin = world.rank() == 0 ? 0 : small;
  const std::int64_t end = begin + counts[world.rank()];
  own.fill(data.data(), 0, elements);
  world.reduce_scatter_v(all.slice(0, begin, end), all, counts, Reduction::sum, stream).wait();
  EXPECT_TRUE(sum.fills(data.data(), begin, end));
}

}  // namespace
}  // namespace trireme::comm::testing
