// Charts.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/schedule/simulate.hpp"

#include "schedule/support.hpp"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

TEST(TextChart, DrawsTimeInCells) {
  const Schedule plan = make_schedule("1f1b", 2, 2);
  const TextChart chart = text_chart(plan, simulate(plan, Costs::uniform(2, 1, 1, 1)));
  EXPECT_EQ(chart.cell, 1);
  EXPECT_EQ(chart.text,
            "stage 0 | F0 F1 .  .  B0--- .  B1---\n"
            "stage 1 | .  F0 B0--- F1 B1--- .  .\n");
}

TEST(TextChart, NamesVirtualStagesIfThereAreChunks) {
  const Schedule plan = make_schedule("interleaved", 2, 2, 2);
  const TextChart chart = text_chart(plan, simulate(plan, Costs::uniform(4, 1, 0.5, 0.5)));
  EXPECT_THAT(chart.text, HasSubstr("stage 0 | 0F0 0F1 2F0 2F1 "));
}

TEST(TextChart, SplitsCellsSoThatTimesAreMultiples) {
  const Schedule plan = make_schedule("1f1b", 1, 1);
  const TextChart chart = text_chart(plan, simulate(plan, Costs::uniform(1, 1, 0.75, 0.75)));
  EXPECT_EQ(chart.cell, 0.5);
  EXPECT_EQ(chart.text, "stage 0 | F0--- B0------\n");
}

TEST(TextChart, StaysSmallIfTimesDiffer) {
  const Schedule plan = make_schedule("zero-bubble", 2, 4);
  const TextChart chart = text_chart(plan, simulate(plan, Costs::uniform(2, 1e-9, 1, 1e9)), 50);
  EXPECT_LT(chart.text.size(), 2U * (50 * 3 + 12));
  EXPECT_THAT(chart.text, HasSubstr("W3"));
}

std::ptrdiff_t count(const std::string& text, const std::string& part) {
  std::ptrdiff_t times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++times;
  return times;
}

TEST(SvgChart, HasARectanglePerCompute) {
  Schedule plan = make_schedule("zero-bubble", 3, 4);
  plan.name = "file:<a&b>";
  const std::string svg = svg_chart(plan, simulate(plan, Costs::uniform(3, 1, 1, 1)));
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  // Background, a row per stage, the computes, a legend of three kinds.
  EXPECT_EQ(count(svg, "<rect "), 1 + 3 + 3 * 4 * 3 + 3);
  EXPECT_THAT(svg, HasSubstr("file:&lt;a&amp;b&gt;: 3 stages, 4 micro-batches"));
  EXPECT_THAT(svg, HasSubstr("backward for weights"));
  EXPECT_EQ(count(svg, "<text "), count(svg, "</text>"));
  // Everything is within the picture.
  EXPECT_EQ(count(svg, ">3</text>"), 3 * 3);
}

}  // namespace
}  // namespace trireme::schedule
