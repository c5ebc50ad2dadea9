#include <utility>

#include "trireme/comm/shared.hpp"

#include "local.hpp"
#include "shared_operations.hpp"

namespace trireme::comm {
namespace {

/// All-reduces of at most so many bytes are added whole by every rank: one round instead of two.
constexpr std::size_t whole_at_most = std::size_t{32} << 10;

class SharedCommunicator final : public BesideMpi {
 public:
  SharedCommunicator(std::unique_ptr<Communicator> mpi, std::span<std::byte* const> areas)
      : BesideMpi(std::move(mpi)) {
    group_.rank = rank();
    group_.size = size();
    group_.traffic = &counter_;
    for (std::byte* const area : areas) {
      group_.boards.push_back(reinterpret_cast<Board*>(area));
    }
    TRIREME_ASSERT(static_cast<int>(areas.size()) == group_.size, "{} areas for {} ranks",
                   areas.size(), group_.size);
  }

 protected:
  Communicator& carrier(const device::Stream& stream) override {
    if (stream.device().is_host()) return *this;
    return *mpi_;
  }
  device::Event start_reduction(SliceReduction job, device::Stream& stream) override {
    if (job.gather && job.data.bytes() <= whole_at_most) {
      return stream.enqueue(std::make_unique<SharedWholeReduce>(group_, std::move(job)));
    }
    return stream.enqueue(std::make_unique<SharedReduce>(group_, std::move(job)));
  }
  device::Event start_gather(const Tensor& output, const Tensor& input,
                             const std::vector<std::int64_t>& begins,
                             device::Stream& stream) override {
    return stream.enqueue(std::make_unique<SharedGather>(group_, output, input, begins));
  }
  device::Event start_broadcast(const Tensor& data, int root, device::Stream& stream) override {
    return stream.enqueue(std::make_unique<SharedBroadcast>(group_, data, root));
  }
  device::Event start_all_to_all(const Tensor& output, const Tensor& input,
                                 device::Stream& stream) override {
    return mpi_->all_to_all(output, input, stream);
  }
  device::Event start_exchange(std::vector<Message> messages, device::Stream& stream) override {
    return mpi_->exchange(std::move(messages), stream);
  }

 private:
  SharedGroup group_;
};

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
