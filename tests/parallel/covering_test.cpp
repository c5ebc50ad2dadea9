// The matrix covers every pair.
#include "covering.hpp"

#include <set>

#include <gtest/gtest.h>

#include "matrix.hpp"

namespace trireme::parallel::test {
namespace {

// A case worked out by hand: three factors of two values need four rows.
TEST(Covering, ThreeFlagsNeedFourRows) {
  const Space space{{2, 2, 2}, [](const Row&) { return true; }};
  const std::vector<Row> rows = cover(space, 1);
  EXPECT_EQ(rows.size(), 4U);
  EXPECT_EQ(uncovered_pairs(space, rows), 0U);
  EXPECT_EQ(uncovered_pairs(space, {}), 12U);
  EXPECT_EQ(uncovered_pairs(space, {{0, 0, 0}}), 9U);
}

TEST(Covering, InfeasiblePairsAreNotRequired) {
  const Space space{{2, 2}, [](const Row& row) { return row[0] != row[1]; }};
  EXPECT_EQ(uncovered_pairs(space, {}), 2U);
  EXPECT_EQ(cover(space, 9).size(), 2U);  // there are no more
}

TEST(Matrix, EveryPairOfValuesOccurs) {
  const Space space = matrix_space();
  std::vector<Row> rows = matrix_rows();
  EXPECT_GE(rows.size(), 60U);
  EXPECT_EQ(uncovered_pairs(space, rows), 0U);
  EXPECT_EQ(std::set<Row>(rows.begin(), rows.end()).size(), rows.size());
  for (const Row& row : rows) EXPECT_TRUE(space.feasible(row));
  // All values of the plan occur.
  std::set<int> tensor, pipeline, data, ranks;
  for (const MatrixCase& each : cases_of(rows)) {
    tensor.insert(each.layout.tensor);
    pipeline.insert(each.layout.pipeline);
    data.insert(each.layout.data);
    ranks.insert(each.layout.ranks());
  }
  const std::set<int> degrees{1, 2, 4};
  EXPECT_EQ(tensor, degrees);
  EXPECT_EQ(pipeline, degrees);
  EXPECT_EQ(data, degrees);
  EXPECT_TRUE(ranks.contains(8));
}

TEST(Matrix, DrawnRowsDependOnlyOnTheSeed) {
  EXPECT_EQ(random_rows(3, 10), random_rows(3, 10));
  EXPECT_NE(random_rows(3, 10), random_rows(4, 10));
  for (const Row& row : random_rows(5, 50)) EXPECT_TRUE(matrix_space().feasible(row));
}

}  // namespace
}  // namespace trireme::parallel::test
