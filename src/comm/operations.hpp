// The resumable operations that an MPI communicator enqueues.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <mpi.h>

#include "trireme/comm/communicator.hpp"

#include "local.hpp"
#include "requests.hpp"

namespace trireme::comm {

/// Where an operation stands, and scratch that grows when it must; the operations of a communicator
/// run one after another, so they share it.
struct Group {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::function<std::byte*(std::size_t)> scratch;
};

/// One kind of operation each, so that ranks which enqueue different ones do not mix their
/// messages.
enum Tag : int { contribution = 1, result, gathered, spread, exchanged, grouped };

/// Messages that depend on nothing: all posted at the start.
class ExchangeOperation : public device::Operation {
 public:
  struct Part {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    int peer = 0;
    bool send = false;
  };
  ExchangeOperation(const Group& group, Tag tag, std::vector<Part> parts,
                    std::vector<LocalCopy> copies)
      : requests_(group.comm), tag_(tag), parts_(std::move(parts)), copies_(std::move(copies)) {}
  void start() override;
  bool test() override { return requests_.test(); }

 private:
  Requests requests_;
  Tag tag_;
  std::vector<Part> parts_;
  std::vector<LocalCopy> copies_;
};

/// A binomial tree; pieces travel down it as they arrive.
class BroadcastOperation : public device::Operation {
 public:
  BroadcastOperation(const Group& group, const Tensor& data, int root);
  void start() override;
  bool test() override;
  std::uint64_t steps() const override { return static_cast<std::uint64_t>(forwarded_); }

 private:
  std::size_t piece_bytes(std::int64_t piece) const;
  void forward(std::int64_t piece);

  MPI_Comm comm_;
  std::byte* data_;
  std::size_t bytes_;
  int parent_ = -1;  // −1 at the root
  std::vector<int> children_;
  std::int64_t pieces_ = 0, forwarded_ = 0;
  std::deque<Requests> arriving_;  // one per piece, from piece forwarded_ on
  Requests leaving_;
};

/// Reduce-scatter by direct exchange, followed by an all-gather of the slices where `gather`.
/// Rank r reduces slice r: everyone's contribution to it goes to r's scratch memory, piece by
/// piece, and is added in tree order; a few pieces are under way at once.
class ReduceOperation : public device::Operation {
 public:
  struct Job {
    DType type = DType::f32;
    Reduction reduction = Reduction::sum;
    std::byte* data = nullptr;         // all slices, in rank order
    std::byte* output = nullptr;       // of this rank's slice; the slice itself where in place
    std::vector<std::int64_t> begins;  // of every slice in elements, and the end of the last
    bool gather = false;
  };
  ReduceOperation(const Group& group, Job job);
  void start() override;
  bool test() override;
  std::uint64_t steps() const override { return steps_; }

 private:
  struct Stretch {
    std::int64_t begin = 0, count = 0;  // elements of job_.data
  };
  struct Slot {
    Requests contributions, sends;
  };
  Stretch stretch(int rank, std::int64_t piece) const;
  std::byte* at(std::int64_t element) const { return job_.data + element * element_bytes_; }
  std::byte* scratch(int rank, std::int64_t piece) const;
  Slot& slot(std::int64_t piece) { return slots_[static_cast<std::size_t>(piece) % slots_.size()]; }
  template <class Visit>
  void for_each_peer(std::int64_t piece, const Visit& visit) const;
  void post(std::int64_t piece);
  void reduce(std::int64_t piece);
  void open(std::int64_t piece);
  bool step();

  const Group& group_;
  Job job_;
  std::int64_t element_bytes_;
  std::int64_t piece_elements_ = 1, pieces_ = 0;
  std::byte* scratch_ = nullptr;
  std::vector<Slot> slots_;
  std::deque<Requests> results_;
  // Pieces whose contributions are under way; are added; whose sends are over, so that results may
  // arrive in their place. Each is passed in order.
  std::int64_t posted_ = 0, reduced_ = 0, opened_ = 0;
  std::uint64_t steps_ = 0;
};

/// Bytes of one piece of one contribution, and of all scratch that a reduction whose longest slice
/// has `slice` bytes takes.
std::size_t reduce_piece_bytes(int size);
std::size_t reduce_scratch_bytes(int size, std::size_t slice);

}  // namespace trireme::comm
