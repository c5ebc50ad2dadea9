#include "shared_operations.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "trireme/comm/session.hpp"
#include "trireme/core/error.hpp"
#include "trireme/device/device.hpp"

namespace trireme::comm {
namespace {

constexpr auto slot_size = static_cast<std::int64_t>(slot_bytes);

std::int64_t pieces(std::int64_t whole, std::int64_t piece) { return (whole + piece - 1) / piece; }

/// Bytes of a slot for what goes to one other rank.
std::int64_t lane_bytes(int size) { return slot_size / (size - 1) / 64 * 64; }

std::vector<std::int64_t> numbers_of(const SliceReduction& job) {
  std::vector<std::int64_t> numbers = job.begins;
  numbers.push_back(static_cast<std::int64_t>(job.type()));
  numbers.push_back(static_cast<std::int64_t>(job.reduction));
  return numbers;
}

std::int64_t longest(const std::vector<std::int64_t>& begins) {
  std::int64_t most = 0;
  for (std::size_t r = 0; r + 1 < begins.size(); ++r) {
    most = std::max(most, begins[r + 1] - begins[r]);
  }
  return most;
}

std::vector<std::int64_t> in_bytes(std::vector<std::int64_t> begins, DType type) {
  for (std::int64_t& begin : begins) begin *= static_cast<std::int64_t>(size_of(type));
  return begins;
}

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

SharedWholeReduce::SharedWholeReduce(SharedGroup& group, SliceReduction job)
    : SharedOperation(group, {OperationKind::all_reduce, numbers_of(job)},
                      pieces(job.begins.back(), slot_size / job.element()), job.sent(group.rank)),
      job_(std::move(job)),
      piece_elements_(slot_size / job_.element()) {}

std::int64_t SharedWholeReduce::elements_of(std::int64_t round) const {
  return std::min(piece_elements_, job_.begins.back() - round * piece_elements_);
}

void SharedWholeReduce::fill(std::int64_t round) {
  std::memcpy(slot(group_.rank, round), job_.at(round * piece_elements_),
              job_.bytes(elements_of(round)));
}

void SharedWholeReduce::drain(std::int64_t round) {
  std::byte* const own = job_.at(round * piece_elements_);
  std::vector<const std::byte*> contributions;
  for (int r = 0; r < group_.size; ++r) {
    contributions.push_back(r == group_.rank ? own : slot(r, round));
  }
  device::reduce_tree(job_.type(), job_.reduction, contributions, own, elements_of(round));
}

SharedReduce::SharedReduce(SharedGroup& group, SliceReduction job)
    : SharedOperation(
          group, {job.kind(), numbers_of(job)},
          pieces(job.longest(), lane_bytes(group.size) / job.element()) * (job.gather ? 2 : 1),
          job.sent(group.rank)),
      job_(std::move(job)),
      piece_elements_(lane_bytes(group.size) / job_.element()),
      pieces_(pieces(job_.longest(), piece_elements_)) {}

SharedReduce::Turn SharedReduce::turn(std::int64_t round) const {
  if (!job_.gather || round == 0) return {false, round};
  if (round == 2 * pieces_ - 1) return {true, pieces_ - 1};
  return round % 2 == 1 ? Turn{false, (round + 1) / 2} : Turn{true, round / 2 - 1};
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
    for (int step = 1; step < group_.size; ++step) {
      const int peer = (group_.rank + step) % group_.size;
      const Stretch theirs = stretch(peer, now.piece);
      if (theirs.count > 0) {
        std::memcpy(job_.at(theirs.begin), slot(peer, round), job_.bytes(theirs.count));
      }
    }
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

SharedGather::SharedGather(SharedGroup& group, const Tensor& output, const Tensor& input,
                           const std::vector<std::int64_t>& begins)
    : SharedOperation(group, {OperationKind::all_gather, in_bytes(begins, output.type())},
                      pieces(longest(in_bytes(begins, output.type())), slot_size),
                      static_cast<std::int64_t>(input.bytes()) * (group.size - 1)),
      output_(bytes_of(output)),
      own_(bytes_of(input)),
      begins_(in_bytes(begins, output.type())) {}

std::size_t SharedGather::bytes_of_round(int rank, std::int64_t round) const {
  return static_cast<std::size_t>(std::clamp<std::int64_t>(
      begins_[rank + 1] - begins_[rank] - round * slot_size, 0, slot_size));
}

void SharedGather::fill(std::int64_t round) {
  const std::size_t bytes = bytes_of_round(group_.rank, round);
  if (bytes == 0) return;
  const std::byte* from = own_ + round * slot_size;
  std::byte* place = output_ + begins_[group_.rank] + round * slot_size;
  std::memcpy(slot(group_.rank, round), from, bytes);
  if (place != from) std::memcpy(place, from, bytes);
}

void SharedGather::drain(std::int64_t round) {
  for (int step = 1; step < group_.size; ++step) {
    const int peer = (group_.rank + step) % group_.size;
    const std::size_t bytes = bytes_of_round(peer, round);
    if (bytes > 0) {
      std::memcpy(output_ + begins_[peer] + round * slot_size, slot(peer, round), bytes);
    }
  }
}

SharedBroadcast::SharedBroadcast(SharedGroup& group, const Tensor& data, int root)
    : SharedOperation(
          group, {OperationKind::broadcast, {static_cast<std::int64_t>(data.bytes()), root}},
          pieces(static_cast<std::int64_t>(data.bytes()), slot_size),
          group.rank == root ? static_cast<std::int64_t>(data.bytes()) * (group.size - 1) : 0),
      data_(bytes_of(data)),
      bytes_(static_cast<std::int64_t>(data.bytes())),
      root_(root) {}

std::size_t SharedBroadcast::bytes_of_round(std::int64_t round) const {
  return static_cast<std::size_t>(std::min(slot_size, bytes_ - round * slot_size));
}

std::byte* SharedBroadcast::at(std::int64_t round) const { return data_ + round * slot_size; }

void SharedBroadcast::fill(std::int64_t round) {
  if (group_.rank == root_) std::memcpy(slot(root_, round), at(round), bytes_of_round(round));
}

void SharedBroadcast::drain(std::int64_t round) {
  if (group_.rank != root_) std::memcpy(at(round), slot(root_, round), bytes_of_round(round));
}

}  // namespace trireme::comm
