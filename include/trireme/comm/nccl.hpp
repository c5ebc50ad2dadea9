// NCCL as a Communicator of GPUs. The library is used through an interface, which tests implement
// too; nccl_library() is NCCL itself.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::comm {

/// The part of NCCL that is used. Every call returns at once; after `in_progress` a communicator
/// may be asked for nothing but async_error until that gives success. `queue` is a device::Queue's
/// native(). Counts are of bytes, or of elements where there is a type.
class NcclApi : public Interface {
 public:
  enum class Result : int {  // NCCL's own numbers
    success = 0,
    unhandled_cuda_error = 1,
    system_error = 2,
    internal_error = 3,
    invalid_argument = 4,
    invalid_usage = 5,
    remote_error = 6,
    in_progress = 7
  };
  using UniqueId = std::array<char, 128>;
  struct Opaque;
  using Comm = Opaque*;  // an ncclComm_t

  virtual std::string version() = 0;  // "2.28.9"
  /// Whether kernels of several communicators start in the order of their calls, whatever their
  /// queues. Asked once, before the first communicator.
  virtual bool orders_launches() = 0;
  /// Whether `split` works: from NCCL 2.18 on.
  virtual bool splits() = 0;
  /// NCCL's text for a result, and that of its last error where there is one.
  virtual std::string describe(Result result, Comm comm) = 0;

  virtual Result get_unique_id(UniqueId& id) = 0;
  virtual Result init(Comm& comm, int size, const UniqueId& id, int rank) = 0;
  /// Communicators of the ranks that pass the same `color`, ordered by `key`. Collective over
  /// `parent`, which has no operation under way. `color` −1: this rank gets none. After
  /// `in_progress` the parent's async_error gives the outcome, and only then is `comm` set: it must
  /// stay where it is. The communicators of a parent share its resources with it: NCCL runs their
  /// operations on this rank one after another, in the order of the calls, and an abort of one may
  /// end the work of all.
  virtual Result split(Comm parent, int color, int key, Comm& comm) = 0;
  /// Whether the next two work: from NCCL 2.19 on.
  virtual bool registers() = 0;
  /// Registers memory with a communicator that is not in progress. Memory of cudaMalloc gains on
  /// networks (fewer copies and, with SHARP, fewer kernels); NCCL moves it inside a node as before,
  /// unless NCCL_LEGACY_CUDA_REGISTER=1. All of it gains if ncclMemAlloc allocated it. But then
  /// every buffer of a device, below this module, would come from NCCL, in units of 2 MiB or more
  /// that the ledger and `trireme plan` do not count.
  virtual Result register_memory(Comm comm, void* data, std::size_t bytes, void*& registered) = 0;
  virtual Result deregister_memory(Comm comm, void* registered) = 0;
  virtual Result async_error(Comm comm, Result& state) = 0;
  virtual Result finalize(Comm comm) = 0;  // once all its work is done
  virtual Result destroy(Comm comm) = 0;   // after finalize
  virtual Result abort(Comm comm) = 0;     // ends its work wherever it is, and frees it

  virtual Result group_start() = 0;
  virtual Result group_end() = 0;
  virtual Result send(const void* from, std::size_t bytes, int peer, Comm comm, void* queue) = 0;
  virtual Result receive(void* to, std::size_t bytes, int peer, Comm comm, void* queue) = 0;
  virtual Result all_gather(const void* from, void* to, std::size_t bytes_of_one, Comm comm,
                            void* queue) = 0;
  virtual Result broadcast(void* data, std::size_t bytes, int root, Comm comm, void* queue) = 0;
  // Sums, in an order of the library's choice.
  virtual Result all_reduce(void* data, std::size_t count, DType type, Comm comm, void* queue) = 0;
  virtual Result reduce_scatter(const void* from, void* to, std::size_t count_of_one, DType type,
                                Comm comm, void* queue) = 0;
  virtual Result reduce(const void* from, void* to, std::size_t count, DType type, int root,
                        Comm comm, void* queue) = 0;
};

/// Whether this program has NCCL, and NCCL itself. Throws Error where it has not.
bool nccl_built_in();
NcclApi& nccl_library();

struct NcclOptions {
  /// NCCL adds fp32, fp64 and int64, in an order of its choice. Otherwise, and for all else (16-bit
  /// types, which it would round at every step, and maxima, in which it loses NaN), contributions
  /// are moved and added on the device in communicator.hpp's tree.
  bool library_sums = false;
  /// Device memory for contributions under way, of each group that adds itself.
  std::size_t scratch = std::size_t{64} << 20;
  /// How long a communicator may take to begin and to end, and between two looks at its errors.
  std::chrono::milliseconds patience{300'000}, period{100};
  /// For tests on one GPU: a group of one rank has an NCCL communicator too.
  bool alone = false;
};

/// The order in which a rank hands its operations to NCCL: that of the calls, whatever their groups
/// and streams. NCCL's kernels occupy the device until their peers' have come; where two groups'
/// kernels start in a different order on each rank, each rank may wait for the other forever. Ranks
/// that call in consistent orders do not. Any thread may call.
class LaunchOrder {
 public:
  using Ticket = std::uint64_t;
  /// For the next operation, which the caller enqueues on `stream` at once. One thread enqueues on
  /// a stream.
  Ticket take(device::Stream& stream);
  /// Whether all earlier operations than the one on `stream` have left; else polls the stream of
  /// the first of them.
  bool is_turn(Ticket ticket, const device::Stream& stream);
  /// The operation has been queued on the device up to `end`, or will not be (null). Once for each.
  void leave(Ticket ticket, std::shared_ptr<device::Fence> end);
  /// Where the last operation that left ends; null: nowhere.
  std::shared_ptr<device::Fence> last_end();

 private:
  struct Entry {
    Ticket ticket = 0;
    device::Stream* stream = nullptr;
  };
  // Recursive: an operation that is polled for another one leaves under the other's lock, which
  // keeps its stream alive.
  std::recursive_mutex mutex_;
  Ticket next_ = 0;
  std::deque<Entry> waiting_;
  bool polling_ = false;
  std::shared_ptr<device::Fence> last_end_;
};

class NcclHandle;  // src/comm/nccl_handle.hpp

/// What groups of one key of the configuration are split from.
struct NcclSplit {
  Communicator& world;  // the parent's ranks
  int color = 0;        // the same for the ranks of a group, and for no others; not negative
};

/// What the NCCL communicators of one rank share: the library, the device of `ledger`, and a thread
/// that looks for asynchronous errors. Such an error, like one of a call, aborts all communicators,
/// so that no work on the device hangs, and is reported to the device (device::Device::fail):
/// whoever next waits for the device, or uses that group, gets an Error that names rank, group,
/// operation and NCCL's reason. Outlives the communicators.
class NcclRuntime {
 public:
  NcclRuntime(NcclApi& api, device::MemoryLedger& ledger, const NcclOptions& options = {});
  NcclRuntime(const NcclRuntime&) = delete;
  NcclRuntime& operator=(const NcclRuntime&) = delete;
  ~NcclRuntime();

  /// A communicator over the ranks of `mpi`, collective over them. `mpi` serves agreement and
  /// streams of the host; NCCL serves streams of the device. A group's operations run on the device
  /// one after another, whatever their streams: a rank that waits in one for what another rank does
  /// in a later one waits forever. Those of several groups start in the order of their calls
  /// (LaunchOrder), which ranks must make in consistent orders. `name` ("data") and `key`, the
  /// configuration's ("comm.data"), are for errors. A group of one rank is `mpi` itself, unless
  /// options().alone.
  std::unique_ptr<Communicator> make(std::unique_ptr<Communicator> mpi, const std::string& name,
                                     const std::string& key);
  /// The same by a split: collective over split.world, of which every rank has a GPU of its own,
  /// before any operation. The groups of one `key` have one parent, made with the first of them,
  /// and share its resources. So they run one after another on the device, which costs
  /// little: they pass from one stream, or the next operation needs them. Groups of two keys may
  /// overlap. NCCL keeps the order of the calls on each rank, so sharing needs what LaunchOrder
  /// gives: consistent orders on all ranks. The groups end before the runtime, which ends the
  /// parents.
  std::unique_ptr<Communicator> make(std::unique_ptr<Communicator> mpi, const std::string& name,
                                     const std::string& key, const NcclSplit& split);

  /// Of two ranks, for messages from one to the other alone, in one order on both. They wait on the
  /// device for no other group's operations, nor these for them: a receive may be queued long
  /// before what lets its peer send. So the device must have room for them beside all else. NCCL
  /// connects the two in their first message, in which each side waits for the other and no later
  /// operation of the rank is called: it is sent here, by the rank that `sends`.
  std::unique_ptr<Communicator> make_pair(std::unique_ptr<Communicator> mpi,
                                          const std::string& name, const std::string& key,
                                          bool sends);

  /// Aborts all communicators, whose work on the device then ends, and fails the device with `why`.
  /// To be called while an exception is handled: what it destroys waits for the device.
  void abandon(const std::exception_ptr& why) noexcept;

  /// The first refusal to register memory; empty where there was none.
  std::string refusal();
  void note_refusal(const std::string& text);
  NcclApi& api() const { return api_; }
  device::MemoryLedger& ledger() const { return ledger_; }
  const NcclOptions& options() const { return options_; }
  std::mutex& issuing() { return issuing_; }  // held around calls: one thread at a time makes them
  LaunchOrder& order() { return order_; }
  /// Whether an operation must wait on the device for the end of the one before it.
  bool in_turns() const { return in_turns_; }
  /// Communicators that are looked after.
  void add(NcclHandle& handle);
  void remove(NcclHandle& handle);
  /// As abandon, on the runtime's thread and from wherever a communicator is held.
  void abandon_soon(const std::exception_ptr& why) noexcept;

 private:
  void run();
  void abandon_all(const std::exception_ptr& why) noexcept;  // under mutex_
  NcclApi& api_;
  device::MemoryLedger& ledger_;
  NcclOptions options_;
  std::mutex issuing_;
  LaunchOrder order_;
  bool in_turns_;
  std::mutex mutex_;
  std::condition_variable condition_;
  std::vector<NcclHandle*> handles_;  // parents before what was split from them
  bool stop_ = false;
  std::mutex news_;                                             // taken last, and for a moment
  std::exception_ptr failed_;                                   // by which all are to be abandoned
  std::string refusal_;                                         // under news_
  std::map<std::string, std::unique_ptr<NcclHandle>> parents_;  // by key
  std::thread thread_;                                          // asleep without a communicator
};

/// Bytes of the device that a group of `size` ranks enters in the ledger once it has itself added
/// tensors of at most `largest` bytes (as comm::scratch_bytes).
std::size_t nccl_scratch_bytes(int size, std::size_t largest, const NcclOptions& options = {});

}  // namespace trireme::comm
