#include <algorithm>

#include "local.hpp"
#include "slices.hpp"

namespace trireme::comm {
namespace {

class CopyOperation : public device::Operation {
 public:
  CopyOperation(std::vector<LocalCopy> copies, device::Queue& queue)
      : copies_(std::move(copies)), queue_(queue) {}
  bool queued() const override { return true; }
  void come_after(device::Fence& fence) override { queue_.follow(fence); }
  void start() override {
    for (const LocalCopy& copy : copies_) copy.run(queue_);
  }
  bool test() override { return true; }
  std::shared_ptr<device::Fence> end() override { return queue_.fence(); }

 private:
  std::vector<LocalCopy> copies_;
  device::Queue& queue_;
};

class SelfCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

 protected:
  device::Event start_reduction(SliceReduction job, device::Stream& stream) override {
    return enqueue(copy(job.output, job.data), stream);
  }
  device::Event start_gather(const Tensor& output, const Tensor& input,
                             const std::vector<std::int64_t>&, device::Stream& stream) override {
    return enqueue(copy(output, input), stream);
  }
  device::Event start_broadcast(const Tensor&, int, device::Stream& stream) override {
    return enqueue({}, stream);
  }
  device::Event start_all_to_all(const Tensor& output, const Tensor& input,
                                 device::Stream& stream) override {
    return enqueue(copy(output, input), stream);
  }
  device::Event start_exchange(std::vector<Message> messages, device::Stream& stream) override {
    return enqueue(take_own_messages(messages, 0), stream);
  }

 private:
  static std::vector<LocalCopy> copy(const Tensor& output, const Tensor& input) {
    return {{bytes_of(output), bytes_of(input), input.bytes()}};
  }
  static device::Event enqueue(std::vector<LocalCopy> copies, device::Stream& stream) {
    return stream.enqueue(std::make_unique<CopyOperation>(std::move(copies), stream.queue()));
  }
};

}  // namespace

std::vector<LocalCopy> take_own_messages(std::vector<Communicator::Message>& messages, int rank) {
  std::vector<Tensor> sent;
  std::vector<Tensor> received;
  const auto own = std::stable_partition(messages.begin(), messages.end(),
                                         [&](const auto& each) { return each.peer != rank; });
  for (auto each = own; each != messages.end(); ++each) {
    (each->send ? sent : received).push_back(each->data);
  }
  messages.erase(own, messages.end());
  TRIREME_ASSERT(sent.size() == received.size(), "{} sends and {} receives of rank {} by itself",
                 sent.size(), received.size(), rank);
  std::vector<LocalCopy> copies;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    TRIREME_ASSERT(sent[i].bytes() == received[i].bytes(), "{} bytes sent, {} expected",
                   sent[i].bytes(), received[i].bytes());
    copies.push_back({bytes_of(received[i]), bytes_of(sent[i]), sent[i].bytes()});
  }
  return copies;
}

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace trireme::comm
