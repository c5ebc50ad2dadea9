#include "trireme/core/pairwise.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

/// The sum of `count` terms as text, in the order in which add_pairwise adds them.
std::string tree(std::int64_t count) {
  std::vector<std::string> terms;
  for (std::int64_t i = 0; i < count; ++i) terms.push_back(std::to_string(i));
  add_pairwise(count, [&](std::int64_t to, std::int64_t from) {
    std::string& sum = terms[static_cast<std::size_t>(to)];
    sum = fmt::format("({}+{})", sum, terms[static_cast<std::size_t>(from)]);
  });
  return terms.front();
}

TEST(Pairwise, ABalancedTree) {
  EXPECT_EQ(tree(1), "0");
  EXPECT_EQ(tree(4), "((0+1)+(2+3))");
  EXPECT_EQ(tree(5), "(((0+1)+(2+3))+4)");
}

TEST(Pairwise, FewSlotsGiveTheSameTree) {
  for (const std::int64_t count : {1, 2, 4, 8, 64}) {
    std::vector<std::string> slots;
    sum_pairwise(
        count,
        [&](std::int64_t term, int slot) {
          slots.resize(std::max(slots.size(), static_cast<std::size_t>(slot) + 1));
          slots[static_cast<std::size_t>(slot)] = std::to_string(term);
        },
        [&](int to, int from) {
          std::string& sum = slots[static_cast<std::size_t>(to)];
          sum = fmt::format("({}+{})", sum, slots[static_cast<std::size_t>(from)]);
        });
    EXPECT_EQ(slots.front(), tree(count));
    std::size_t most = 1;
    for (std::int64_t terms = count; terms > 1; terms /= 2) ++most;
    EXPECT_EQ(slots.size(), most);
  }
}

}  // namespace
}  // namespace trireme
