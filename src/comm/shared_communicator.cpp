#include <algorithm>
#include <utility>

#include "trireme/comm/shared.hpp"

#include "checks.hpp"
#include "shared_operations.hpp"
#include "slices.hpp"

namespace trireme::comm {
namespace {

/// All-reduces of at most so many bytes are added whole by every rank: one round instead of two.
constexpr std::size_t whole_at_most = std::size_t{32} << 10;

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data()); }

class SharedCommunicator final : public Communicator {
 public:
  SharedCommunicator(std::unique_ptr<Communicator> mpi, std::span<std::byte* const> areas)
      : mpi_(std::move(mpi)) {
    group_.rank = mpi_->rank();
    group_.size = mpi_->size();
    group_.traffic = &counter_;
    for (std::byte* const area : areas) {
      group_.boards.push_back(reinterpret_cast<Board*>(area));
    }
    TRIREME_ASSERT(static_cast<int>(areas.size()) == group_.size, "{} areas for {} ranks",
                   areas.size(), group_.size);
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
                           device::Stream& stream) override {
    return mpi_->all_to_all(output, input, stream);
  }
  device::Event exchange(std::vector<Message> messages, device::Stream& stream) override {
    return mpi_->exchange(std::move(messages), stream);
  }

  TrafficByKind traffic() const override {
    TrafficByKind sum = counter_.read();
    return sum += mpi_->traffic();
  }
  void reset_traffic() override {
    counter_.reset();
    mpi_->reset_traffic();
  }

 protected:
  Communicator& agreement() override { return agreement_of(*mpi_); }

 private:
  std::unique_ptr<Communicator> mpi_;
  SharedGroup group_;
};

device::Event SharedCommunicator::all_reduce(const Tensor& data, Reduction reduction,
                                             device::Stream& stream) {
  if (!stream.device().is_host()) return mpi_->all_reduce(data, reduction, stream);
  checks::reducible(data);
  ReduceOperation::Job job{.type = data.type(),
                           .reduction = reduction,
                           .data = bytes_of(data),
                           .output = bytes_of(data),
                           .begins = even_slices(data.elements(), size()),
                           .gather = true};
  if (data.bytes() <= whole_at_most) {
    return stream.enqueue(std::make_unique<SharedWholeReduce>(group_, job));
  }
  job.output += job.begins[rank()] * static_cast<std::int64_t>(size_of(data.type()));
  return stream.enqueue(std::make_unique<SharedReduce>(group_, job));
}

device::Event SharedCommunicator::reduce_scatter_v(const Tensor& output, const Tensor& input,
                                                   std::span<const std::int64_t> counts,
                                                   Reduction reduction, device::Stream& stream) {
  if (!stream.device().is_host()) {
    return mpi_->reduce_scatter_v(output, input, counts, reduction, stream);
  }
  checks::scatter(output, input, counts, *this);
  const ReduceOperation::Job job{.type = input.type(),
                                 .reduction = reduction,
                                 .data = bytes_of(input),
                                 .output = bytes_of(output),
                                 .begins = slices_of(counts)};
  return stream.enqueue(std::make_unique<SharedReduce>(group_, job));
}

device::Event SharedCommunicator::all_gather_v(const Tensor& output, const Tensor& input,
                                               std::span<const std::int64_t> counts,
                                               device::Stream& stream) {
  if (!stream.device().is_host()) return mpi_->all_gather_v(output, input, counts, stream);
  checks::gather(output, input, counts, *this);
  const auto element = static_cast<std::int64_t>(size_of(output.type()));
  SharedGather::Job job{.places = {}, .bytes = {}, .own = bytes_of(input)};
  std::byte* place = bytes_of(output);
  for (const std::int64_t count : counts) {
    job.places.push_back(place);
    job.bytes.push_back(count * element);
    place += count * element;
  }
  return stream.enqueue(std::make_unique<SharedGather>(group_, std::move(job)));
}

device::Event SharedCommunicator::broadcast(const Tensor& data, int root, device::Stream& stream) {
  if (!stream.device().is_host()) return mpi_->broadcast(data, root, stream);
  checks::dense(data);
  checks::peer(root, *this);
  return stream.enqueue(std::make_unique<SharedBroadcast>(group_, data, root));
}

}  // namespace

std::size_t shared_area_bytes(int size) {
  return size == 1 ? 0 : sizeof(Board) + ring_slots * slot_bytes;
}

std::unique_ptr<Communicator> make_shared_communicator(std::unique_ptr<Communicator> mpi,
                                                       std::span<std::byte* const> areas) {
  if (mpi->size() == 1) return mpi;
  return std::make_unique<SharedCommunicator>(std::move(mpi), areas);
}

}  // namespace trireme::comm
