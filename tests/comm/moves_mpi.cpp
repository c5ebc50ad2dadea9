// Collectives that move data: gathers, broadcast, all-to-all, grouped messages.
#include <numeric>

#include "groups.hpp"

namespace trireme::comm::testing {
namespace {

constexpr std::int64_t large = 700'001;  // of int32: two and a half of the broadcast's pieces

TEST(Moves, AllGather) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    for (const DType type : all_types) {
      for (const std::int64_t count :
           {std::int64_t{0}, std::int64_t{1}, std::int64_t{33}, std::int64_t{100'001}}) {
        for (const bool in_place : {false, true}) {
          Elements input(type, count);
          Elements output(type, count * group->size());
          const Tensor own =
              in_place ? output.tensor(count * group->rank(), count) : input.tensor();
          for (std::int64_t i = 0; i < count; ++i) {
            const double value = pattern(group->rank(), i, has_sign(type));
            input.set(i, value);
            if (in_place) output.set(count * group->rank() + i, value);
          }
          device::Stream stream;
          group->all_gather(output.tensor(), own, stream).wait();
          const auto expected = [&](std::int64_t i) {
            return pattern(static_cast<int>(i / count), i % count, has_sign(type));
          };
          EXPECT_EQ(first_wrong(output, expected), -1) << group.name << " " << name_of(type);
          EXPECT_TRUE(output.spare_untouched());
        }
      }
    }
  }
}

TEST(Moves, AllGatherOfUnequalCounts) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    for (const std::int64_t unit : {std::int64_t{1}, std::int64_t{50'003}}) {
      for (int empty = -1; empty < group->size(); ++empty) {
        std::vector<std::int64_t> counts(static_cast<std::size_t>(group->size()));
        for (int r = 0; r < group->size(); ++r) counts[r] = r == empty ? 0 : unit * (r + 2);
        const std::int64_t own = counts[group->rank()];
        Elements input(DType::bf16, own);
        Elements output(DType::bf16,
                        std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
        for (std::int64_t i = 0; i < own; ++i) input.set(i, pattern(group->rank(), i));
        device::Stream stream;
        group->all_gather_v(output.tensor(), input.tensor(), counts, stream).wait();
        std::int64_t place = 0;
        for (int r = 0; r < group->size(); ++r) {
          for (std::int64_t i = 0; i < counts[r]; ++i) {
            ASSERT_EQ(output.get(place++), pattern(r, i)) << group.name << " rank " << r;
          }
        }
        EXPECT_TRUE(output.spare_untouched());
      }
    }
  }
}

TEST(Moves, BroadcastFromEveryRank) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    for (int root = 0; root < group->size(); ++root) {
      for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{33}, large}) {
        Elements data(DType::i32, count);
        for (std::int64_t i = 0; i < count; ++i) data.set(i, pattern(group->rank(), i));
        device::Stream stream;
        group->broadcast(data.tensor(), root, stream).wait();
        EXPECT_EQ(first_wrong(data, [&](std::int64_t i) { return pattern(root, i); }), -1)
            << group.name << " root " << root;
        EXPECT_TRUE(data.spare_untouched());
      }
    }
  }
}

TEST(Moves, AllToAll) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    for (const DType type : all_types) {
      for (const std::int64_t block : {std::int64_t{0}, std::int64_t{1}, std::int64_t{50'007}}) {
        const int size = group->size();
        const int rank = group->rank();
        Elements input(type, block * size);
        Elements output(type, block * size);
        for (std::int64_t i = 0; i < input.count(); ++i) {
          input.set(i, pattern(rank, i, has_sign(type)));
        }
        device::Stream stream;
        group->all_to_all(output.tensor(), input.tensor(), stream).wait();
        const auto expected = [&](std::int64_t i) {
          return pattern(static_cast<int>(i / block), rank * block + i % block, has_sign(type));
        };
        EXPECT_EQ(first_wrong(output, expected), -1) << group.name << " " << name_of(type);
        EXPECT_TRUE(output.spare_untouched());
      }
    }
  }
}

// Every rank sends three messages to every rank, itself included: short, empty and long.
TEST(Moves, ExchangeMatchesMessagesInOrder) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    const std::int64_t lengths[] = {3, 0, 400'000, 3};
    std::vector<Communicator::Message> messages;
    std::vector<std::unique_ptr<Elements>> kept;
    struct Expected {
      const Elements* data = nullptr;
      double first = 0;
    };
    std::vector<Expected> expected;
    for (int peer = 0; peer < group->size(); ++peer) {
      for (int m = 0; m < 4; ++m) {
        kept.push_back(std::make_unique<Elements>(DType::i64, lengths[m]));
        Elements& out = *kept.back();
        for (std::int64_t i = 0; i < lengths[m]; ++i) {
          out.set(i, static_cast<double>(1000 * group->rank() + 100 * peer + 10 * m + i));
        }
        messages.push_back({out.tensor(), peer, true});
        kept.push_back(std::make_unique<Elements>(DType::i64, lengths[m]));
        messages.push_back({kept.back()->tensor(), peer, false});
        expected.push_back(
            {kept.back().get(), static_cast<double>(1000 * peer + 100 * group->rank() + 10 * m)});
      }
    }
    device::Stream stream;
    group->exchange(messages, stream).wait();
    for (const Expected& each : expected) {
      EXPECT_TRUE(each.data->spare_untouched());
      for (std::int64_t i = 0; i < each.data->count(); ++i) {
        ASSERT_EQ(each.data->get(i), each.first + static_cast<double>(i)) << group.name;
      }
    }
  }
}

TEST(Moves, MismatchedLengthsAreErrors) {
  Groups groups;
  constexpr int mebi = 1 << 20;  // messages of more have several pieces
  // Own communicators: their pending messages affect no other test.
  for (const auto& [sent, expected] :
       {std::pair{8, 16}, std::pair{16, 8}, std::pair{2 * mebi, 3 * mebi},
        std::pair{3 * mebi, 2 * mebi}, std::pair{128 * mebi, 128 * mebi + 4096},
        std::pair{128 * mebi + 4096, 128 * mebi}, std::pair{2 * (mebi - 64), 3 * (mebi - 64)},
        std::pair{3 * (mebi - 64), 2 * (mebi - 64)}}) {
    const auto world = make_mpi_communicator(MPI_COMM_WORLD, groups.ledger);
    if (world->size() == 1 || world->rank() > 1) continue;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(std::max(sent, expected)));
    device::Stream stream;
    const bool sends = world->rank() == 0;
    const Tensor data(bytes.data(), {sends ? sent : expected});
    const device::Event event = world->exchange({{data, 1 - world->rank(), sends}}, stream);
    if (sends) {
      EXPECT_NO_THROW(event.wait());
    } else {
      EXPECT_THROW(event.wait(), Error) << sent << " " << expected;
    }
  }
}

TEST(Moves, MisuseIsFoundWhereItIsEnqueued) {
  const Groups groups;
  for (const TestGroup& group : groups.all()) {
    std::vector<float> values(64);
    const int n = group->size();
    const Tensor all(values.data(), {n, 4});
    const Tensor part(values.data() + 32, {4});
    device::Stream stream;
    EXPECT_THROW(
        group->all_reduce(all.slice(1, 0, 3).slice(0, 0, n > 1 ? 2 : 1).slice(1, 0, n > 1 ? 2 : 5),
                          Reduction::sum, stream),
        std::logic_error);
    EXPECT_THROW(group->all_reduce(Tensor(values.data(), DType::i32, {4}), Reduction::sum, stream),
                 std::logic_error);
    EXPECT_THROW(group->all_gather(all, part.slice(0, 0, 3), stream), std::logic_error);
    EXPECT_THROW(group->all_gather(all, Tensor(values.data() + 1, {4}), stream), std::logic_error);
    EXPECT_THROW(group->reduce_scatter(part.slice(0, 0, 3), all, Reduction::sum, stream),
                 std::logic_error);
    std::vector<std::int64_t> counts(n, 4);
    EXPECT_THROW(group->reduce_scatter_v(part.slice(0, 0, 3), all, counts, Reduction::sum, stream),
                 std::logic_error);
    counts[0] = 5;
    EXPECT_THROW(group->reduce_scatter_v(part, all, counts, Reduction::sum, stream),
                 std::logic_error);
    counts.assign(n + 1, 4);
    EXPECT_THROW(group->reduce_scatter_v(part, all, counts, Reduction::sum, stream),
                 std::logic_error);
    EXPECT_THROW(group->broadcast(part, n, stream), std::logic_error);
    EXPECT_THROW(group->all_to_all(all, all, stream), std::logic_error);
    EXPECT_THROW(group->exchange({{part, group->rank(), true}}, stream), std::logic_error);
    EXPECT_THROW(group->exchange({{part, -1, true}}, stream), std::logic_error);
    EXPECT_TRUE(stream.idle());
  }
}

}  // namespace
}  // namespace trireme::comm::testing
