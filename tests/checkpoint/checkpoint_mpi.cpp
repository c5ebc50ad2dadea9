// Saving with several ranks in random layouts, loading in others, and failures of one rank.
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

  /// Gathers every rank's text for comparison.
  std::vector<std::string> gather(const std::string& text) {
    std::vector<std::string> all;
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
    for (const auto& each : world_->all_gather_bytes({bytes, text.size()})) {
      all.emplace_back(each.begin(), each.end());
    }
    return all;
  }

  /// This rank's pieces in a random layout that all ranks draw alike: each tensor is split at
  /// random; a random rank below `writers` writes each box, and some others hold it as a replica.
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

TEST_F(CheckpointMpi, EveryLayoutLoadsEveryLayout) {
  std::mt19937_64 shared(17);  // the same numbers on every rank
  std::mt19937_64 own(100 + static_cast<std::uint64_t>(rank()));
  for (int round = 0; round < 10; ++round) {
    std::vector<Whole> wholes = {make_whole("adamw.moment1/a", {30, 7}, DType::f32, 1),
                                 make_whole("parameters/a", {30, 7}, DType::f32, 2),
                                 make_whole("parameters/b", {65}, DType::bf16, 3),
                                 make_whole("parameters/c", {3, 4, 5, 6}, DType::f64, 4)};
    const int writers = 1 + static_cast<int>(shared() % static_cast<std::uint64_t>(size()));
    const std::vector<Piece> pieces = random_layout(wholes, writers, shared);
    // Rank 0's state is saved; others may not have it.
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
    // One file per rank with data.
    const bool wrote = std::any_of(pieces.begin(), pieces.end(),
                                   [](const Piece& p) { return p.write && p.data.elements() > 0; });
    EXPECT_EQ(fs::exists(folder / fmt::format("rank-{:05}.h5", rank())), wrote);
  }
}

TEST_F(CheckpointMpi, AFileForEachNodeAndSubFolders) {
  std::mt19937_64 shared(18);
  std::vector<Whole> wholes = {make_whole("adamw.moment1/a", {30, 7}, DType::f32, 1),
                               make_whole("parameters/a", {30, 7}, DType::f32, 2),
                               make_whole("parameters/b", {65}, DType::bf16, 3)};
  // Simulated nodes: one; two of neighbors; two that alternate; one per rank.
  for (const int kind : {0, 1, 2, 3}) {
    for (const std::int64_t per_folder : {1, 2, 1000}) {
      FileLayout layout{.per_folder = per_folder};
      for (int rank = 0; rank < size(); ++rank) {
        const int leaders[] = {0, rank / 2 * 2, rank % 2, rank};
        layout.nodes.push_back(leaders[kind]);
      }
      for (const bool by_node : {true, false}) {
        if (!by_node) layout.nodes.clear();
        const std::vector<Piece> pieces = random_layout(wholes, size(), shared);
        const auto step = static_cast<std::int64_t>(shared() % 1'000'000);
        fs::path folder;
        if (shared() % 2 == 0) {
          folder = save(root_, {.step = step}, pieces, *world_, layout);
        } else {
          folder =
              Save(root_, {.step = step}, pieces, device::host_device(), *world_, ledger_, layout)
                  .finish();
        }
        const Reader reader(folder);
        reader.verify();
        expect_all_right(reader, wholes);
        const std::size_t nodes[] = {1, static_cast<std::size_t>(size() + 1) / 2,
                                     static_cast<std::size_t>(std::min(size(), 2)),
                                     static_cast<std::size_t>(size())};
        const std::size_t files = by_node ? nodes[kind] : static_cast<std::size_t>(size());
        EXPECT_LE(reader.files().size(), files);
        std::size_t found = 0;
        for (const auto& entry : fs::recursive_directory_iterator(folder)) {
          if (entry.path().extension() == ".h5") ++found;
          if (!entry.is_directory()) continue;
          EXPECT_GT(files, static_cast<std::size_t>(per_folder)) << entry.path();
          EXPECT_LE(entries_below(entry.path()), static_cast<std::size_t>(per_folder));
        }
        EXPECT_EQ(found, reader.files().size());
        // Beside the manifest: the allowed number of files, or folders of files.
        EXPECT_LE(
            entries_below(folder),
            1 + std::max<std::size_t>(static_cast<std::size_t>(per_folder),
                                      (files - 1) / static_cast<std::size_t>(per_folder) + 1));
        world_->barrier();
      }
    }
  }
}

TEST_F(CheckpointMpi, AFailureOfOneRankIsReportedByAll) {
  Whole whole = make_whole("w", {size(), 5000}, DType::f32, 1);
  const std::vector<Piece> pieces = {piece_of(whole, rank(), rank() + 1)};
  const fs::path before = save(root_, {.step = 1}, pieces, *world_);
  for (int culprit = 0; culprit < size(); ++culprit) {
    std::optional<FileSizeLimit> limit;
    if (rank() == culprit) limit.emplace(10'000);  // enough for HDF5's structure, not for the data
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
