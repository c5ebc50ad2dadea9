// Collectives through rings of slots in shared memory.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/communicator.hpp"

#include "operations.hpp"

namespace trireme::comm {

constexpr std::size_t ring_slots = 4;
constexpr std::size_t slot_bytes = std::size_t{256} << 10;

/// What a rank tells the others, at the head of its area; written by its owner alone. The counters
/// only grow, over the whole life of a group: a *round* is one filling of every rank's slot, and
/// round t lies in slot t modulo ring_slots. Zeroed memory is a board of a group that has done
/// nothing.
struct Board {
  alignas(64) std::atomic<std::uint64_t> published;  // rounds whose slot it has filled
  alignas(64) std::atomic<std::uint64_t> consumed;   // rounds in which it has read what it needs
  alignas(64) std::array<std::atomic<std::uint64_t>, ring_slots> tickets;  // operation of each slot
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// A group, and how far its operations have come on this rank; they run one after another.
struct SharedGroup {
  int rank = 0, size = 1;
  std::vector<Board*> boards;  // by rank
  TrafficCounter* traffic = nullptr;
  std::uint64_t rounds = 0, operations = 0;  // of operations that have finished; have begun

  std::byte* slot(int of, std::uint64_t round) const {
    return reinterpret_cast<std::byte*>(boards[static_cast<std::size_t>(of)]) + sizeof(Board) +
           round % ring_slots * slot_bytes;
  }
};

/// Rounds of filling the own slot and reading the others'. A slot is filled again once all others
/// have consumed what it held ring_slots rounds before.
class SharedOperation : public device::Operation {
 public:
  void start() final;
  bool test() final;
  std::uint64_t steps() const final { return steps_; }

 protected:
  /// What all ranks must have in common.
  struct Terms {
    OperationKind kind = OperationKind::all_reduce;
    std::vector<std::int64_t> numbers;
  };
  SharedOperation(SharedGroup& group, const Terms& terms, std::int64_t rounds, std::int64_t sent);
  /// Whether the own slot's contents are there once `drained` rounds have been read.
  virtual bool may_fill(std::int64_t round, std::int64_t drained) const {
    static_cast<void>(round), static_cast<void>(drained);
    return true;
  }
  virtual void fill(std::int64_t round) = 0;
  virtual bool reads(int peer) const {
    static_cast<void>(peer);
    return true;
  }
  virtual void drain(std::int64_t round) = 0;  // after it was filled
  std::byte* slot(int rank, std::int64_t round) const {
    return group_.slot(rank, first_ + static_cast<std::uint64_t>(round));
  }
  SharedGroup& group_;

 private:
  bool step();
  bool slot_is_free();
  bool has_arrived();
  OperationKind kind_;
  std::int64_t rounds_, sent_;
  std::uint64_t ticket_;
  std::uint64_t first_ = 0;  // round of the group
  std::int64_t filled_ = 0, drained_ = 0;
  std::uint64_t steps_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

/// All-reduce in which everyone reads everything and adds it alone: one round per piece.
class SharedWholeReduce final : public SharedOperation {
 public:
  SharedWholeReduce(SharedGroup& group, const ReduceOperation::Job& job);

 private:
  void fill(std::int64_t round) override;
  void drain(std::int64_t round) override;
  std::int64_t elements_of(std::int64_t round) const;
  std::byte* at(std::int64_t round) const;

  ReduceOperation::Job job_;
  std::int64_t element_bytes_, piece_elements_;
};

/// Reduce-scatter, followed by an all-gather of the slices where `gather`. Rank r reduces slice r:
/// a slot has a lane for the contribution to every other rank's slice. Where slices are gathered,
/// the round in which piece p is contributed is followed by that of the results of piece p − 1.
class SharedReduce final : public SharedOperation {
 public:
  SharedReduce(SharedGroup& group, const ReduceOperation::Job& job);

 private:
  struct Turn {
    bool result = false;
    std::int64_t piece = 0;
  };
  struct Stretch {
    std::int64_t begin = 0, count = 0;  // elements of job_.data
  };
  bool may_fill(std::int64_t round, std::int64_t drained) const override;
  void fill(std::int64_t round) override;
  void drain(std::int64_t round) override;
  Turn turn(std::int64_t round) const;
  Stretch stretch(int rank, std::int64_t piece) const;
  std::byte* lane(int of, int to, std::int64_t round) const;
  std::byte* output(std::int64_t piece) const {
    return job_.output + piece * piece_elements_ * element_bytes_;
  }
  std::byte* at(std::int64_t element) const { return job_.data + element * element_bytes_; }
  std::size_t bytes(std::int64_t count) const {
    return static_cast<std::size_t>(count * element_bytes_);
  }

  ReduceOperation::Job job_;
  std::int64_t element_bytes_, piece_elements_, pieces_;
};

/// Every rank's bytes to all others.
class SharedGather final : public SharedOperation {
 public:
  /// `places[r]` are the `bytes[r]` of rank r in this rank's output; `own` is what it brings, at
  /// its place or apart.
  struct Job {
    std::vector<std::byte*> places;
    std::vector<std::int64_t> bytes;
    const std::byte* own = nullptr;
  };
  SharedGather(SharedGroup& group, Job job);

 private:
  void fill(std::int64_t round) override;
  void drain(std::int64_t round) override;
  std::size_t bytes_of(int rank, std::int64_t round) const;
  Job job_;
};

class SharedBroadcast final : public SharedOperation {
 public:
  SharedBroadcast(SharedGroup& group, const Tensor& data, int root);

 private:
  void fill(std::int64_t round) override;
  bool reads(int peer) const override { return peer == root_ && group_.rank != root_; }
  void drain(std::int64_t round) override;
  std::size_t bytes_of(std::int64_t round) const;
  std::byte* at(std::int64_t round) const;
  std::byte* data_;
  std::int64_t bytes_;
  int root_;
};

}  // namespace trireme::comm
