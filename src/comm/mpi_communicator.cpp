#include "trireme/comm/mpi_communicator.hpp"

#include <algorithm>
#include <utility>

#include "trireme/comm/session.hpp"

#include "checks.hpp"
#include "mpi_handle.hpp"
#include "operations.hpp"
#include "slices.hpp"
#include "staging.hpp"

namespace trireme::comm {
namespace {

using Part = ExchangeOperation::Part;

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data()); }

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
      device::Buffer& room = device.is_host() ? scratch_ : device_scratch_;
      if (room.bytes() < bytes) {
        room = device::Buffer();  // never both at once
        room = device::Buffer(ledger_, device::Use::communication, bytes, device);
      }
      return room.data();
    };
    if (scratch > 0) group_.scratch(device::host_device(), scratch);
  }
  void set_agreement(std::unique_ptr<MpiCommunicator> agreement) {
    agreement_ = std::move(agreement);
  }

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  using Communicator::all_reduce;
  device::Event all_reduce(const Tensor& data, Reduction reduction,
                           device::Stream& stream) override;
  device::Event reduce_scatter_v(const Tensor& output, const Tensor& input,
                                 std::span<const std::int64_t> counts, Reduction reduction,
                                 device::Stream& stream) override;
  device::Event all_gather_v(const Tensor& output, const Tensor& input,
                             std::span<const std::int64_t> counts, device::Stream& stream) override;
  device::Event broadcast(const Tensor& data, int root, device::Stream& stream) override;
  device::Event all_to_all(const Tensor& output, const Tensor& input,
                           device::Stream& stream) override;
  device::Event exchange(std::vector<Message> messages, device::Stream& stream) override;

 protected:
  Communicator& agreement() override {
    if (agreement_) return *agreement_;
    return *this;
  }

 private:
  /// Calls visit(peer) for every other rank, the successor first.
  template <class Visit>
  void for_each_peer(const Visit& visit) const {
    for (int step = 1; step < group_.size; ++step) visit((group_.rank + step) % group_.size);
  }

  device::MemoryLedger& ledger_;
  std::shared_ptr<MpiHandle> handle_;
  device::Buffer scratch_, device_scratch_;
  std::shared_ptr<StagingPool> pool_;  // where streams are those of a device
  Group group_;
  std::unique_ptr<MpiCommunicator> agreement_;
};

device::Event MpiCommunicator::all_reduce(const Tensor& data, Reduction reduction,
                                          device::Stream& stream) {
  checks::reducible(data);
  Staging staging(pool_, stream, group_.messages.direct);
  const Tensor staged = staging.room(data);
  staging.bring(staged, data);
  staging.take_away(data, staged);
  ReduceOperation::Job job;
  job.type = data.type();
  job.reduction = reduction;
  job.data = bytes_of(staged);
  job.begins = even_slices(data.elements(), size());
  job.output = job.data + job.begins[rank()] * static_cast<std::int64_t>(size_of(data.type()));
  job.gather = true;
  return staging.enqueue(
      std::make_unique<ReduceOperation>(group_, staging.place(), std::move(job)));
}

device::Event MpiCommunicator::reduce_scatter_v(const Tensor& output, const Tensor& input,
                                                std::span<const std::int64_t> counts,
                                                Reduction reduction, device::Stream& stream) {
  checks::scatter(output, input, counts, *this);
  Staging staging(pool_, stream, group_.messages.direct);
  const Tensor from = staging.room(input), to = staging.room(output);
  staging.bring(from, input);
  staging.take_away(output, to);
  ReduceOperation::Job job;
  job.type = input.type();
  job.reduction = reduction;
  job.data = bytes_of(from);
  job.begins = slices_of(counts);
  job.output = bytes_of(to);
  return staging.enqueue(
      std::make_unique<ReduceOperation>(group_, staging.place(), std::move(job)));
}

device::Event MpiCommunicator::all_gather_v(const Tensor& output, const Tensor& input,
                                            std::span<const std::int64_t> counts,
                                            device::Stream& stream) {
  checks::gather(output, input, counts, *this);
  Staging staging(pool_, stream, group_.messages.direct);
  const Tensor to = staging.room(output), from = staging.room(input);
  staging.bring(from, input);
  staging.take_away(output, to);
  const std::size_t element = size_of(output.type());
  std::vector<std::byte*> places;
  std::byte* place = bytes_of(to);
  for (const std::int64_t count : counts) {
    places.push_back(place);
    place += static_cast<std::size_t>(count) * element;
  }
  std::vector<Part> parts;
  for_each_peer([&](int peer) {
    const std::size_t theirs = static_cast<std::size_t>(counts[peer]) * element;
    if (theirs > 0) parts.push_back({places[peer], theirs, peer, false});
    if (from.bytes() > 0) parts.push_back({bytes_of(from), from.bytes(), peer, true});
  });
  return staging.enqueue(std::make_unique<ExchangeOperation>(
      group_, staging.place(), OperationKind::all_gather, std::move(parts),
      std::vector<LocalCopy>{{places[rank()], bytes_of(from), from.bytes()}}));
}

device::Event MpiCommunicator::broadcast(const Tensor& data, int root, device::Stream& stream) {
  checks::dense(data);
  checks::peer(root, *this);
  Staging staging(pool_, stream, group_.messages.direct);
  const Tensor staged = staging.room(data);
  if (rank() == root) {
    staging.bring(staged, data);
  } else {
    staging.take_away(data, staged);
  }
  return staging.enqueue(
      std::make_unique<BroadcastOperation>(group_, staging.place(), staged, root));
}

device::Event MpiCommunicator::all_to_all(const Tensor& output, const Tensor& input,
                                          device::Stream& stream) {
  checks::all_to_all(output, input, *this);
  Staging staging(pool_, stream, group_.messages.direct);
  const Tensor to = staging.room(output), from = staging.room(input);
  staging.bring(from, input);
  staging.take_away(output, to);
  const std::size_t block = input.bytes() / static_cast<std::size_t>(size());
  const auto at = [&](const Tensor& tensor, int r) {
    return bytes_of(tensor) + static_cast<std::size_t>(r) * block;
  };
  std::vector<Part> parts;
  if (block > 0) {
    for_each_peer([&](int peer) {
      parts.push_back({at(to, peer), block, peer, false});
      parts.push_back({at(from, peer), block, peer, true});
    });
  }
  return staging.enqueue(std::make_unique<ExchangeOperation>(
      group_, staging.place(), OperationKind::all_to_all, std::move(parts),
      std::vector<LocalCopy>{{at(to, rank()), at(from, rank()), block}}));
}

device::Event MpiCommunicator::exchange(std::vector<Message> messages, device::Stream& stream) {
  Staging staging(pool_, stream, group_.messages.direct);
  for (Message& message : messages) {
    checks::dense(message.data);
    checks::peer(message.peer, *this);
    const Tensor staged = staging.room(message.data);
    if (message.send) {
      staging.bring(staged, message.data);
    } else {
      staging.take_away(message.data, staged);
    }
    message.data = staged;
  }
  std::vector<LocalCopy> copies = take_own_messages(messages, rank());
  std::vector<Part> parts;
  for (const Message& message : messages) {
    parts.push_back({bytes_of(message.data), message.data.bytes(), message.peer, message.send});
  }
  return staging.enqueue(std::make_unique<ExchangeOperation>(
      group_, staging.place(), OperationKind::exchange, std::move(parts), std::move(copies)));
}

/// What the conveniences reduce: one number.
std::size_t agreement_scratch(int size) { return reduce_scratch_bytes(size, sizeof(std::int64_t)); }

}  // namespace

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
