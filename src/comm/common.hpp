// What communicators have in common: how the elements of a tensor are divided among the ranks of a
// group, copies within a rank's memory, and a base of those that leave some operations to MPI.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

inline std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data()); }

/// Where each of `size` slices of `elements` begins, cut as evenly as they go, and where the last
/// one ends.
inline std::vector<std::int64_t> even_slices(std::int64_t elements, int size) {
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank <= size; ++rank) {
    begins.push_back(elements / size * rank + elements % size * rank / size);
  }
  return begins;
}

/// The same of slices of `counts` elements.
inline std::vector<std::int64_t> slices_of(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> begins(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
  return begins;
}

/// Elements of the longest slice.
inline std::int64_t longest_slice(const std::vector<std::int64_t>& begins) {
  std::int64_t most = 0;
  for (std::size_t r = 0; r + 1 < begins.size(); ++r) {
    most = std::max(most, begins[r + 1] - begins[r]);
  }
  return most;
}

/// Elements of `data`.
struct Stretch {
  std::int64_t begin = 0, count = 0;
};

/// A reduction of slices: rank r gets slice r, elements [begins[r], begins[r + 1]) of `data`.
struct SliceReduction {
  Tensor data, output;  // of one dimension; the output is this rank's, and may be its slice
  std::vector<std::int64_t> begins;
  Reduction reduction = Reduction::sum;
  bool gather = false;  // everyone gets all slices, in `data`; the output is this rank's slice

  OperationKind kind() const {
    return gather ? OperationKind::all_reduce : OperationKind::reduce_scatter;
  }
  DType type() const { return data.type(); }
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(type())); }
  std::size_t bytes(std::int64_t count) const {
    return static_cast<std::size_t>(count * element());
  }
  std::byte* at(std::int64_t index) const { return bytes_of(data) + index * element(); }
  std::byte* output_at(std::int64_t index) const { return bytes_of(output) + index * element(); }
  std::int64_t count(int rank) const { return begins[rank + 1] - begins[rank]; }
  std::int64_t longest() const { return longest_slice(begins); }
  /// What piece `piece` of at most `elements` elements holds of a rank's slice.
  Stretch stretch(int rank, std::int64_t piece, std::int64_t elements) const {
    const std::int64_t begin = begins[rank] + piece * elements;
    return {begin, std::clamp<std::int64_t>(begins[rank + 1] - begin, 0, elements)};
  }
  /// Bytes that `rank` sends to others: their slices, and where gathered its own to each of them.
  std::int64_t sent(int rank) const {
    const auto others = static_cast<std::int64_t>(begins.size()) - 2;
    return (begins.back() - count(rank) + (gather ? count(rank) * others : 0)) * element();
  }
};

struct LocalCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;

  void run(device::Queue& queue) const {
    if (bytes > 0 && to != from) queue.copy(to, from, bytes);
  }
};

/// A message of an operation, from or to this rank's memory.
struct Part {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  bool send = false;
};

/// Parts that bring every rank's `own` to its slice of everyone's `whole`, whose slices begin at
/// `begins`, in elements of `element` bytes. Without empty ones.
std::vector<Part> gather_parts(const Communicator& group, std::byte* whole, std::byte* own,
                               const std::vector<std::int64_t>& begins, std::int64_t element);
/// The same of messages to other ranks, with empty ones.
std::vector<Part> parts_of(const std::vector<Communicator::Message>& messages);

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
