// What the root rank makes of all ranks' accounts.
#include "trireme/train/account.hpp"

#include <gtest/gtest.h>

namespace trireme::train {
namespace {

nlohmann::json rank_with_memory(std::int64_t predicted, std::int64_t measured, bool serves) {
  nlohmann::json rank{{"memory", {{"batch", {{"predicted", predicted}, {"measured", measured}}}}}};
  if (serves) rank["server"] = 0;
  return rank;
}

TEST(MemoryOf, TheRankThatDiffersMostElseTheFullest) {
  const auto rows = memory_of({rank_with_memory(5, 5, false), rank_with_memory(9, 9, false),
                               rank_with_memory(7, 6, true), rank_with_memory(8, 8, true),
                               nlohmann::json::object()});
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].name, "batch");
  EXPECT_EQ(rows[0].measured, 9);
  EXPECT_EQ(rows[1].name, "server batch");
  EXPECT_EQ(rows[1].predicted, 7);
  EXPECT_EQ(rows[1].measured, 6);
}

TEST(CommunicationOf, MostAndMeanOverRanks) {
  const auto rank = [](double bytes, double seconds, double least) {
    return nlohmann::json{{"communication",
                           {{"data",
                             {{"bytes_per_step", bytes},
                              {"seconds_per_step", seconds},
                              {"least_bytes_per_step", least}}}}}};
  };
  const auto silent = nlohmann::json{{"communication", nlohmann::json::object()}};
  const auto all = communication_of({rank(8, 1, 4), rank(4, 3, 4), silent, silent}).at("data");
  EXPECT_EQ(all.at("bytes_per_step"), 8);
  EXPECT_EQ(all.at("seconds_per_step"), 3);
  EXPECT_EQ(all.at("mean_bytes_per_step"), 3);
  EXPECT_EQ(all.at("mean_least_bytes_per_step"), 2);
}

TEST(MemoryAccount, ListsWhatIsPredictedOrHeld) {
  device::MemoryLedger ledger;
  const device::Buffer held(ledger, device::Use::batch, 64);
  const auto account = memory_account(
      {{{device::Use::batch, 64}, {device::Use::stash, 8}}, {device::Use::stash}}, ledger);
  EXPECT_EQ(account.size(), 2U);
  EXPECT_EQ(account.at("batch").at("measured"), ledger.peak(device::Use::batch));
  EXPECT_FALSE(account.at("batch").contains("in_part"));
  EXPECT_EQ(account.at("stash").at("predicted"), 8);
  EXPECT_TRUE(account.at("stash").at("in_part"));
}

}  // namespace
}  // namespace trireme::train
