#include <vector>

#include <gtest/gtest.h>

#include "trireme/params/layout.hpp"

namespace trireme::params {
namespace {

Parameter parameter(const std::string& name, const Shape& shape, int unit) {
  Parameter parameter{.name = name, .shape = shape};
  parameter.units = {unit};
  parameter.initialization = {Initialization::Kind::normal, 0.5};
  return parameter;
}

TEST(Table, FindsRowsAndCountsThem) {
  ParameterTable table;
  table.add(parameter("a", {3, 5}, 0));
  table.add(parameter("b", {1}, 1));
  const int tied = table.add(parameter("c", {17}, 1));
  table.share(tied, 3);
  EXPECT_EQ(table.elements(), 33);
  EXPECT_EQ(table.find("c"), 2);
  EXPECT_FALSE(table.find("d"));
  EXPECT_EQ(table.row(tied).units, (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace trireme::params
