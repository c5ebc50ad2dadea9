#include "trireme/params/table.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace trireme::params {
namespace {

Parameter make(const std::string& name, const Shape& shape, int unit) {
  Parameter parameter{.name = name, .shape = shape};
  parameter.units = {unit};
  parameter.initialisation = {Initialisation::Kind::normal, 0.5};
  return parameter;
}

TEST(Table, RowsAreAlignedAndDoNotOverlap) {
  ParameterTable table;
  table.add(make("a", {3, 5}, 0));
  table.add(make("b", {1}, 1));
  table.add(make("c", {17}, 1));
  std::int64_t end = 0;
  for (const Parameter& row : table.rows()) {
    EXPECT_EQ(row.offset % 16, 0);
    EXPECT_GE(row.offset, end);
    end = row.offset + row.shape.elements();
  }
  EXPECT_EQ(table.elements(), 33);
  EXPECT_EQ(table.flat_elements(), 16 + 16 + 32);
  EXPECT_EQ(table.find("c"), 2);
  EXPECT_FALSE(table.find("d"));
}

TEST(Table, UnitRangesCoverTheBufferOnce) {
  ParameterTable table;
  const int tied = table.add(make("a", {40}, 0));
  table.add(make("b", {20}, 1));
  table.add(make("c", {20}, 3));  // unit 2 owns nothing
  table.share(tied, 3);
  EXPECT_EQ(table.unit_range(0).begin, 0);
  EXPECT_EQ(table.unit_range(0).end, table.unit_range(1).begin);
  EXPECT_EQ(table.unit_range(2).begin, table.unit_range(2).end);
  EXPECT_EQ(table.unit_range(3).end, table.flat_elements());
}

TEST(Initialise, DependsOnNameAndSeedNotOnPlace) {
  ParameterTable first, second;
  first.add(make("x", {100}, 0));
  second.add(make("other", {7}, 0));
  second.add(make("x", {100}, 0));
  std::vector<float> a(static_cast<std::size_t>(first.flat_elements()), -1);
  std::vector<float> b(static_cast<std::size_t>(second.flat_elements()), -1);
  const auto flat = [](std::vector<float>& v) {
    return Tensor(v.data(), {static_cast<std::int64_t>(v.size())});
  };
  initialise(first, 42, flat(a));
  initialise(second, 42, flat(b));
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(a[i], b[16 + i]);
  EXPECT_EQ(a[100], 0);  // gaps hold zeros: flat reductions may read them
  std::vector<float> c = a;
  initialise(first, 43, flat(c));
  EXPECT_NE(a, c);
}

TEST(Initialise, NormalHasItsDeviation) {
  ParameterTable table;
  table.add(make("x", {100'000}, 0));
  std::vector<float> values(static_cast<std::size_t>(table.flat_elements()));
  initialise(table, 1, Tensor(values.data(), {table.flat_elements()}));
  double sum = 0, squares = 0;
  for (float v : values) {
    sum += v;
    squares += v * v;
  }
  // Five standard errors: of the mean 0.5/√n, of the variance 0.25·√(2/n).
  EXPECT_NEAR(sum / 1e5, 0, 5 * 0.5 / std::sqrt(1e5));
  EXPECT_NEAR(squares / 1e5, 0.25, 5 * 0.25 * std::sqrt(2 / 1e5));
}

}  // namespace
}  // namespace trireme::params
