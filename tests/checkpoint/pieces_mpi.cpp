// State of real ranks saved in one layout and loaded in all others.
#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"

#include "checkpoint/layouts.hpp"
#include "checkpoint/support.hpp"

namespace trireme::checkpoint::test {
namespace {

TEST(PiecesMpi, EveryLayoutOfTheseRanksLoadsEveryOther) {
  device::MemoryLedger ledger;
  const auto world = comm::make_mpi_communicator(MPI_COMM_WORLD, ledger);
  std::string name = fmt::format("trireme_pieces_mpi_{}_{}", world->size(), ::getpid());
  std::vector<std::uint8_t> bytes(name.begin(), name.end());
  world->broadcast_bytes(bytes, 0);  // rank 0's process number
  const fs::path root = fs::path(testing::TempDir()) / std::string(bytes.begin(), bytes.end());
  const params::ParameterTable table = make_table("llama-tied");
  std::vector<Degrees> here;
  for (const Degrees& degrees : degrees_to_try()) {
    if (degrees.ranks() == world->size()) here.push_back(degrees);
  }
  ASSERT_FALSE(here.empty());
  for (const Degrees& from : here) {
    Rank source(table, from, world->rank());
    source.set_expected(7);
    source.fill();
    std::vector<Piece> pieces;
    source.append(pieces);
    const Reader reader(save(root, {.step = 1}, pieces, *world));
    for (const Degrees& to : here) {
      Rank target(table, to, world->rank());
      target.set_expected(7);
      EXPECT_EQ(target.load_and_compare(reader), "") << from.text() << " to " << to.text();
    }
    world->barrier();  // before the next save replaces it
  }
  std::error_code ignored;
  if (world->rank() == 0) fs::remove_all(root, ignored);
}

}  // namespace
}  // namespace trireme::checkpoint::test
