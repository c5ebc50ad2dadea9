// The life of one NCCL communicator.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "trireme/comm/nccl.hpp"

namespace trireme::comm {

class NcclHandle;

/// Where a communicator comes from: a split of `parent`, or a unique id of its own.
struct NcclOrigin {
  NcclHandle* parent = nullptr;
  int color = 0;
};

/// One NCCL communicator: made without blocking, asked for its errors, aborted on the first.
class NcclHandle {
 public:
  using Result = NcclApi::Result;
  using Calls = std::function<Result(NcclApi& api, NcclApi::Comm comm)>;

  /// Collective over the parent's ranks, else over `mpi`, whose agreement carries the unique id.
  /// `key` of the configuration selects what carries the group.
  NcclHandle(NcclRuntime& runtime, Communicator& mpi, const std::string& name, std::string key,
             const NcclOrigin& origin = {});
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;
  /// Waits for the group's other ranks to end theirs; while an exception is on its way, aborts.
  ~NcclHandle();

  /// Splits this communicator for group `name` and waits for the end; see NcclApi::split.
  void split(const std::string& name, int color, int key, NcclApi::Comm& made);
  /// Registers memory; the reason where NCCL refuses, else empty. Throws Error where the
  /// communicator has failed.
  std::string register_memory(void* data, std::size_t bytes, void*& registered);
  /// Waits for the operations that were queued, which may use the memory. An abort has ended the
  /// registration already.
  void deregister_memory(void* registered) noexcept;
  /// An operation has been queued on the device up to `end`.
  void queued(std::shared_ptr<device::Fence> end);
  /// Makes calls for `operation`, but for where earlier ones are in progress: then none, and
  /// returns false. Any thread may try. Throws Error.
  bool issue(const char* operation, const Calls& calls);
  /// The same between group_start and group_end.
  bool issue_group(const char* operation, const Calls& calls);
  /// Whether all that was issued is in the device's queue. Throws Error.
  bool settled(const char* operation);
  /// For the runtime's thread: looks for errors, and deals with what it finds.
  void look();
  /// `why` is what its users get from now on. Returns its communicator, for the caller to abort;
  /// null where there is none any more.
  NcclApi::Comm surrender(const std::exception_ptr& why) noexcept;

 private:
  bool ready(const std::string& operation);  // under mutex_, as is what follows
  void require(Result result, const std::string& operation);
  [[noreturn]] void fail(const std::string& operation, const std::string& reason);
  void give_up(const std::exception_ptr& why);
  void wait_for(const std::string& operation);  // until it is no longer in progress
  void end();
  void abort();

  NcclRuntime& runtime_;
  std::string where_;  // "rank 3 of 8 of group data"
  std::string key_;    // "comm.data"
  std::mutex mutex_;   // the runtime's thread and whoever polls the streams
  NcclApi::Comm comm_ = nullptr;
  std::exception_ptr failure_;
  std::shared_ptr<device::Fence> last_end_;  // of operations that were queued
  bool watched_ = false;
};

}  // namespace trireme::comm
