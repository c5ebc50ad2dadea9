#include "trireme/comm/mpi_communicator.hpp"

#include <algorithm>
#include <bit>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "trireme/comm/session.hpp"

#include "operations.hpp"

namespace trireme::comm {
namespace {

/// Blocks of a device's staging memory that operations take and give back. It grows to what is in
/// use at once and is entered in the ledger as communication. Thread-safe.
class StagingPool {
 public:
  explicit StagingPool(device::MemoryLedger& ledger) : ledger_(ledger) {}
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;
  ~StagingPool() {
    for (const auto& [block, bytes] : sizes_) {
      ledger_.device().release_staging(block);
      ledger_.add(device::Use::communication, -static_cast<std::int64_t>(bytes));
    }
  }
  /// `bytes` of staging memory of the ledger's device. Throws Error where there is not so much.
  std::byte* take(std::size_t bytes) {
    // Powers of two, so that blocks fit what comes later.
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
    const std::lock_guard lock(mutex_);
    if (const auto found = free_.find(size); found != free_.end()) {
      std::byte* const block = found->second;
      free_.erase(found);
      return block;
    }
    auto* const block = static_cast<std::byte*>(ledger_.device().allocate_staging(size));
    if (block == nullptr) {
      throw Error("memory: {} bytes to stage a message: the system has not that much", size);
    }
    sizes_.emplace(block, size);
    ledger_.add(device::Use::communication, static_cast<std::int64_t>(size));
    return block;
  }
  void give_back(std::byte* block) {
    const std::lock_guard lock(mutex_);
    free_.emplace(sizes_.at(block), block);
  }

 private:
  device::MemoryLedger& ledger_;
  std::mutex mutex_;
  std::multimap<std::size_t, std::byte*> free_;  // by size
  std::map<std::byte*, std::size_t> sizes_;      // of all blocks
};

/// An operation of the host between copies from and to the device.
class StagedOperation final : public device::Operation {
 public:
  StagedOperation(std::unique_ptr<device::Operation> inner, device::Queue& queue,
                  std::vector<LocalCopy> in, std::vector<LocalCopy> out,
                  std::shared_ptr<StagingPool> pool, std::vector<std::byte*> blocks)
      : inner_(std::move(inner)),
        queue_(queue),
        in_(std::move(in)),
        out_(std::move(out)),
        pool_(std::move(pool)),
        blocks_(std::move(blocks)) {}
  ~StagedOperation() override {
    inner_.reset();
    finish_copies();
    for (std::byte* block : blocks_) pool_->give_back(block);
  }

  void start() override { run(in_); }
  bool test() override {
    if (phase_ == Phase::in) {
      if (fence_ && !fence_->reached()) return false;
      inner_->start();
      phase_ = Phase::inner;
    }
    if (phase_ == Phase::inner) {
      if (!inner_->test()) return false;
      run(out_);
      phase_ = Phase::out;
    }
    return !fence_ || fence_->reached();
  }
  std::uint64_t steps() const override {
    return inner_->steps() + static_cast<std::uint64_t>(phase_);
  }

 private:
  enum class Phase : std::uint8_t { in, inner, out };
  /// Where the operation was dropped, the device may still be copying; it waits for nobody.
  void finish_copies() noexcept {
    try {
      while (fence_ && !fence_->reached()) std::this_thread::yield();
    } catch (...) {  // NOLINT(bugprone-empty-catch): a device that has failed copies no more
    }
  }
  void run(const std::vector<LocalCopy>& copies) {
    for (const LocalCopy& copy : copies) copy.run(queue_);
    fence_ = queue_.fence();
  }
  std::unique_ptr<device::Operation> inner_;
  device::Queue& queue_;
  std::vector<LocalCopy> in_, out_;
  std::shared_ptr<StagingPool> pool_;
  std::vector<std::byte*> blocks_;
  std::shared_ptr<device::Fence> fence_;
  Phase phase_ = Phase::in;
};

/// The tensors of one operation, staged. Where the stream's device is the host, or MPI reads the
/// device's memory itself (`direct`), they are staged as themselves.
class Staging {
 public:
  Staging(const std::shared_ptr<StagingPool>& pool, device::Stream& stream, bool direct)
      : pool_(pool), stream_(stream), direct_(direct || stream.device().is_host()) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    for (std::byte* block : blocks_) pool_->give_back(block);
  }
  /// Where the staged tensors are.
  Place place() const {
    if (direct_) return {stream_.device(), stream_.queue()};
    return {device::host_device(), device::host_device()};
  }
  /// `tensor` in host memory, contiguous, with its values when the operation begins.
  Tensor bring(const Tensor& tensor) {
    const Tensor staged = staging_memory(tensor);
    if (!direct_) in_.push_back({bytes_of(staged), bytes_of(tensor), tensor.bytes()});
    return staged;
  }
  /// Host memory for `tensor`, which gets what is there when the operation has ended.
  Tensor output_for(const Tensor& tensor) {
    const Tensor staged = staging_memory(tensor);
    take_away(tensor, staged);
    return staged;
  }
  /// After the operation, `staged` is copied to `to`.
  void take_away(const Tensor& to, const Tensor& staged) {
    if (!direct_) out_.push_back({bytes_of(to), bytes_of(staged), to.bytes()});
  }
  /// Enqueues the operation, on the staged tensors, between its copies.
  device::Event enqueue(std::unique_ptr<device::Operation> operation) {
    if (direct_) return stream_.enqueue(std::move(operation));
    return stream_.enqueue(std::make_unique<StagedOperation>(
        std::move(operation), stream_.queue(), std::exchange(in_, {}), std::exchange(out_, {}),
        pool_, std::exchange(blocks_, {})));
  }

 private:
  Tensor staging_memory(const Tensor& tensor) {
    if (direct_) return tensor;
    blocks_.push_back(pool_->take(tensor.bytes()));
    return {blocks_.back(), tensor.type(), tensor.shape()};
  }
  std::shared_ptr<StagingPool> pool_;
  device::Stream& stream_;
  bool direct_;
  std::vector<std::byte*> blocks_;
  std::vector<LocalCopy> in_, out_;
};

class MpiCommunicator : public Communicator {
 public:
  /// `scratch` bytes are taken at once; the rest when a reduction needs it.
  MpiCommunicator(std::shared_ptr<MpiHandle> handle, device::MemoryLedger& ledger,
                  std::size_t scratch, const DeviceMessages& messages)
      : ledger_(ledger), handle_(std::move(handle)), pool_(std::make_shared<StagingPool>(ledger)) {
    group_.comm = handle_->comm();
    group_.rank = handle_->rank();
    group_.size = handle_->size();
    group_.first_tag = handle_->take_channel();
    group_.traffic = &counter_;
    group_.messages = messages;
    group_.scratch = [this](device::Device& device, std::size_t bytes) {
      device::Buffer& buffer = device.is_host() ? scratch_ : device_scratch_;
      if (buffer.bytes() < bytes) {
        buffer = device::Buffer();  // never both at once
        buffer = device::Buffer(ledger_, device::Use::communication, bytes, device);
      }
      return buffer.data();
    };
    if (scratch > 0) group_.scratch(device::host_device(), scratch);
  }
  void set_agreement(std::unique_ptr<MpiCommunicator> agreement) {
    agreement_ = std::move(agreement);
  }

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

 protected:
  device::Event start_reduction(SliceReduction reduction, device::Stream& stream) override;
  device::Event start_gather(const Tensor& output, const Tensor& input,
                             const std::vector<std::int64_t>& begins,
                             device::Stream& stream) override;
  device::Event start_broadcast(const Tensor& data, int root, device::Stream& stream) override;
  device::Event start_exchange(OperationKind kind, std::vector<Message> messages,
                               device::Stream& stream) override;
  Communicator& agreement() override {
    if (agreement_) return *agreement_;
    return *this;
  }

 private:
  device::MemoryLedger& ledger_;
  std::shared_ptr<MpiHandle> handle_;
  device::Buffer scratch_, device_scratch_;
  std::shared_ptr<StagingPool> pool_;  // where streams are those of a device
  Group group_;
  std::unique_ptr<MpiCommunicator> agreement_;
};

device::Event MpiCommunicator::start_reduction(SliceReduction job, device::Stream& stream) {
  Staging staging(pool_, stream, group_.messages.direct);
  if (job.gather) {
    const Tensor data = std::exchange(job.data, staging.bring(job.data));
    job.output = job.data.slice(0, job.begins[rank()], job.begins[rank() + 1]);
    staging.take_away(data, job.data);
  } else {
    job.data = staging.bring(job.data);
    job.output = staging.output_for(job.output);
  }
  return staging.enqueue(make_reduction(group_, staging.place(), std::move(job)));
}

device::Event MpiCommunicator::start_gather(const Tensor& output, const Tensor& input,
                                            const std::vector<std::int64_t>& begins,
                                            device::Stream& stream) {
  Staging staging(pool_, stream, group_.messages.direct);
  const Tensor from = staging.bring(input), to = staging.output_for(output);
  const auto element = static_cast<std::int64_t>(size_of(output.type()));
  return staging.enqueue(
      make_exchange(group_, staging.place(), OperationKind::all_gather,
                    gather_parts(*this, bytes_of(to), bytes_of(from), begins, element),
                    {{bytes_of(to) + begins[rank()] * element, bytes_of(from), from.bytes()}}));
}

device::Event MpiCommunicator::start_broadcast(const Tensor& data, int root,
                                               device::Stream& stream) {
  Staging staging(pool_, stream, group_.messages.direct);
  const Tensor staged = rank() == root ? staging.bring(data) : staging.output_for(data);
  return staging.enqueue(make_broadcast(group_, staging.place(), staged, root));
}

device::Event MpiCommunicator::start_exchange(OperationKind kind, std::vector<Message> messages,
                                              device::Stream& stream) {
  Staging staging(pool_, stream, group_.messages.direct);
  for (Message& message : messages) {
    message.data = message.send ? staging.bring(message.data) : staging.output_for(message.data);
  }
  std::vector<LocalCopy> copies = take_own_messages(messages, rank());
  return staging.enqueue(
      make_exchange(group_, staging.place(), kind, parts_of(messages), std::move(copies)));
}

/// What the conveniences reduce: one number.
std::size_t agreement_scratch(int size) { return reduce_scratch_bytes(size, sizeof(std::int64_t)); }

}  // namespace

MpiHandle::MpiHandle(MPI_Comm comm) : comm_(comm) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

MpiHandle::~MpiHandle() {
  // Freeing is collective: a rank that fails alone must reach its abort instead.
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

int MpiHandle::take_channel() {
  constexpr int largest_tag = 32767;  // the least that MPI_TAG_UB may be (MPI 3.1, 8.1.2)
  const int first = channels_++ * tags_per_channel;
  TRIREME_ASSERT(first + tags_per_channel <= largest_tag, "channel {} of one group", channels_);
  return first;
}

std::size_t scratch_bytes(int size, std::size_t largest) {
  if (size == 1) return 0;
  const auto ranks = static_cast<std::size_t>(size);
  return agreement_scratch(size) + reduce_scratch_bytes(size, (largest + ranks - 1) / ranks);
}

std::unique_ptr<Communicator> make_mpi_communicator(const std::shared_ptr<MpiHandle>& handle,
                                                    device::MemoryLedger& ledger,
                                                    const DeviceMessages& messages) {
  if (handle->size() == 1) return make_self_communicator();
  auto result = std::make_unique<MpiCommunicator>(handle, ledger, 0, messages);
  result->set_agreement(std::make_unique<MpiCommunicator>(
      handle, ledger, agreement_scratch(handle->size()), DeviceMessages{}));
  return result;
}

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, device::MemoryLedger& ledger,
                                                    const DeviceMessages& messages) {
  int size = 0;
  mpi_check(MPI_Comm_size(parent, &size), "MPI_Comm_size");
  if (size == 1) return make_self_communicator();
  MPI_Comm own = MPI_COMM_NULL;
  mpi_check(MPI_Comm_dup(parent, &own), "MPI_Comm_dup");
  return make_mpi_communicator(std::make_shared<MpiHandle>(own), ledger, messages);
}

}  // namespace trireme::comm
