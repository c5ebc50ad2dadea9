#include "trireme/comm/planned_communicator.hpp"

#include <utility>

#include "common.hpp"

namespace trireme::comm {
namespace {

class PlannedCommunicator final : public Communicator {
 public:
  PlannedCommunicator(int rank, int size, StartPlanned start, bool agrees = false)
      : rank_(rank), size_(size), start_(std::move(start)), agrees_(agrees) {
    if (!agrees) agreement_ = std::make_unique<PlannedCommunicator>(rank, size, start_, true);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

 protected:
  device::Event start_reduction(SliceReduction job, device::Stream& stream) override {
    return enqueue({.kind = job.kind(),
                    .bytes = static_cast<std::int64_t>(job.data.bytes()),
                    .sent = job.sent(rank_)},
                   stream);
  }
  device::Event start_gather(const Tensor& output, const Tensor& input,
                             const std::vector<std::int64_t>&, device::Stream& stream) override {
    return enqueue({.kind = OperationKind::all_gather,
                    .bytes = static_cast<std::int64_t>(output.bytes()),
                    .sent = static_cast<std::int64_t>(input.bytes()) * (size_ - 1)},
                   stream);
  }
  device::Event start_broadcast(const Tensor& data, int root, device::Stream& stream) override {
    const auto bytes = static_cast<std::int64_t>(data.bytes());
    return enqueue({.kind = OperationKind::broadcast,
                    .bytes = bytes,
                    .sent = rank_ == root ? bytes * (size_ - 1) : 0},
                   stream);
  }
  device::Event start_exchange(OperationKind kind, std::vector<Message> messages,
                               device::Stream& stream) override {
    PlannedOperation operation{.kind = kind};
    take_own_messages(messages, rank_);
    for (const Message& message : messages) {
      const auto bytes = static_cast<std::int64_t>(message.data.bytes());
      operation.messages.push_back({message.peer, bytes, message.send});
      if (message.send) operation.sent += bytes;
    }
    return enqueue(std::move(operation), stream);
  }
  Communicator& agreement() override { return agrees_ ? *this : *agreement_; }

 private:
  device::Event enqueue(PlannedOperation operation, device::Stream& stream) {
    operation.agreement = agrees_;
    return stream.enqueue(start_(operation, stream));
  }
  int rank_, size_;
  StartPlanned start_;
  bool agrees_;
  std::unique_ptr<PlannedCommunicator> agreement_;
};

}  // namespace

std::unique_ptr<Communicator> make_planned_communicator(int rank, int size, StartPlanned start) {
  return std::make_unique<PlannedCommunicator>(rank, size, std::move(start));
}

}  // namespace trireme::comm
