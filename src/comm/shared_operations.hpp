// Collectives through rings of slots in shared memory.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/communicator.hpp"

#include "slices.hpp"

namespace trireme::comm {

constexpr std::size_t ring_slots = 4;
constexpr std::size_t slot_bytes = std::size_t{256} << 10;

/// The state of a rank that the others read, at the head of its area; written by its owner alone.
/// The counters only grow, over the whole life of a group: a *round* is one filling of every rank's
/// slot, and round t uses slot t modulo ring_slots. Zeroed memory is the board of a group that has
/// done nothing.
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
  SharedWholeReduce(SharedGroup& group, SliceReduction job);

 private:
  void fill(std::int64_t round) override;
  void drain(std::int64_t round) override;
  std::int64_t elements_of(std::int64_t round) const;

  SliceReduction job_;
  std::int64_t piece_elements_;
};

/// Reduce-scatter, followed by an all-gather of the slices where `gather`. Rank r reduces slice r:
/// a slot has a lane for the contribution to every other rank's slice. Where slices are gathered,
/// the round in which piece p is contributed is followed by that of the results of piece p − 1.
class SharedReduce final : public SharedOperation {
 public:
  SharedReduce(SharedGroup& group, SliceReduction job);

 private:
  struct Turn {
    bool result = false;
    std::int64_t piece = 0;
  };
  bool may_fill(std::int64_t round, std::int64_t drained) const override;
  void fill(std::int64_t round) override;
  void drain(std::int64_t round) override;
  Turn turn(std::int64_t round) const;
  Stretch stretch(int rank, std::int64_t piece) const {
    return job_.stretch(rank, piece, piece_elements_);
  }
  std::byte* lane(int of, int to, std::int64_t round) const;

  SliceReduction job_;
  std::int64_t piece_elements_, pieces_;
};

/// Every rank's bytes to all others.
class SharedGather final : public SharedOperation {
 public:
  /// Rank r's part of `output` is elements [begins[r], begins[r + 1]); `input` is this rank's, at
  /// its place or apart.
  SharedGather(SharedGroup& group, const Tensor& output, const Tensor& input,
               const std::vector<std::int64_t>& begins);

 private:
  void fill(std::int64_t round) override;
  void drain(std::int64_t round) override;
  std::size_t bytes_of_round(int rank, std::int64_t round) const;
  std::byte* output_;
  const std::byte* own_;
  std::vector<std::int64_t> begins_;  // in bytes
};

class SharedBroadcast final : public SharedOperation {
 public:
  SharedBroadcast(SharedGroup& group, const Tensor& data, int root);

 private:
  void fill(std::int64_t round) override;
  bool reads(int peer) const override { return peer == root_ && group_.rank != root_; }
  void drain(std::int64_t round) override;
  std::size_t bytes_of_round(std::int64_t round) const;
  std::byte* at(std::int64_t round) const;
  std::byte* data_;
  std::int64_t bytes_;
  int root_;
};

}  // namespace trireme::comm
