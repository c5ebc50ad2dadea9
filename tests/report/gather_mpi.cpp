// Tables over ranks, against closed forms.
#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/core/error.hpp"
#include "trireme/report/record.hpp"

namespace trireme::report {
namespace {

class GatherMpi : public testing::Test {
 protected:
  device::MemoryLedger ledger_;
  std::unique_ptr<comm::Communicator> world_ = comm::make_mpi_communicator(MPI_COMM_WORLD, ledger_);
};

TEST_F(GatherMpi, SectionsOfAllRanks) {
  const int rank = world_->rank(), size = world_->size();
  Recorder recorder;
  const auto begin = Recorder::Clock::now();
  recorder.add("all", 0, begin, begin + std::chrono::seconds(rank + 1));
  if (rank == size - 1) recorder.add("last only", 0, begin, begin + std::chrono::seconds(size));
  const auto sections = gather_sections(recorder, *world_);
  if (rank != 0) {
    EXPECT_TRUE(sections.empty());
    return;
  }
  ASSERT_EQ(sections.size(), 2U);
  EXPECT_EQ(sections[0].name, "all");
  EXPECT_EQ(sections[0].minimum, 1);
  EXPECT_EQ(sections[0].maximum, size);
  EXPECT_EQ(sections[0].average, (size + 1) / 2.0);  // exact: halves of small integers
  EXPECT_EQ(sections[1].name, "last only");
  EXPECT_EQ(sections[1].minimum, size == 1 ? 1 : 0);
  EXPECT_EQ(sections[1].maximum, size);
  EXPECT_EQ(sections[1].average, 1);
}

TEST_F(GatherMpi, MemoryIsTheLargestOverRanks) {
  const std::int64_t rank = world_->rank(), size = world_->size();
  device::MemoryLedger own;
  own.add(device::Use::stash, 100 + rank);
  const auto rows = gather_memory(own, {{device::Use::stash, 200 - rank}}, *world_);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].measured, 100 + size - 1);
  EXPECT_EQ(rows[0].predicted, 200);
}

TEST_F(GatherMpi, TheTraceOfAllRanksReachesRankZero) {
  const int rank = world_->rank(), size = world_->size();
  Recorder recorder;
  const auto now = Recorder::Clock::now();
  for (int i = 0; i < 5; ++i) {
    recorder.add(rank % 2 == 0 ? "even" : "odd", i % 3, now, now + std::chrono::microseconds(rank));
  }
  const Trace trace = gather_trace(recorder, *world_, 3 * size);
  if (rank != 0) {
    EXPECT_TRUE(trace.spans_by_rank.empty());
    return;
  }
  ASSERT_EQ(trace.spans_by_rank.size(), static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    const auto& spans = trace.spans_by_rank[static_cast<std::size_t>(r)];
    ASSERT_EQ(spans.size(), 3U) << "its share of the limit";
    for (int i = 0; i < 3; ++i) {
      EXPECT_STREQ(spans[static_cast<std::size_t>(i)].name, r % 2 == 0 ? "even" : "odd");
      EXPECT_EQ(spans[static_cast<std::size_t>(i)].stream, i);
      EXPECT_EQ(spans[static_cast<std::size_t>(i)].duration_us, r);
    }
  }
}

TEST_F(GatherMpi, ProvenanceCountsTheRanksOfAHost) {
  const int root = world_->size() - 1;
  const nlohmann::json found = provenance(*world_, nlohmann::json::object(), root);
  if (world_->rank() != root) return;
  EXPECT_EQ(found.at("ranks"), world_->size());
  int ranks = 0;
  for (const auto& host : found.at("hosts")) ranks += host.at("ranks").get<int>();
  EXPECT_EQ(ranks, world_->size());
  EXPECT_TRUE(found.contains("start"));
  EXPECT_TRUE(found.contains("environment"));
}

}  // namespace
}  // namespace trireme::report
