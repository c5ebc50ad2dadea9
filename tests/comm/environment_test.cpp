#include "trireme/comm/environment.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace trireme::comm {
namespace {

TEST(Environment, MatchingRanksAreAccepted) {
  EXPECT_EQ(environment_complaint({}), "");
  const std::vector<Environment> ranks(5, {"AVX-512", "oneDNN 2.6.3"});
  EXPECT_EQ(environment_complaint(ranks), "");
}

TEST(Environment, OneLineNamesTwoRanksAndTheirValues) {
  std::vector<Environment> ranks(5, {"AVX-512", "oneDNN 2.6.3"});
  ranks[3].instructions = "AVX2";
  EXPECT_EQ(environment_complaint(ranks),
            "environment: rank 3 of 5 has instruction set AVX2, rank 0 has AVX-512: all ranks must "
            "compute alike; use nodes of one kind of processor");
  ranks[3].instructions = "AVX-512";
  ranks[4].libraries = "oneDNN 3.1";
  EXPECT_EQ(environment_complaint(ranks),
            "environment: rank 4 of 5 has libraries oneDNN 3.1, rank 0 has oneDNN 2.6.3: all ranks "
            "must compute alike; start the same installation on all nodes");
}

}  // namespace
}  // namespace trireme::comm
