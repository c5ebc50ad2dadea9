// Collectives through rings of slots in shared memory.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "trireme/comm/session.hpp"
#include "trireme/comm/shared.hpp"

#include "common.hpp"

namespace trireme::comm {
namespace {

constexpr std::size_t ring_slots = 4;
constexpr std::int64_t slot_size = 256 << 10;  // bytes
/// All-reduces of at most so many bytes are added whole by every rank: one round instead of two.
constexpr std::size_t whole_at_most = std::size_t{32} << 10;

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
           round % ring_slots * slot_size;
  }
};

std::int64_t pieces(std::int64_t whole, std::int64_t piece) { return (whole + piece - 1) / piece; }

/// Messages that this process has under way elsewhere progress while it is inside MPI, and a rank
/// that waits here may be what another one, for which we wait, waits for.
void let_messages_move() {
  int there = 0;
  mpi_check(MPI_Iprobe(0, MPI_ANY_TAG, MPI_COMM_SELF, &there, MPI_STATUS_IGNORE), "MPI_Iprobe");
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t number) {
  hash = (hash ^ number) * 0x9e3779b97f4a7c15U;
  return hash ^ hash >> 32U;
}

/// Rounds of filling the own slot and reading the others'. A slot is filled again once all others
/// have consumed what it held ring_slots rounds before.
class SharedOperation : public device::Operation {
 public:
  void start() final {
    begin_ = std::chrono::steady_clock::now();
    first_ = group_.rounds;
    ticket_ = mixed(ticket_, group_.operations++);
  }
  bool test() final;
  std::uint64_t steps() const final { return steps_; }

 protected:
  /// `numbers`: what all ranks must have in common.
  SharedOperation(SharedGroup& group, OperationKind kind, const std::vector<std::int64_t>& numbers,
                  std::int64_t rounds, std::int64_t sent)
      : group_(group),
        kind_(kind),
        rounds_(rounds),
        sent_(sent),
        ticket_(mixed(1, static_cast<std::uint64_t>(kind))) {
    for (const std::int64_t number : numbers) {
      ticket_ = mixed(ticket_, static_cast<std::uint64_t>(number));
    }
  }
  /// Whether the own slot's contents are there once `drained` rounds have been read.
  virtual bool may_fill(std::int64_t /*round*/, std::int64_t /*drained*/) const { return true; }
  virtual void fill(std::int64_t round) = 0;
  virtual bool reads(int /*peer*/) const { return true; }
  virtual void drain(std::int64_t round) = 0;  // after it was filled
  std::byte* slot(int rank, std::int64_t round) const {
    return group_.slot(rank, first_ + static_cast<std::uint64_t>(round));
  }
  /// Calls visit(peer) for every other rank, this rank's successor first.
  template <class Visit>
  void for_each_peer(const Visit& visit) const {
    for (int step = 1; step < group_.size; ++step) visit((group_.rank + step) % group_.size);
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

bool SharedOperation::slot_is_free() {
  const std::uint64_t round = first_ + static_cast<std::uint64_t>(filled_);
  if (round < ring_slots) return true;
  for (int peer = 0; peer < group_.size; ++peer) {
    if (peer == group_.rank) continue;
    const std::uint64_t consumed = group_.boards[peer]->consumed.load(std::memory_order_acquire);
    if (consumed < round + 1 - ring_slots) return false;
  }
  return true;
}

bool SharedOperation::has_arrived() {
  const std::uint64_t round = first_ + static_cast<std::uint64_t>(drained_);
  for (int peer = 0; peer < group_.size; ++peer) {
    if (peer == group_.rank || !reads(peer)) continue;
    const Board& board = *group_.boards[peer];
    if (board.published.load(std::memory_order_acquire) <= round) return false;
    const std::uint64_t ticket = board.tickets[round % ring_slots].load(std::memory_order_relaxed);
    if (ticket != ticket_) {
      throw Error(
          "communication: rank {} of the group is not in the {} that rank {} is in, or not with "
          "the same sizes: ranks must agree on every operation and size",
          peer, name_of(kind_), group_.rank);
    }
  }
  return true;
}

bool SharedOperation::step() {
  bool moved = false;
  Board& own = *group_.boards[group_.rank];
  if (filled_ < rounds_ && may_fill(filled_, drained_) && slot_is_free()) {
    const std::uint64_t round = first_ + static_cast<std::uint64_t>(filled_);
    fill(filled_++);
    own.tickets[round % ring_slots].store(ticket_, std::memory_order_relaxed);
    own.published.store(round + 1, std::memory_order_release);
    moved = true;
  }
  if (drained_ < filled_ && has_arrived()) {
    drain(drained_++);
    own.consumed.store(first_ + static_cast<std::uint64_t>(drained_), std::memory_order_release);
    moved = true;
  }
  return moved;
}

bool SharedOperation::test() {
  const std::uint64_t before = steps_;
  while (step()) ++steps_;
  if (drained_ < rounds_) {
    if (steps_ == before) let_messages_move();
    return false;
  }
  group_.rounds = first_ + static_cast<std::uint64_t>(rounds_);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
  group_.traffic->add(kind_, {.bytes = sent_, .operations = 1, .seconds = spent.count()});
  return true;
}

std::vector<std::int64_t> numbers_of(const SliceReduction& job) {
  std::vector<std::int64_t> numbers = job.begins;
  numbers.push_back(static_cast<std::int64_t>(job.type()));
  numbers.push_back(static_cast<std::int64_t>(job.reduction));
  return numbers;
}

/// All-reduce in which everyone reads everything and adds it alone: one round per piece.
class SharedWholeReduce final : public SharedOperation {
 public:
  SharedWholeReduce(SharedGroup& group, SliceReduction job)
      : SharedOperation(group, OperationKind::all_reduce, numbers_of(job),
                        pieces(job.begins.back(), slot_size / job.element()), job.sent(group.rank)),
        job_(std::move(job)),
        piece_elements_(slot_size / job_.element()) {}

 private:
  std::int64_t elements_of(std::int64_t round) const {
    return std::min(piece_elements_, job_.begins.back() - round * piece_elements_);
  }
  void fill(std::int64_t round) override {
    std::memcpy(slot(group_.rank, round), job_.at(round * piece_elements_),
                job_.bytes(elements_of(round)));
  }
  void drain(std::int64_t round) override {
    std::byte* const own = job_.at(round * piece_elements_);
    std::vector<const std::byte*> contributions;
    for (int r = 0; r < group_.size; ++r) {
      contributions.push_back(r == group_.rank ? own : slot(r, round));
    }
    device::reduce_tree(job_.type(), job_.reduction, contributions, own, elements_of(round));
  }

  SliceReduction job_;
  std::int64_t piece_elements_;
};

/// Bytes of a slot for what goes to one other rank.
std::int64_t lane_bytes(int size) { return slot_size / (size - 1) / 64 * 64; }

/// Reduce-scatter, followed by an all-gather of the slices where `gather`. Rank r reduces slice r:
/// a slot has a lane for the contribution to every other rank's slice. Where slices are gathered,
/// the round in which piece p is contributed is followed by that of the results of piece p − 1.
class SharedReduce final : public SharedOperation {
 public:
  SharedReduce(SharedGroup& group, SliceReduction job)
      : SharedOperation(
            group, job.kind(), numbers_of(job),
            pieces(job.longest(), lane_bytes(group.size) / job.element()) * (job.gather ? 2 : 1),
            job.sent(group.rank)),
        job_(std::move(job)),
        piece_elements_(lane_bytes(group.size) / job_.element()),
        pieces_(pieces(job_.longest(), piece_elements_)) {}

 private:
  struct Turn {
    bool result = false;
    std::int64_t piece = 0;
  };
  Turn turn(std::int64_t round) const {
    if (!job_.gather || round == 0) return {false, round};
    if (round == 2 * pieces_ - 1) return {true, pieces_ - 1};
    return round % 2 == 1 ? Turn{false, (round + 1) / 2} : Turn{true, round / 2 - 1};
  }
  Stretch stretch(int rank, std::int64_t piece) const {
    return job_.stretch(rank, piece, piece_elements_);
  }
  std::byte* lane(int of, int to, std::int64_t round) const {
    return slot(of, round) + (to < of ? to : to - 1) * lane_bytes(group_.size);
  }
  bool may_fill(std::int64_t round, std::int64_t drained) const override {
    const Turn now = turn(round);
    if (!now.result) return true;
    // The round of the piece's contributions: 0, 1, 3, 5, …
    return drained > (now.piece == 0 ? 0 : 2 * now.piece - 1);
  }
  void fill(std::int64_t round) override;
  void drain(std::int64_t round) override;

  SliceReduction job_;
  std::int64_t piece_elements_, pieces_;
};

void SharedReduce::fill(std::int64_t round) {
  const Turn now = turn(round);
  if (now.result) {
    const Stretch own = stretch(group_.rank, now.piece);
    if (own.count > 0) {
      std::memcpy(slot(group_.rank, round), job_.output_at(now.piece * piece_elements_),
                  job_.bytes(own.count));
    }
    return;
  }
  for (int peer = 0; peer < group_.size; ++peer) {
    const Stretch theirs = stretch(peer, now.piece);
    if (peer == group_.rank || theirs.count == 0) continue;
    std::memcpy(lane(group_.rank, peer, round), job_.at(theirs.begin), job_.bytes(theirs.count));
  }
}

void SharedReduce::drain(std::int64_t round) {
  const Turn now = turn(round);
  if (now.result) {
    for_each_peer([&](int peer) {
      const Stretch theirs = stretch(peer, now.piece);
      if (theirs.count > 0) {
        std::memcpy(job_.at(theirs.begin), slot(peer, round), job_.bytes(theirs.count));
      }
    });
    return;
  }
  const Stretch own = stretch(group_.rank, now.piece);
  if (own.count == 0) return;
  std::vector<const std::byte*> contributions;
  for (int r = 0; r < group_.size; ++r) {
    contributions.push_back(r == group_.rank ? job_.at(own.begin) : lane(r, group_.rank, round));
  }
  device::reduce_tree(job_.type(), job_.reduction, contributions,
                      job_.output_at(now.piece * piece_elements_), own.count);
}

/// Every rank's bytes [begins[r], begins[r + 1]) of `output` to all others; those of `own` are this
/// rank's, at their place or apart. A broadcast is a gather to which only the root has something to
/// give.
class SharedGather final : public SharedOperation {
 public:
  SharedGather(SharedGroup& group, OperationKind kind, const std::byte* own, std::byte* output,
               std::vector<std::int64_t> begins)
      : SharedOperation(group, kind, begins, pieces(longest_slice(begins), slot_size),
                        (begins[group.rank + 1] - begins[group.rank]) * (group.size - 1)),
        broadcast_(kind == OperationKind::broadcast),
        own_(own),
        output_(output),
        begins_(std::move(begins)) {}

 private:
  std::size_t bytes_of_round(int rank, std::int64_t round) const {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(
        begins_[rank + 1] - begins_[rank] - round * slot_size, 0, slot_size));
  }
  bool reads(int peer) const override { return !broadcast_ || begins_[peer + 1] > begins_[peer]; }
  void fill(std::int64_t round) override {
    const std::size_t bytes = bytes_of_round(group_.rank, round);
    if (bytes == 0) return;
    const std::byte* from = own_ + round * slot_size;
    std::byte* place = output_ + begins_[group_.rank] + round * slot_size;
    std::memcpy(slot(group_.rank, round), from, bytes);
    if (place != from) std::memcpy(place, from, bytes);
  }
  void drain(std::int64_t round) override {
    for_each_peer([&](int peer) {
      const std::size_t bytes = bytes_of_round(peer, round);
      if (bytes > 0) {
        std::memcpy(output_ + begins_[peer] + round * slot_size, slot(peer, round), bytes);
      }
    });
  }
  bool broadcast_;
  const std::byte* own_;
  std::byte* output_;
  std::vector<std::int64_t> begins_;
};

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
    std::vector<std::int64_t> in_bytes = begins;
    for (std::int64_t& begin : in_bytes) begin *= static_cast<std::int64_t>(size_of(output.type()));
    return stream.enqueue(std::make_unique<SharedGather>(
        group_, OperationKind::all_gather, bytes_of(input), bytes_of(output), std::move(in_bytes)));
  }
  device::Event start_broadcast(const Tensor& data, int root, device::Stream& stream) override {
    std::vector<std::int64_t> begins(static_cast<std::size_t>(size()) + 1, 0);
    std::fill(begins.begin() + root + 1, begins.end(), static_cast<std::int64_t>(data.bytes()));
    return stream.enqueue(std::make_unique<SharedGather>(
        group_, OperationKind::broadcast, bytes_of(data), bytes_of(data), std::move(begins)));
  }
  device::Event start_exchange(OperationKind kind, std::vector<Message> messages,
                               device::Stream& stream) override {
    return mpi_->exchange(std::move(messages), stream, kind);
  }

 private:
  SharedGroup group_;
};

}  // namespace

std::size_t shared_area_bytes(int size) {
  return size == 1 ? 0 : sizeof(Board) + ring_slots * static_cast<std::size_t>(slot_size);
}

std::unique_ptr<Communicator> make_shared_communicator(std::unique_ptr<Communicator> mpi,
                                                       std::span<std::byte* const> areas) {
  if (mpi->size() == 1) return mpi;
  return std::make_unique<SharedCommunicator>(std::move(mpi), areas);
}

}  // namespace trireme::comm
