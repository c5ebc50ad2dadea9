#include "trireme/comm/grid.hpp"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/mpi_communicator.hpp"

namespace trireme::comm {
namespace {

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
  EXPECT_EQ(shape.to_string(), "pipeline 5 × data 4 × context 3 × tensor 2");
}

TEST(GridShape, DataTakesTheWholeWorld) {
  EXPECT_EQ(make_grid_shape(6, 0).degree, (std::array{1, 1, 6, 1}));
  EXPECT_EQ(make_grid_shape(6, 6).degree, (std::array{1, 1, 6, 1}));
}

TEST(GridShape, AnImpossibleDegreeIsNamedWithItsMend) {
  for (const int degree : {4, 3, 12, -1}) {
    try {
      make_grid_shape(6, degree);
      FAIL() << degree;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(fmt::format("parallel.data = {}: ", degree)));
      EXPECT_THAT(error.what(), testing::HasSubstr("use 6, or 0"));
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
