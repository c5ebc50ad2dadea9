// All-reduce and reduce-scatter on every group, against MPI's own reduction and against explicit
// trees.
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "trireme/core/random.hpp"

#include "groups.hpp"

namespace trireme::comm::testing {
namespace {

/// Elements of a tensor whose slices take more than two and a half of the largest pieces.
std::int64_t crossing_pieces(DType type, int size) {
  return size * ((std::int64_t{5} << 19) / static_cast<std::int64_t>(size_of(type))) + 3;
}

std::vector<double> oracle(const TestGroup& group, std::int64_t count, Reduction reduction) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[i] = pattern(group->rank(), i);
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(count), MPI_DOUBLE,
                reduction == Reduction::sum ? MPI_SUM : MPI_MAX, group.oracle);
  return values;
}

template <class Visit>
void for_each_case(const TestGroup& group, const Visit& visit) {
  const int size = group->size();
  for (const DType type : reducible_types) {
    for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
      for (const std::int64_t count :
           {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{17}, std::int64_t{1001},
            crossing_pieces(type, size)}) {
        // Saves time: piece boundaries are the same for every type and reduction.
        const bool representative = reduction == Reduction::sum
                                        ? type == DType::f32 || type == DType::bf16
                                        : type == DType::i64;
        if (count > 1001 && !representative) continue;
        SCOPED_TRACE(fmt::format("{} of {}, {}, {}, {} elements", group.name, size, name_of(type),
                                 reduction == Reduction::sum ? "sum" : "max", count));
        visit(type, reduction, count);
      }
    }
  }
}

TEST(Reductions, AllReduceAgreesWithMpi) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    for_each_case(group, [&](DType type, Reduction reduction, std::int64_t count) {
      Elements data(type, count);
      for (std::int64_t i = 0; i < count; ++i) data.set(i, pattern(group->rank(), i));
      device::Stream stream;
      const device::Event event = group->all_reduce(data.tensor(), reduction, stream);
      event.wait();
      EXPECT_TRUE(event.done());
      const std::vector<double> expected = oracle(group, count, reduction);
      EXPECT_EQ(first_wrong(data, [&](std::int64_t i) { return expected[i]; }), -1);
      EXPECT_TRUE(data.spare_untouched());
    });
  }
}

TEST(Reductions, ReduceScatterAgreesWithMpi) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    for_each_case(group, [&](DType type, Reduction reduction, std::int64_t some) {
      const std::int64_t count = some / group->size() + some % 2;
      const std::int64_t all = count * group->size();
      const std::vector<double> expected = oracle(group, all, reduction);
      const std::int64_t begin = count * group->rank();
      for (const bool in_place : {false, true}) {
        Elements input(type, all);
        Elements apart(type, count);
        for (std::int64_t i = 0; i < all; ++i) input.set(i, pattern(group->rank(), i));
        device::Stream stream;
        const Tensor output = in_place ? input.tensor(begin, count) : apart.tensor();
        group->reduce_scatter(output, input.tensor(), reduction, stream).wait();
        const auto sum = [&](std::int64_t i) { return expected[i]; };
        const auto untouched = [&](std::int64_t i) { return pattern(group->rank(), i); };
        const std::int64_t end = begin + count;
        EXPECT_EQ(first_wrong(input, 0, begin, untouched), -1);
        EXPECT_EQ(first_wrong(input, end, all, untouched), -1);
        if (in_place) {
          EXPECT_EQ(first_wrong(input, begin, end, sum), -1);
        } else {
          EXPECT_EQ(first_wrong(input, begin, end, untouched), -1);
          EXPECT_EQ(first_wrong(apart, [&](std::int64_t i) { return expected[begin + i]; }), -1);
        }
        EXPECT_TRUE(input.spare_untouched() && apart.spare_untouched());
      }
    });
  }
}

float wild(int rank, std::int64_t i) {
  const RandomKey key{3, Purpose::dropout, static_cast<std::uint32_t>(rank)};
  const auto index = static_cast<std::uint64_t>(i);
  const int exponent = static_cast<int>(random_bits(key, index) % 25) - 12;
  return std::ldexp(static_cast<float>(normal(key, index)), exponent);
}

/// The reduction tree over `size` ranks, explicitly.
float stated_sum(int size, std::int64_t i) {
  // Of the ranks [begin, begin + count): the first half is as large as a power of two can be.
  const std::function<float(int, int)> sum = [&](int begin, int count) {
    if (count == 1) return wild(begin, i);
    const auto half = static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)) / 2);
    return sum(begin, half) + sum(begin + half, count - half);
  };
  return sum(0, size);
}

TEST(Reductions, SumsMatchTheExplicitTreeBitForBit) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    // Few elements, which more than eight ranks pass along a tree, and many.
    for (const std::int64_t count : {std::int64_t{100}, crossing_pieces(DType::f32, 1) / 4}) {
      Elements data(DType::f32, count);
      for (std::int64_t i = 0; i < count; ++i) data.set(i, wild(group->rank(), i));
      device::Stream stream;
      group->all_reduce(data.tensor(), Reduction::sum, stream).wait();
      const int size = group->size();
      int other_order_differs = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(data.get(i), stated_sum(size, i)) << group.name << " " << i;
        float in_rank_order = wild(0, i);
        for (int rank = 1; rank < size; ++rank) in_rank_order += wild(rank, i);
        if (stated_sum(size, i) != in_rank_order) ++other_order_differs;
      }
      if (size > 3) {
        EXPECT_GT(other_order_differs, count / 10);  // so the test can fail
      }
    }
  }
}

/// Ways to divide about `unit` elements per rank: uneven, one rank with none, one rank with all,
/// nothing at all.
std::vector<std::vector<std::int64_t>> divisions(int size, std::int64_t unit) {
  std::vector<std::vector<std::int64_t>> result(1);
  for (int r = 0; r < size; ++r) result[0].push_back(unit * (r + 1) - r % 2);
  result.emplace_back(size, 0);
  for (int chosen = 0; chosen < size; ++chosen) {
    result.push_back(result[0]);
    result.back()[chosen] = 0;
    result.emplace_back(size, 0);
    result.back()[chosen] = unit;
  }
  return result;
}

/// Must match all_reduce bit for bit, for any boundaries.
void expect_part_of_all_reduce(const TestGroup& group, DType type, bool in_place,
                               const std::vector<std::int64_t>& counts) {
  const auto own = counts.begin() + group->rank();
  const std::int64_t begin = std::accumulate(counts.begin(), own, std::int64_t{0});
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  Elements before(type, all);
  for (std::int64_t i = 0; i < all; ++i) before.set(i, wild(group->rank(), i));
  Elements input = before;
  Elements reduced = before;
  Elements apart(type, *own);
  device::Stream stream;
  group->all_reduce(reduced.tensor(), Reduction::sum, stream);
  const Tensor output = in_place ? input.tensor(begin, *own) : apart.tensor();
  group->reduce_scatter_v(output, input.tensor(), counts, Reduction::sum, stream).wait();
  for (std::int64_t i = 0; i < all; ++i) {
    const bool mine = i >= begin && i < begin + *own;
    if (mine) {
      ASSERT_EQ(in_place ? input.get(i) : apart.get(i - begin), reduced.get(i)) << i;
    }
    if (!mine || !in_place) {
      ASSERT_EQ(input.get(i), before.get(i)) << i;
    }
  }
  EXPECT_TRUE(input.spare_untouched() && apart.spare_untouched());
}

TEST(Reductions, ReduceScatterOfUnequalCountsIsAPartOfAllReduce) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    for (const bool in_place : {false, true}) {
      for (const std::int64_t unit : {1, 37}) {
        for (const std::vector<std::int64_t>& counts : divisions(group->size(), unit)) {
          for (const DType type : {DType::f32, DType::bf16}) {
            SCOPED_TRACE(fmt::format("{}, {}, counts {}", group.name, name_of(type),
                                     ::testing::PrintToString(counts)));
            expect_part_of_all_reduce(group, type, in_place, counts);
          }
        }
      }
      // From one piece to three on the last of four ranks.
      SCOPED_TRACE(group.name);
      expect_part_of_all_reduce(group, DType::f32, in_place, divisions(group->size(), 150'003)[0]);
    }
  }
}

TEST(Reductions, ScratchForUnequalCountsMatchesThePrediction) {
  Groups groups;
  const TestGroup& group = groups.world();
  const std::int64_t before = groups.ledger.held(device::Use::communication);
  std::vector<std::int64_t> counts(group->size(), 10);
  counts.back() = 5000;
  Elements input(DType::f32, 10 * (group->size() - 1) + 5000);
  Elements output(DType::f32, counts[group->rank()]);
  device::Stream stream;
  group->reduce_scatter_v(output.tensor(), input.tensor(), counts, Reduction::sum, stream).wait();
  const auto largest = static_cast<std::size_t>(group->size()) * 5000 * 4;
  EXPECT_EQ(groups.ledger.held(device::Use::communication) - before,
            static_cast<std::int64_t>(scratch_bytes(group->size(), largest) -
                                      scratch_bytes(group->size(), 0)));
}

TEST(Reductions, ANaNReachesEveryRank) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
      float values[3] = {1, 2, 3};
      if (group->rank() == group->size() - 1) values[1] = std::nanf("");
      device::Stream stream;
      group->all_reduce(Tensor(values, {3}), reduction, stream).wait();
      EXPECT_FALSE(std::isnan(values[0]));
      EXPECT_TRUE(std::isnan(values[1])) << group.name;
    }
  }
}

TEST(Reductions, ScratchMatchesThePrediction) {
  for (const std::int64_t count : {1, 100, 100'000, 3'000'000}) {
    Groups groups;
    const TestGroup& group = groups.world();
    const auto held = [&] { return groups.ledger.held(device::Use::communication); };
    const std::int64_t before = held();  // other groups and conveniences
    Elements data(DType::f32, count);
    device::Stream stream;
    const auto bytes = static_cast<std::size_t>(count) * 4;
    const auto predicted = static_cast<std::int64_t>(scratch_bytes(group->size(), bytes) -
                                                     scratch_bytes(group->size(), 0));
    for (const std::int64_t part : {count, count / 2, count}) {
      group->all_reduce(data.tensor(0, part), Reduction::max, stream).wait();
      EXPECT_EQ(held() - before, predicted) << part;
    }
    group->barrier();
    EXPECT_EQ(held() - before, predicted);
    EXPECT_EQ(groups.ledger.peak(device::Use::communication), held());
  }
}

}  // namespace
}  // namespace trireme::comm::testing
