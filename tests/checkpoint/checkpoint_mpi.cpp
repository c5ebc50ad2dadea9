// Saving with several ranks in made-up layouts, loading in others, and failures of one rank.
#include <csignal>
#include <optional>

#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"

#include "checkpoint/support.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

class CheckpointMpi : public testing::Test {
 protected:
  void SetUp() override {
    world_ = comm::make_mpi_communicator(MPI_COMM_WORLD, ledger_);
    std::string name = fmt::format("trireme_checkpoint_mpi_{}_{}", size(), ::getpid());
    std::vector<std::uint8_t> bytes(name.begin(), name.end());
    world_->broadcast_bytes(bytes, 0);  // rank 0's process number
    root_ = fs::path(testing::TempDir()) / std::string(bytes.begin(), bytes.end());
  }
  void TearDown() override {
    world_->barrier();
    std::error_code ignored;
    if (rank() == 0) fs::remove_all(root_, ignored);
    world_->barrier();
  }
  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }

  /// Every rank's text, to compare.
  std::vector<std::string> gather(const std::string& text) {
    std::vector<std::string> all;
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
    for (const auto& each : world_->all_gather_bytes({bytes, text.size()})) {
      all.emplace_back(each.begin(), each.end());
    }
    return all;
  }

  /// The pieces of this rank in a layout that all ranks draw alike: each tensor is cut at random,
  /// each box is written by a random rank below `writers`, and held as a replica by some
  /// others.
  std::vector<Piece> random_layout(std::vector<Whole>& wholes, int writers,
                                   std::mt19937_64& random) {
    std::vector<Piece> pieces;
    for (Whole& whole : wholes) {
      for (const Region& region :
           random_regions(whole.shape, 1 + static_cast<int>(random() % 6), random)) {
        const int owner = static_cast<int>(random() % static_cast<std::uint64_t>(writers));
        const int replica = static_cast<int>(random() % static_cast<std::uint64_t>(size()));
        if (rank() == owner) {
          pieces.push_back(piece_of(whole, region));
        } else if (rank() == replica) {
          pieces.push_back(piece_of(whole, region, false));
        }
      }
    }
    return pieces;
  }

  device::MemoryLedger ledger_;
  std::unique_ptr<comm::Communicator> world_;
  fs::path root_;
};

TEST_F(CheckpointMpi, AnyLayoutLoadsAnyLayout) {
  std::mt19937_64 shared(17);  // the same numbers on every rank
  std::mt19937_64 own(100 + static_cast<std::uint64_t>(rank()));
  for (int round = 0; round < 10; ++round) {
    std::vector<Whole> wholes = {make_whole("adamw.moment1/a", {30, 7}, DType::f32, 1),
                                 make_whole("parameters/a", {30, 7}, DType::f32, 2),
                                 make_whole("parameters/b", {65}, DType::bf16, 3),
                                 make_whole("parameters/c", {3, 4, 5, 6}, DType::f64, 4)};
    const int writers = 1 + static_cast<int>(shared() % static_cast<std::uint64_t>(size()));
    const std::vector<Piece> pieces = random_layout(wholes, writers, shared);
    // What rank 0 says of the state counts; others may not know it.
    State state{.step = round, .samples = 64 * round, .seed = 9};
    if (rank() != 0) state.samples = -1;
    const fs::path folder = save(root_, state, pieces, *world_);
    EXPECT_EQ(folder, root_ / fmt::format("step-{:08}", round));
    const Reader reader(folder);
    EXPECT_EQ(reader.state().samples, 64 * round);
    expect_all_right(reader, wholes);
    for (const Whole& whole : wholes) {
      for (int slice = 0; slice < 20; ++slice) {
        EXPECT_TRUE(slice_is_right(reader, whole, random_region(whole.shape, own), slice % 3))
            << whole.name;
      }
    }
    reader.verify();
    // One file per rank that wrote something.
    const bool wrote = std::any_of(pieces.begin(), pieces.end(),
                                   [](const Piece& p) { return p.write && p.data.elements() > 0; });
    EXPECT_EQ(fs::exists(folder / fmt::format("rank-{:05}.h5", rank())), wrote);
  }
}

TEST_F(CheckpointMpi, AFailureOfOneRankIsAgreedOnByAll) {
  Whole whole = make_whole("w", {size(), 5000}, DType::f32, 1);
  const std::vector<Piece> pieces = {piece_of(whole, rank(), rank() + 1)};
  const fs::path before = save(root_, {.step = 1}, pieces, *world_);
  for (int culprit = 0; culprit < size(); ++culprit) {
    std::optional<FileSizeLimit> limit;
    if (rank() == culprit) limit.emplace(10'000);  // room for HDF5's structure, not for the data
    std::string message;
    try {
      save(root_, {.step = 2}, pieces, *world_);
    } catch (const AgreedError& error) {
      message = error.what();
    }
    EXPECT_EQ(fs::exists(root_ / "step-00000002.tmp"), false);
    EXPECT_EQ(fs::exists(root_ / "step-00000002"), false);
    limit.reset();
    EXPECT_THAT(message, testing::StartsWith(fmt::format(
                             "checkpoint not saved: rank {}: {}/step-00000002.tmp/rank-{:05}.h5: ",
                             culprit, root_.string(), culprit)));
    EXPECT_THAT(message, HasSubstr("cannot write: File too large; raise the limit"));
    for (const std::string& other : gather(message)) EXPECT_EQ(other, message);
    EXPECT_EQ(newest(root_), before);
    world_->barrier();
  }
  const fs::path after = save(root_, {.step = 2}, pieces, *world_);
  expect_all_right(Reader(after), {whole});
}

TEST_F(CheckpointMpi, SeveralFailuresAreCounted) {
  Whole whole = make_whole("w", {size()}, DType::f32, 1);
  std::vector<Piece> pieces = {piece_of(whole, rank(), rank() + 1)};
  if (rank() != 0 || size() == 1) pieces[0].name = "a//b";
  std::string message = error_of([&] { save(root_, {.step = 1}, pieces, *world_); });
  EXPECT_THAT(message, HasSubstr(size() == 1 ? "rank 0: tensor 'a//b'" : "rank 1: tensor 'a//b'"));
  // All but rank 0 fail; the line names the first of them.
  const std::string others = size() == 4 ? " (and 2 other ranks)" : "'..'";
  EXPECT_THAT(message, testing::EndsWith(others));
  for (const std::string& other : gather(message)) EXPECT_EQ(other, message);
  EXPECT_FALSE(fs::exists(root_));
}

TEST_F(CheckpointMpi, RanksThatDisagreeOnATensorAreNamed) {
  if (size() == 1) GTEST_SKIP() << "takes two ranks to disagree";
  Whole one = make_whole("w", {10}, DType::f32, 1);
  Whole two = make_whole("w", {2, 5}, DType::f32, 1);
  const bool last = rank() == size() - 1;
  const std::vector<Piece> pieces = {piece_of(last ? two : one, 0, last ? 2 : 10, rank() == 0)};
  const std::string message = error_of([&] { save(root_, {.step = 1}, pieces, *world_); });
  EXPECT_THAT(message,
              HasSubstr(fmt::format("rank {}: tensor w: is fp32 [2, 5] here and fp32 [10] on "
                                    "another rank",
                                    size() - 1)));
  for (const std::string& other : gather(message)) EXPECT_EQ(other, message);
}

TEST_F(CheckpointMpi, ABoxThatSeveralRanksWriteIsRefused) {
  if (size() == 1) GTEST_SKIP() << "takes two ranks";
  Whole whole = make_whole("w", {10}, DType::f32, 1);
  EXPECT_THAT(error_of([&] { save(root_, {.step = 1}, {piece_of(whole, 0, 10)}, *world_); }),
              HasSubstr(fmt::format("{} pieces hold element [0]", size())));
}

}  // namespace
}  // namespace trireme::checkpoint::test
