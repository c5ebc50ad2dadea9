// One run at a time in a run folder. Two would mix their checkpoints: they write the same names.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/files.hpp"

namespace trireme::train {

/// How long a start waits for the owner of its folder, and how often an owner sends a heartbeat.
struct LockTimes {
  /// For processes of this machine to end: those of a run that was just killed may still write.
  std::chrono::milliseconds patience{20'000};
  /// Between two changes of the file's time by its owner.
  std::chrono::milliseconds heartbeat{10'000};
};

/// Whom the lock of a run folder names, for a reader on any machine. `alive`: its process of this
/// machine exists, or the last heartbeat from another one is less than three periods old.
struct LockOwner {
  std::string name;
  bool alive = false;
};
LockOwner lock_owner(const std::filesystem::path& folder, LockTimes times = {});

/// The lock of a run folder, held by all ranks of a run: the file FOLDER/lock. It names its owner
/// (host, process, start, Slurm job) and is empty after a run that ended by itself.
///
/// A run owns the folder while one of its processes holds flock(2) on the file. Where the file
/// system has no flock, or keeps it to one node (NFS and Lustre, by their mount options), the owner
/// that the file names counts: a process of this machine until it is gone, one of another machine
/// until three heartbeats are missing. Then the lock is taken over.
class RunLock {
 public:
  /// Creates the folder if needed and takes the lock. Rank `keeper` is the owner that the file
  /// names and sends the heartbeats: one without which the run ends. Collective over `everyone`;
  /// throws AgreedError when another run owns it.
  RunLock(comm::Communicator& everyone, const std::filesystem::path& folder, int keeper = 0,
          LockTimes times = {});
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  /// Gives the folder back, and removes it if this made it and nothing is in it; not collective.
  ~RunLock();

  /// Throws Error if another run has taken over the folder, as it may while this one's machine
  /// is suspended. For any rank, before it changes what is there already.
  void require_owned() const;

 private:
  void take();
  void share();
  void keep_alive();

  std::filesystem::path path_;
  LockTimes times_;
  std::string token_;
  Descriptor file_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool made_folder_ = false;
  bool ended_ = false;     // guarded by mutex_
  std::thread heartbeat_;  // of the keeper
};

}  // namespace trireme::train
