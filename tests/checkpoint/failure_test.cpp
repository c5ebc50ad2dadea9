// Full disks, unwritable folders, and processes that die during a save.
#include <chrono>
#include <csignal>
#include <thread>

#include <sys/mount.h>
#include <sys/wait.h>

#include "checkpoint/support.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

TEST(CheckpointFailure, AFileSizeLimitLeavesThePreviousCheckpointIntact) {
  const Scratch scratch;
  const auto world = comm::make_self_communicator();
  Whole whole = make_whole("a/w", {40'000}, DType::f32, 1);
  const auto save_step = [&](std::int64_t step) {
    return save(scratch.path(), {.step = step}, {piece_of(whole, 0, 40'000)}, *world);
  };
  const fs::path before = save_step(1);
  const std::int64_t manifest = static_cast<std::int64_t>(fs::file_size(before / "manifest.json"));
  const std::int64_t data = static_cast<std::int64_t>(fs::file_size(before / "rank-00000.h5"));
  for (const std::int64_t limit : {std::int64_t{0}, std::int64_t{1}, std::int64_t{100},
                                   manifest / 2, std::int64_t{4096}, data / 2, data - 1}) {
    for (const std::int64_t step : {1, 2}) {
      std::string message;
      {
        const FileSizeLimit lowered(static_cast<rlim_t>(limit));
        message = error_of([&] { save_step(step); });
      }
      EXPECT_THAT(message, testing::StartsWith("checkpoint not saved: rank 0: ")) << limit;
      EXPECT_THAT(message, HasSubstr("rank-00000.h5")) << limit;
      EXPECT_THAT(message, HasSubstr("cannot write: File too large; raise the limit")) << limit;
      EXPECT_EQ(entries_below(scratch.path()), 1U) << limit;
      Reader(before).verify();
    }
  }
  save_step(2);
  EXPECT_EQ(newest(scratch.path()), scratch.path() / "step-00000002");
}

TEST(CheckpointFailure, AFullDiskIsNamedAndLeavesThePreviousCheckpointIntact) {
  const Scratch scratch;
  const fs::path root = scratch.path() / "disk";
  fs::create_directory(root);
  if (::mount("tmpfs", root.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "a file system of a given size cannot be mounted here: "
                 << std::strerror(errno);
  }
  const auto world = comm::make_self_communicator();
  Whole small = make_whole("w", {1000}, DType::f32, 1);
  Whole large = make_whole("w", {400'000}, DType::f32, 2);  // 1.6 MB
  const fs::path before = save(root, {.step = 1}, {piece_of(small, 0, 1000)}, *world);
  // From ample space, where only the data do not fit, to none, in pages of 4 KiB.
  for (int pages = 200; pages >= 0; pages -= pages > 8 ? 64 : 1) {
    spill(root / "ballast", "");
    const std::size_t available = fs::space(root).available;
    const std::size_t keep = static_cast<std::size_t>(pages) * 4096;
    spill(root / "ballast", std::string(available > keep ? available - keep : 0, 'x'));
    const std::string message =
        error_of([&] { save(root, {.step = 2}, {piece_of(large, 0, 400'000)}, *world); });
    EXPECT_THAT(message, testing::StartsWith("checkpoint not saved: rank 0: ")) << pages;
    EXPECT_THAT(message, HasSubstr("step-00000002.tmp")) << pages;
    EXPECT_THAT(message, HasSubstr("cannot write: No space left on device; free space")) << pages;
    EXPECT_EQ(newest(root), before);
    EXPECT_EQ(entries_below(root), 2U) << "left behind with " << pages << " pages";
    expect_all_right(Reader(before), {small});
  }
  EXPECT_EQ(::umount2(root.c_str(), MNT_DETACH), 0);
}

TEST(CheckpointFailure, ARootThatCannotBeMadeIsNamed) {
  const Scratch scratch;
  const auto world = comm::make_self_communicator();
  spill(scratch.path() / "file", "not a folder");
  EXPECT_THAT(error_of([&] { save(scratch.path() / "file" / "run", {.step = 1}, {}, *world); }),
              testing::AllOf(HasSubstr("file/run/step-00000001.tmp: cannot create"),
                             HasSubstr("Not a directory")));
}

/// Saves steps 1, 2, … (each twice) until killed.
[[noreturn]] void save_for_ever(const fs::path& root) {
  const auto world = comm::make_self_communicator();
  for (std::int64_t step = 1;; ++step) {
    Whole whole = make_whole("w", {30'000}, DType::f32, static_cast<std::uint64_t>(step));
    for (int twice = 0; twice < 2; ++twice) {
      save(root, {.step = step}, {piece_of(whole, 0, 10'000), piece_of(whole, 10'000, 30'000)},
           *world);
    }
    prune(root, 2);
  }
}

TEST(CheckpointFailure, KillingASaveAtAnyTimeLeavesAnIntactCheckpoint) {
  const Scratch scratch;
  std::mt19937_64 random(1);
  int interrupted = 0;
  for (int round = 0; round < 40; ++round) {
    const fs::path root = scratch.path() / std::to_string(round);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_for_ever(root);
    while (!newest(root)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    std::vector<std::string> passed_over;
    const auto found = newest(root, &passed_over);
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(passed_over.empty()) << "a folder under its final name was not whole";
    const Reader reader(*found);
    const auto step = static_cast<std::uint64_t>(reader.state().step);
    expect_all_right(reader, {make_whole("w", {30'000}, DType::f32, step)});
    for (const auto& entry : fs::directory_iterator(root)) {
      interrupted += entry.path().extension() == ".tmp" ? 1 : 0;
    }
    prune(root, 1);
    EXPECT_EQ(entries_below(root), 1U);
    EXPECT_EQ(newest(root), found);
  }
  EXPECT_GT(interrupted, 0) << "no save was interrupted: the test is vacuous";
}

}  // namespace
}  // namespace trireme::checkpoint::test
