// Who may write into a run folder.
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/train/run_lock.hpp"

#include "train/runs.hpp"

namespace trireme::train::test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr LockTimes short_times{.patience = 300ms, .heartbeat = 200ms};

class RunLockTest : public testing::Test {
 protected:
  RunLockTest() : world_(comm::make_mpi_communicator(session_.world(), ledger_)) {}

  bool first() const { return world_->rank() == 0; }
  fs::path file() const { return folder_ / "lock"; }
  std::unique_ptr<RunLock> lock(const LockTimes& times = short_times) {
    return std::make_unique<RunLock>(*world_, folder_, world_->size() - 1, times);
  }
  /// Why the lock is not given, or "none". A lock that was given is back on return.
  std::string refusal(const LockTimes& times = short_times) {
    std::string why = "none";
    try {
      lock(times);
    } catch (const AgreedError& error) {
      why = error.what();
    }
    world_->barrier();  // the keeper empties the file
    return why;
  }
  json owner() const {
    std::ifstream in(file());
    return json::parse(in);
  }
  /// As an owner whose processes no longer hold the flock leaves it.
  void leave(const std::string& text) {
    if (first()) {
      fs::create_directories(folder_);
      std::ofstream(file()) << text;
    }
    world_->barrier();
  }
  /// The owner that a lock of this process writes, with a change.
  json own_with(const std::string& key, const json& value) {
    json own;
    {
      const auto held = lock();
      own = owner();
      world_->barrier();  // before it is emptied
    }
    world_->barrier();
    own[key] = value;
    return own;
  }

  comm::Session session_{MPI_COMM_WORLD};
  device::MemoryLedger ledger_;
  Folder files_;
  fs::path folder_ = files_ / "run";
  std::unique_ptr<comm::Communicator> world_;
};

TEST_F(RunLockTest, IsHeldByOneRunAndGivenBack) {
  EXPECT_EQ(refusal(), "none");
  EXPECT_FALSE(fs::exists(folder_)) << "a folder of which nothing became";
  world_->barrier();  // before the keeper makes it again
  {
    const auto held = lock();
    if (first()) std::ofstream(folder_ / "kept") << "a record";
    EXPECT_NO_THROW(held->require_owned());
    const std::string text = refusal();
    EXPECT_THAT(text, HasSubstr("train.output = " + folder_.string()));
    EXPECT_THAT(text, HasSubstr(fmt::format("process {} on", owner()["pid"].get<int>())));
    EXPECT_NO_THROW(held->require_owned());
    world_->barrier();
  }
  world_->barrier();
  EXPECT_EQ(fs::file_size(file()), 0);
  world_->barrier();
  EXPECT_EQ(refusal(), "none");
}

TEST_F(RunLockTest, WaitsForTheProcessesOfAKilledRun) {
  leave(own_with("pid", 999'999'999).dump());
  std::thread holder;
  if (first()) {
    // As a rank of it that still writes.
    Descriptor rank(::open(file().c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(rank.get(), LOCK_SH | LOCK_NB), 0);
    holder = std::thread([rank = std::move(rank)] { std::this_thread::sleep_for(200ms); });
  }
  world_->barrier();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(refusal(), "none");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms);
  if (holder.joinable()) holder.join();
}

TEST_F(RunLockTest, IsTakenOverFromAProcessThatIsGone) {
  const auto begin = std::chrono::steady_clock::now();
  leave(own_with("pid", 999'999'999).dump());
  EXPECT_EQ(refusal(), "none");
  // Another process has got the number since.
  leave(own_with("birth", "1").dump());
  EXPECT_EQ(refusal(), "none");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST_F(RunLockTest, IsNotTakenFromALivingProcessWithoutFlock) {
  leave(own_with("since", "yesterday").dump());
  EXPECT_THAT(refusal(), HasSubstr("since yesterday has this run folder"));
}

TEST_F(RunLockTest, AnOwnerOnAnotherMachineIsGoneWithoutHeartbeats) {
  const json other = own_with("machine", "another");
  const auto begin = std::chrono::steady_clock::now();  // other ranks return late from leave()
  leave(other.dump());
  EXPECT_EQ(refusal(), "none");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 3 * short_times.heartbeat);

  leave(other.dump());
  std::atomic<bool> ends = false;
  std::thread heart;
  if (first()) {
    heart = std::thread([&] {
      while (!ends) {
        ::utimensat(AT_FDCWD, file().c_str(), nullptr, 0);
        std::this_thread::sleep_for(50ms);
      }
    });
  }
  // Three of these periods without a beat mean that the owner is gone: longer than a loaded machine
  // delays the thread.
  EXPECT_THAT(refusal({.patience = 300ms, .heartbeat = 10s}), HasSubstr("has this run folder"));
  ends = true;
  if (heart.joinable()) heart.join();
}

TEST_F(RunLockTest, AFileThatIsCutIsLikeAnotherMachines) {
  leave(R"({"token":"12)");
  EXPECT_EQ(refusal(), "none");
}

TEST_F(RunLockTest, ShowsALifeSignAndWhenItIsLost) {
  const auto held = lock();
  const auto before = fs::last_write_time(file());
  std::this_thread::sleep_for(3 * short_times.heartbeat);
  EXPECT_GT(fs::last_write_time(file()), before);
  json other = owner();
  world_->barrier();
  other["token"] = "another";
  leave(other.dump());
  EXPECT_ANY_THROW(held->require_owned());
  world_->barrier();
  if (first()) fs::remove(file());
  world_->barrier();
  EXPECT_ANY_THROW(held->require_owned());
}

}  // namespace
}  // namespace trireme::train::test
