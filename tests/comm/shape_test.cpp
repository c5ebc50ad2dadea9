#include "trireme/comm/shape.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/mpi_communicator.hpp"

namespace trireme::comm {
namespace {

using ::testing::ElementsAre;

TEST(GridShape, CoordinatesAndRankAreInverse) {
  const GridShape shape{{2, 3, 4, 5}};
  EXPECT_EQ(shape.size(), 120);
  std::set<std::array<int, axis_count>> seen;
  for (int rank = 0; rank < shape.size(); ++rank) {
    const auto coordinates = shape.coordinates(rank);
    EXPECT_EQ(shape.rank(coordinates), rank);
    EXPECT_TRUE(seen.insert(coordinates).second);
  }
  EXPECT_THROW(shape.coordinates(120), std::logic_error);
  EXPECT_THROW(shape.rank({2, 0, 0, 0}), std::logic_error);
}

TEST(GridShape, TensorIsFastestAndPipelineSlowest) {
  const GridShape shape{{2, 3, 4, 5}};
  EXPECT_EQ(shape.rank({1, 0, 0, 0}), 1);
  EXPECT_EQ(shape.rank({0, 1, 0, 0}), 2);
  EXPECT_EQ(shape.rank({0, 0, 1, 0}), 6);
  EXPECT_EQ(shape.rank({0, 0, 0, 1}), 24);
  EXPECT_EQ(shape.to_string(), "tensor 2 × context 3 × pipeline 5 × data 4");
  EXPECT_EQ((GridShape{{2, 1, 4, 5}}.to_string()), "tensor 2 × pipeline 5 × data 4");
}

TEST(GridShape, DataIsTheRestOfTheWorld) {
  EXPECT_EQ(make_grid_shape(6, {}).degree, (std::array{1, 1, 6, 1}));
  EXPECT_EQ(make_grid_shape(6, {.data = 6}).degree, (std::array{1, 1, 6, 1}));
  EXPECT_EQ(make_grid_shape(24, {.tensor = 2, .pipeline = 3}).degree, (std::array{2, 1, 4, 3}));
  EXPECT_EQ(make_grid_shape(24, {.tensor = 2, .pipeline = 3, .data = 4}).degree,
            (std::array{2, 1, 4, 3}));
}

TEST(GridShape, AnImpossibleDegreeIsNamedWithARemedy) {
  struct Case {
    int world;
    Degrees degrees;
    const char* message;
  };
  const Case cases[] = {
      {8,
       {.tensor = 3},
       "parallel.tensor = 3: must divide the number of ranks, 8; use 2 or 4: tensor 2 × pipeline 1 "
       "× data 4, tensor 4 × pipeline 1 × data 2"},
      {8,
       {.tensor = 16},
       "parallel.tensor = 16: must divide the number of ranks, 8; use 4 or 8: tensor 4 × pipeline "
       "1 "
       "× data 2, tensor 8 × pipeline 1 × data 1"},
      {8,
       {.tensor = 0},
       "parallel.tensor = 0: must divide the number of ranks, 8; use 1 or 2: tensor 1 × pipeline 1 "
       "× data 8, tensor 2 × pipeline 1 × data 4"},
      // The pipeline's degree is kept, so 6 is not offered.
      {12,
       {.tensor = 5, .pipeline = 4},
       "parallel.tensor = 5: must divide the number of ranks, 12; use 1 or 3: tensor 1 × pipeline "
       "4 "
       "× data 3, tensor 3 × pipeline 4 × data 1"},
      // The pipeline's degree cannot be kept; 4 is nearer to 3 than 2 is, by ratio.
      {8,
       {.tensor = 5, .pipeline = 3},
       "parallel.tensor = 5: must divide the number of ranks, 8; use 2 or 4: tensor 2 × pipeline 4 "
       "× data 1, tensor 4 × pipeline 2 × data 1"},
      {12,
       {.tensor = 4, .pipeline = 2},
       "parallel.pipeline = 2: must divide the 3 that 12 ranks leave to tensor 4; use 1 or 3: "
       "tensor 4 × pipeline 1 × data 3, tensor 4 × pipeline 3 × data 1"},
      {7,
       {.pipeline = 2},
       "parallel.pipeline = 2: must divide the number of ranks, 7; use 1 or 7: tensor 1 × pipeline "
       "1 × data 7, tensor 1 × pipeline 7 × data 1"},
      {8,
       {.tensor = 2, .data = 3},
       "parallel.data = 3: must be 4, as tensor 2 × pipeline 1 × data must be the number of ranks, "
       "8; use 4, or 0 for the rest of the world: tensor 2 × pipeline 1 × data 4"},
      {6,
       {.data = -1},
       "parallel.data = -1: must be 6, as tensor 1 × pipeline 1 × data must be the number of "
       "ranks, "
       "6; use 6, or 0 for the rest of the world: tensor 1 × pipeline 1 × data 6"},
      // A product that overflows to the right one must not pass.
      {6,
       {.tensor = (std::int64_t{1} << 32) + 1},
       "parallel.tensor = 4294967297: must divide the number of ranks, 6; use 3 or 6: tensor 3 × "
       "pipeline 1 × data 2, tensor 6 × pipeline 1 × data 1"},
  };
  for (const Case& each : cases) {
    try {
      make_grid_shape(each.world, each.degrees);
      ADD_FAILURE() << each.message;
    } catch (const ConfigError& error) {
      EXPECT_STREQ(error.what(), each.message);
    }
  }
}

// Every layout is accepted, or refused with layouts that are accepted.
TEST(GridShape, SuggestedLayoutsWork) {
  const auto check = [](int world, const Degrees& asked) {
    const std::int64_t others = asked.tensor * asked.context * asked.pipeline;
    const bool possible = world % others == 0 && (asked.data == 0 || others * asked.data == world);
    try {
      const GridShape shape = make_grid_shape(world, asked);
      EXPECT_TRUE(possible);
      EXPECT_EQ(shape.size(), world);
      EXPECT_EQ(shape.of(Axis::tensor), asked.tensor);
      EXPECT_EQ(shape.of(Axis::context), asked.context);
      EXPECT_EQ(shape.of(Axis::pipeline), asked.pipeline);
    } catch (const ConfigError& error) {
      EXPECT_FALSE(possible) << error.what();
      const std::string text = error.what();
      std::size_t at = text.rfind(": ");
      int offers = 0;
      while ((at = text.find("tensor ", at)) != std::string::npos) {
        Degrees offered;
        const bool cut = text.compare(at + text.substr(at).find("× "), 10, "× context") == 0;
        const int read =
            cut ? std::sscanf(text.c_str() + at,
                              "tensor %ld × context %ld × pipeline %ld × data %ld", &offered.tensor,
                              &offered.context, &offered.pipeline, &offered.data)
                : std::sscanf(text.c_str() + at, "tensor %ld × pipeline %ld × data %ld",
                              &offered.tensor, &offered.pipeline, &offered.data);
        ASSERT_EQ(read, cut ? 4 : 3) << text;
        EXPECT_NO_THROW(make_grid_shape(world, offered)) << text;
        ++offers;
        ++at;
      }
      EXPECT_GE(offers, 1) << text;
    }
  };
  for (int world = 1; world <= 24; ++world) {
    for (int tensor = 1; tensor <= 6; ++tensor) {
      for (int context = 1; context <= 4; ++context) {
        for (int pipeline = 1; pipeline <= 6; ++pipeline) {
          for (int data = 0; data <= 4; ++data) {
            check(world,
                  {.tensor = tensor, .context = context, .pipeline = pipeline, .data = data});
          }
        }
      }
    }
  }
}

TEST(GridShape, ShardGroupsDivideTheDataAxis) {
  const GridShape shape{{2, 1, 12, 1}};
  EXPECT_EQ(shard_degree(shape, 0), 12);
  EXPECT_EQ(shard_degree(shape, 4), 4);
  for (const auto& [group, mend] :
       {std::pair{5, "use 4 or 6"}, {-1, "use 1"}, {24, "use 12"}, {11, "use 6 or 12"}}) {
    try {
      shard_degree(shape, group);
      ADD_FAILURE() << group;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.what(),
                fmt::format("zero.group = {}: must divide the data-parallel degree, 12; {}", group,
                            mend));
    }
  }
}

std::vector<int> of(GroupKind kind, GridShape shape, int shard, int rank, int kv = 0) {
  shape.shard = shard;
  shape.kv = kv;
  EXPECT_EQ(group_size(shape, kind, rank), static_cast<int>(members(shape, kind, rank).size()));
  return members(shape, kind, rank);
}

// pipeline 3 × data 4 × context 1 × tensor 2: rank = 8 p + 2 d + t.
TEST(Members, MatchTheDocumentedExample) {
  const GridShape shape{{2, 1, 4, 3}};
  EXPECT_THAT(of(GroupKind::tensor, shape, 2, 13), ElementsAre(12, 13));
  EXPECT_THAT(of(GroupKind::context, shape, 2, 13), ElementsAre(13));
  EXPECT_THAT(of(GroupKind::data, shape, 2, 13), ElementsAre(9, 11, 13, 15));
  EXPECT_THAT(of(GroupKind::pipeline, shape, 2, 13), ElementsAre(5, 13, 21));
  EXPECT_THAT(of(GroupKind::stage, shape, 2, 13), ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_THAT(of(GroupKind::model, shape, 2, 13), ElementsAre(4, 5, 12, 13, 20, 21));
  EXPECT_THAT(of(GroupKind::shard, shape, 2, 13), ElementsAre(13, 15));
  EXPECT_THAT(of(GroupKind::shard, shape, 4, 13), ElementsAre(9, 11, 13, 15));
  EXPECT_THAT(of(GroupKind::replica, shape, 2, 13), ElementsAre(9, 13));
  EXPECT_THAT(of(GroupKind::replica, shape, 4, 13), ElementsAre(13));
  EXPECT_THAT(of(GroupKind::replica, shape, 1, 13), ElementsAre(9, 11, 13, 15));
  EXPECT_THAT(of(GroupKind::embedding, shape, 2, 13), ElementsAre(13));
  EXPECT_THAT(of(GroupKind::embedding, shape, 2, 5), ElementsAre(5, 21));
  EXPECT_THAT(of(GroupKind::embedding, shape, 2, 21), ElementsAre(5, 21));
  EXPECT_THAT(of(GroupKind::embedding, {{2, 1, 4, 1}}, 2, 5), ElementsAre(5));
  EXPECT_THAT(of(GroupKind::kv, shape, 2, 13), ElementsAre(12, 13));
  EXPECT_THAT(of(GroupKind::kv, {{6, 1, 2, 1}}, 2, 9, 3), ElementsAre(9, 10, 11));
  EXPECT_THAT(of(GroupKind::kv, {{6, 1, 2, 1}}, 2, 9, 1), ElementsAre(9));
}

/// Whether two ranks that differ in the coordinates `differ` (by axis) are in one group of `kind`,
/// if that depends only on `differ`.
bool along(GroupKind kind, const std::array<bool, axis_count>& differ) {
  const auto [tensor, context, data, pipeline] = differ;
  switch (kind) {
    case GroupKind::tensor:
      return !context && !data && !pipeline;
    case GroupKind::context:
      return !tensor && !data && !pipeline;
    case GroupKind::data:
      return !tensor && !pipeline;
    case GroupKind::pipeline:
      return !tensor && !context && !data;
    case GroupKind::world:
      return true;
    case GroupKind::stage:
      return !pipeline;
    case GroupKind::model:
      return !data;
    default:
      ADD_FAILURE() << name_of(kind);
      return false;
  }
}

// Each rank is in its own group, all members agree on the group, and groups along axes hold exactly
// the ranks with equal coordinates on the other axes.
TEST(Members, DivideTheWorld) {
  const GridShape shape{{2, 3, 4, 3}};
  for (const GroupKind kind : all_group_kinds) {
    for (int rank = 0; rank < shape.size(); ++rank) {
      const auto group = of(kind, shape, 2, rank);
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      EXPECT_EQ(std::count(group.begin(), group.end(), rank), 1);
      for (const int other : group) EXPECT_EQ(of(kind, shape, 2, other), group);
      if (kind >= GroupKind::shard) continue;
      std::vector<int> expected;
      for (int other = 0; other < shape.size(); ++other) {
        std::array<bool, axis_count> differ{};
        for (std::size_t axis = 0; axis < differ.size(); ++axis) {
          differ[axis] = shape.coordinates(rank)[axis] != shape.coordinates(other)[axis];
        }
        if (along(kind, differ)) expected.push_back(other);
      }
      EXPECT_EQ(group, expected) << name_of(kind);
    }
  }
}

// Kinds share an MPI communicator if and only if all ranks have the same group of them.
TEST(SharedDivisions, HoldKindsThatDivideTheWorldAlike) {
  for (const int tensor : {1, 2, 3}) {
    for (const int context : {1, 2}) {
      for (const int data : {1, 2, 4}) {
        for (const int pipeline : {1, 2, 3, 4}) {
          for (const int shard : {1, 2, 4}) {
            if (data % shard != 0) continue;
            const GridShape shape{{tensor, context, data, pipeline}, shard, 1};
            ByKind<int> division{};  // 0: in none
            int count = 0;
            for (const auto& kinds : shared_divisions(shape)) {
              ++count;
              for (const GroupKind kind : kinds) {
                EXPECT_EQ(division[kind], 0) << name_of(kind) << " twice";
                division[kind] = count;
              }
            }
            for (const GroupKind a : all_group_kinds) {
              for (const GroupKind b : all_group_kinds) {
                bool same = true;
                for (int rank = 0; same && rank < shape.size(); ++rank) {
                  same = of(a, shape, shard, rank, 1) == of(b, shape, shard, rank, 1);
                }
                ASSERT_EQ(division[a] == division[b], same)
                    << shape.to_string() << ": " << name_of(a) << ", " << name_of(b);
              }
              ASSERT_EQ(division[a] == 0, of(a, shape, shard, 0, 1).size() == 1);
            }
          }
        }
      }
    }
  }
}

TEST(ScratchBytes, GrowWithTheReductionUpToABound) {
  EXPECT_EQ(scratch_bytes(1, 1 << 30), 0U);
  // Two ranks: 64 bytes for the conveniences, and the other rank's pieces of half the data.
  EXPECT_EQ(scratch_bytes(2, 200), 64U + 128U);
  EXPECT_EQ(scratch_bytes(2, std::size_t{1} << 30), scratch_bytes(2, std::size_t{1} << 33));
  EXPECT_LE(scratch_bytes(128, std::size_t{1} << 40), std::size_t{33} << 20);
}

}  // namespace
}  // namespace trireme::comm
