#include "shared_operations.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "trireme/comm/session.hpp"
#include "trireme/core/error.hpp"
#include "trireme/device/reduce_tree.hpp"

namespace trireme::comm {
namespace {

constexpr auto slot_size = static_cast<std::int64_t>(slot_bytes);

std::int64_t pieces(std::int64_t whole, std::int64_t piece) { return (whole + piece - 1) / piece; }

std::int64_t longest_slice(const ReduceOperation::Job& job) {
  std::int64_t longest = 0;
  for (std::size_t r = 0; r + 1 < job.begins.size(); ++r) {
    longest = std::max(longest, job.begins[r + 1] - job.begins[r]);
  }
  return longest;
}

/// Bytes of a slot for what goes to one other rank.
std::int64_t lane_bytes(int size) { return slot_size / (size - 1) / 64 * 64; }

std::int64_t element_size(const ReduceOperation::Job& job) {
  return static_cast<std::int64_t>(size_of(job.type));
}

/// Bytes that a rank would send by messages.
std::int64_t sent_by(const ReduceOperation::Job& job, int rank) {
  const std::int64_t own = job.begins[rank + 1] - job.begins[rank];
  const auto others = static_cast<std::int64_t>(job.begins.size()) - 2;
  return (job.begins.back() - own + (job.gather ? own * others : 0)) * element_size(job);
}

std::vector<std::int64_t> numbers_of(const ReduceOperation::Job& job) {
  std::vector<std::int64_t> numbers = job.begins;
  numbers.push_back(static_cast<std::int64_t>(job.type));
  numbers.push_back(static_cast<std::int64_t>(job.reduction));
  return numbers;
}

/// Messages that this process has under way elsewhere progress while it is inside MPI, and a rank
/// that waits here may be what another one, for which we wait, waits for.
void let_messages_move() {
  int there = 0;
  mpi_check(MPI_Iprobe(0, MPI_ANY_TAG, MPI_COMM_SELF, &there, MPI_STATUS_IGNORE), "MPI_Iprobe");
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
  return hash ^ hash >> 32U;
}

}  // namespace

SharedOperation::SharedOperation(SharedGroup& group, const Terms& terms, std::int64_t rounds,
                                 std::int64_t sent)
    : group_(group),
      kind_(terms.kind),
      rounds_(rounds),
      sent_(sent),
      ticket_(mixed(1, static_cast<std::uint64_t>(terms.kind))) {
  for (const std::int64_t number : terms.numbers) {
    ticket_ = mixed(ticket_, static_cast<std::uint64_t>(number));
  }
}

void SharedOperation::start() {
  begin_ = std::chrono::steady_clock::now();
  first_ = group_.rounds;
  ticket_ = mixed(ticket_, group_.operations++);
}

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

SharedWholeReduce::SharedWholeReduce(SharedGroup& group, const ReduceOperation::Job& job)
    : SharedOperation(group, {OperationKind::all_reduce, numbers_of(job)},
                      pieces(job.begins.back(), slot_size / element_size(job)),
                      sent_by(job, group.rank)),
      job_(job),
      element_bytes_(element_size(job)),
      piece_elements_(slot_size / element_bytes_) {}

std::int64_t SharedWholeReduce::elements_of(std::int64_t round) const {
  return std::min(piece_elements_, job_.begins.back() - round * piece_elements_);
}

std::byte* SharedWholeReduce::at(std::int64_t round) const {
  return job_.data + round * piece_elements_ * element_bytes_;
}

void SharedWholeReduce::fill(std::int64_t round) {
  std::memcpy(slot(group_.rank, round), at(round),
              static_cast<std::size_t>(elements_of(round) * element_bytes_));
}

void SharedWholeReduce::drain(std::int64_t round) {
  std::vector<const std::byte*> contributions;
  for (int r = 0; r < group_.size; ++r) {
    contributions.push_back(r == group_.rank ? at(round) : slot(r, round));
  }
  device::reduce_tree(job_.type, job_.reduction, contributions, at(round), elements_of(round));
}

SharedReduce::SharedReduce(SharedGroup& group, const ReduceOperation::Job& job)
    : SharedOperation(
          group,
          {job.gather ? OperationKind::all_reduce : OperationKind::reduce_scatter, numbers_of(job)},
          pieces(longest_slice(job), lane_bytes(group.size) / element_size(job)) *
              (job.gather ? 2 : 1),
          sent_by(job, group.rank)),
      job_(job),
      element_bytes_(element_size(job)),
      piece_elements_(lane_bytes(group.size) / element_bytes_),
      pieces_(pieces(longest_slice(job), piece_elements_)) {}

SharedReduce::Turn SharedReduce::turn(std::int64_t round) const {
  if (!job_.gather || round == 0) return {false, round};
  if (round == 2 * pieces_ - 1) return {true, pieces_ - 1};
  return round % 2 == 1 ? Turn{false, (round + 1) / 2} : Turn{true, round / 2 - 1};
}

SharedReduce::Stretch SharedReduce::stretch(int rank, std::int64_t piece) const {
  const std::int64_t begin = job_.begins[rank] + piece * piece_elements_;
  const std::int64_t count = std::min(piece_elements_, job_.begins[rank + 1] - begin);
  return {begin, std::max<std::int64_t>(count, 0)};
}

std::byte* SharedReduce::lane(int of, int to, std::int64_t round) const {
  return slot(of, round) + (to < of ? to : to - 1) * lane_bytes(group_.size);
}

bool SharedReduce::may_fill(std::int64_t round, std::int64_t drained) const {
  const Turn now = turn(round);
  if (!now.result) return true;
  // The round of the piece's contributions: 0, 1, 3, 5, …
  return drained > (now.piece == 0 ? 0 : 2 * now.piece - 1);
}

void SharedReduce::fill(std::int64_t round) {
  const Turn now = turn(round);
  if (now.result) {
    const Stretch own = stretch(group_.rank, now.piece);
    if (own.count > 0) {
      std::memcpy(slot(group_.rank, round), output(now.piece), bytes(own.count));
    }
    return;
  }
  for (int peer = 0; peer < group_.size; ++peer) {
    const Stretch theirs = stretch(peer, now.piece);
    if (peer == group_.rank || theirs.count == 0) continue;
    std::memcpy(lane(group_.rank, peer, round), at(theirs.begin), bytes(theirs.count));
  }
}

void SharedReduce::drain(std::int64_t round) {
  const Turn now = turn(round);
  if (now.result) {
    for (int step = 1; step < group_.size; ++step) {
      const int peer = (group_.rank + step) % group_.size;
      const Stretch theirs = stretch(peer, now.piece);
      if (theirs.count > 0) {
        std::memcpy(at(theirs.begin), slot(peer, round), bytes(theirs.count));
      }
    }
    return;
  }
  const Stretch own = stretch(group_.rank, now.piece);
  if (own.count == 0) return;
  std::vector<const std::byte*> contributions;
  for (int r = 0; r < group_.size; ++r) {
    contributions.push_back(r == group_.rank ? at(own.begin) : lane(r, group_.rank, round));
  }
  device::reduce_tree(job_.type, job_.reduction, contributions, output(now.piece), own.count);
}

SharedGather::SharedGather(SharedGroup& group, Job job)
    : SharedOperation(group, {OperationKind::all_gather, job.bytes},
                      pieces(*std::max_element(job.bytes.begin(), job.bytes.end()), slot_size),
                      job.bytes[static_cast<std::size_t>(group.rank)] * (group.size - 1)),
      job_(std::move(job)) {}

std::size_t SharedGather::bytes_of(int rank, std::int64_t round) const {
  return static_cast<std::size_t>(
      std::clamp<std::int64_t>(job_.bytes[rank] - round * slot_size, 0, slot_size));
}

void SharedGather::fill(std::int64_t round) {
  const std::size_t bytes = bytes_of(group_.rank, round);
  if (bytes == 0) return;
  const std::byte* from = job_.own + round * slot_size;
  std::byte* place = job_.places[group_.rank] + round * slot_size;
  std::memcpy(slot(group_.rank, round), from, bytes);
  if (place != from) std::memcpy(place, from, bytes);
}

void SharedGather::drain(std::int64_t round) {
  for (int step = 1; step < group_.size; ++step) {
    const int peer = (group_.rank + step) % group_.size;
    const std::size_t bytes = bytes_of(peer, round);
    if (bytes > 0) {
      std::memcpy(job_.places[peer] + round * slot_size, slot(peer, round), bytes);
    }
  }
}

SharedBroadcast::SharedBroadcast(SharedGroup& group, const Tensor& data, int root)
    : SharedOperation(
          group, {OperationKind::broadcast, {static_cast<std::int64_t>(data.bytes()), root}},
          pieces(static_cast<std::int64_t>(data.bytes()), slot_size),
          group.rank == root ? static_cast<std::int64_t>(data.bytes()) * (group.size - 1) : 0),
      data_(static_cast<std::byte*>(data.data())),
      bytes_(static_cast<std::int64_t>(data.bytes())),
      root_(root) {}

std::size_t SharedBroadcast::bytes_of(std::int64_t round) const {
  return static_cast<std::size_t>(std::min(slot_size, bytes_ - round * slot_size));
}

std::byte* SharedBroadcast::at(std::int64_t round) const { return data_ + round * slot_size; }

void SharedBroadcast::fill(std::int64_t round) {
  if (group_.rank == root_) std::memcpy(slot(root_, round), at(round), bytes_of(round));
}

void SharedBroadcast::drain(std::int64_t round) {
  if (group_.rank != root_) std::memcpy(at(round), slot(root_, round), bytes_of(round));
}

}  // namespace trireme::comm
