// What communicators have in common: copies within a rank's memory, and a base of those that leave
// some operations to MPI.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

struct LocalCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;

  void run(device::Queue& queue) const {
    if (bytes > 0 && to != from) queue.copy(to, from, bytes);
  }
};

/// The messages of `rank` to itself, sends and receives paired in order; they are taken out of
/// `messages`.
std::vector<LocalCopy> take_own_messages(std::vector<Communicator::Message>& messages, int rank);

/// A group beside an MPI communicator of the same ranks, which takes what the group does not.
class BesideMpi : public Communicator {
 public:
  int rank() const override { return mpi_->rank(); }
  int size() const override { return mpi_->size(); }
  TrafficByKind traffic() const override {
    TrafficByKind sum = counter_.read();
    return sum += mpi_->traffic();
  }
  void reset_traffic() override {
    counter_.reset();
    mpi_->reset_traffic();
  }

 protected:
  explicit BesideMpi(std::unique_ptr<Communicator> mpi) : mpi_(std::move(mpi)) {}
  Communicator& agreement() override { return agreement_of(*mpi_); }
  std::unique_ptr<Communicator> mpi_;
};

}  // namespace trireme::comm
