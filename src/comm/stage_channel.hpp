// A pipeline's channel with a communicator of its own for each link between two stages.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common.hpp"

namespace trireme::comm {

/// Messages pass through the channel that it is made from until links are added, and then each
/// through the communicator of its link. Carries exchanges of one message.
class StageChannel final : public BesideMpi {
 public:
  explicit StageChannel(std::unique_ptr<Communicator> mpi) : BesideMpi(std::move(mpi)) {}
  StageChannel(const StageChannel&) = delete;
  StageChannel& operator=(const StageChannel&) = delete;
  /// A group ends when both its ranks end it, so in the order in which they were added.
  ~StageChannel() override {
    for (auto& pair : pairs_) pair.reset();
  }
  bool has(int peer, bool send) const { return place_.count({peer, send}) > 0; }
  /// `pair`: of this rank and `peer`, for what it sends to the peer, or receives from it.
  void add(int peer, bool send, std::unique_ptr<Communicator> pair) {
    place_[{peer, send}] = pairs_.size();
    pairs_.push_back(std::move(pair));
  }
  TrafficByKind traffic() const override {
    TrafficByKind sum = BesideMpi::traffic();
    for (const auto& pair : pairs_) sum += pair->traffic();
    return sum;
  }
  void reset_traffic() override {
    BesideMpi::reset_traffic();
    for (const auto& pair : pairs_) pair->reset_traffic();
  }

 protected:
  Communicator& carrier(const device::Stream& stream) override {
    return stream.device().is_host() ? *mpi_ : static_cast<Communicator&>(*this);
  }
  device::Event start_exchange(OperationKind kind, std::vector<Message> messages,
                               device::Stream& stream) override {
    if (place_.empty()) return mpi_->exchange(std::move(messages), stream, kind);
    TRIREME_ASSERT(messages.size() == 1, "{} messages at once between stages", messages.size());
    Message message = messages.front();
    const auto place = place_.find({message.peer, message.send});
    TRIREME_ASSERT(place != place_.end(), "no link between stages {} and {}", rank(), message.peer);
    Communicator& pair = *pairs_[place->second];
    message.peer = 1 - pair.rank();
    return pair.exchange({message}, stream, kind);
  }
  device::Event start_reduction(SliceReduction, device::Stream&) override { refuse(); }
  device::Event start_gather(const Tensor&, const Tensor&, const std::vector<std::int64_t>&,
                             device::Stream&) override {
    refuse();
  }
  device::Event start_broadcast(const Tensor&, int, device::Stream&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw Error("comm: a channel between stages carries messages alone");
  }
  std::map<std::pair<int, bool>, std::size_t> place_;  // by peer and whether this rank sends
  std::vector<std::unique_ptr<Communicator>> pairs_;   // as they were added
};

}  // namespace trireme::comm
