// Long because the operations share their base, which counts what they send, and their tags.
#include "operations.hpp"

#include <algorithm>
#include <chrono>
#include <deque>

#include "trireme/comm/session.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::comm {
namespace {

constexpr std::size_t smallest_piece = std::size_t{1} << 16;
constexpr std::size_t scratch_budget = std::size_t{16} << 20;  // of one slot
constexpr std::size_t slots_in_flight = 2;
constexpr std::size_t broadcast_window = 8;  // pieces under way on each side of a rank

std::size_t slots_for(std::size_t pieces) { return std::min(slots_in_flight, pieces); }

/// Bytes of one piece of one contribution.
std::size_t reduce_piece_bytes(int size) {
  const std::size_t share = scratch_budget / static_cast<std::size_t>(std::max(size - 1, 1));
  return std::clamp(share / 64 * 64, smallest_piece, largest_piece);
}

/// One for each kind of operation, so that ranks which enqueue different ones do not mix their
/// messages.
enum Tag : int { contribution, result, gathered, spread, exchanged, grouped, count };
static_assert(Tag::count <= MpiHandle::tags_per_channel);

Tag tag_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_gather:
      return Tag::gathered;
    case OperationKind::all_to_all:
      return Tag::exchanged;
    case OperationKind::exchange:
      return Tag::grouped;
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter:
    case OperationKind::broadcast:
    case OperationKind::count:
      break;
  }
  no_case_for(kind);
}

/// An operation that counts what it sends and how long it takes.
class WireOperation : public device::Operation {
 public:
  void start() final {
    begin_ = std::chrono::steady_clock::now();
    begin();
  }
  bool test() final {
    if (!advance()) return false;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
    group_.traffic->add(kind_, {.bytes = sent_, .operations = 1, .seconds = spent.count()});
    return true;
  }

 protected:
  WireOperation(const Group& group, const Place& place, OperationKind kind)
      : group_(group), place_(place), kind_(kind) {}
  virtual void begin() = 0;
  virtual bool advance() = 0;  // true once finished
  Wire wire() {
    return {group_.comm, group_.first_tag, &sent_,
            place_.device.is_host() ? nullptr : &group_.messages.address};
  }
  const Group& group_;
  const Place place_;

 private:
  OperationKind kind_;
  std::int64_t sent_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

class ExchangeOperation final : public WireOperation {
 public:
  ExchangeOperation(const Group& group, const Place& place, OperationKind kind,
                    std::vector<Part> parts, std::vector<LocalCopy> copies)
      : WireOperation(group, place, kind),
        requests_(wire()),
        tag_(tag_of(kind)),
        parts_(std::move(parts)),
        copies_(std::move(copies)) {}

 private:
  void begin() override {
    for (const Part& part : parts_) {
      if (!part.send) requests_.receive(part.data, part.bytes, part.peer, tag_);
    }
    for (const Part& part : parts_) {
      if (part.send) requests_.send(part.data, part.bytes, part.peer, tag_);
    }
    for (const LocalCopy& copy : copies_) copy.run(place_.queue);
    copied_ = place_.queue.fence();
  }
  bool advance() override { return requests_.test() && (!copied_ || copied_->reached()); }

  Requests requests_;
  std::shared_ptr<device::Fence> copied_;
  Tag tag_;
  std::vector<Part> parts_;
  std::vector<LocalCopy> copies_;
};

class BroadcastOperation final : public WireOperation {
 public:
  BroadcastOperation(const Group& group, const Place& place, const Tensor& data, int root)
      : WireOperation(group, place, OperationKind::broadcast),
        data_(bytes_of(data)),
        bytes_(data.bytes()),
        pieces_(static_cast<std::int64_t>((bytes_ + largest_piece - 1) / largest_piece)) {
    // Ranks counted from the root: the parent lacks the lowest bit, the children have one below it.
    const int relative = (group.rank - root + group.size) % group.size;
    int bit = 1;
    while (bit < group.size && (relative & bit) == 0) bit *= 2;
    if (relative != 0) parent_ = (relative - bit + root) % group.size;
    for (bit /= 2; bit >= 1; bit /= 2) {
      if (relative + bit < group.size) children_.push_back((relative + bit + root) % group.size);
    }
  }
  std::uint64_t steps() const override { return steps_; }

 private:
  void begin() override {}
  bool advance() override {
    while (step()) ++steps_;
    return forwarded_ == pieces_ && leaving_.empty();
  }
  bool step();
  std::byte* at(std::int64_t piece) const {
    return data_ + static_cast<std::size_t>(piece) * largest_piece;
  }
  std::size_t piece_bytes(std::int64_t piece) const {
    return std::min(largest_piece, bytes_ - static_cast<std::size_t>(piece) * largest_piece);
  }

  std::byte* data_;
  std::size_t bytes_;
  int parent_ = -1;  // −1 at the root
  std::vector<int> children_;
  // Pieces whose arrival is expected, and those that are on their way to the children.
  std::int64_t pieces_ = 0, posted_ = 0, forwarded_ = 0;
  std::deque<Requests> arriving_, leaving_;  // one per piece; arriving_ from piece forwarded_ on
  std::uint64_t steps_ = 0;
};

bool BroadcastOperation::step() {
  bool moved = false;
  while (parent_ >= 0 && posted_ < pieces_ && arriving_.size() < broadcast_window) {
    arriving_.emplace_back(wire()).receive(at(posted_), piece_bytes(posted_), parent_, Tag::spread);
    ++posted_;
  }
  while (!leaving_.empty() && leaving_.front().test()) {
    leaving_.pop_front();
    moved = true;
  }
  while (forwarded_ < pieces_ && leaving_.size() < broadcast_window) {
    if (parent_ >= 0) {
      if (arriving_.empty() || !arriving_.front().test()) break;
      arriving_.pop_front();
    }
    Requests& sends = leaving_.emplace_back(wire());
    for (const int child : children_) {
      sends.send(at(forwarded_), piece_bytes(forwarded_), child, Tag::spread);
    }
    ++forwarded_;
    moved = true;
  }
  return moved;
}

class ReduceOperation final : public WireOperation {
 public:
  ReduceOperation(const Group& group, const Place& place, SliceReduction job)
      : WireOperation(group, place, job.kind()), job_(std::move(job)) {}
  std::uint64_t steps() const override { return steps_; }

 private:
  void begin() override;
  bool advance() override {
    while (step()) ++steps_;
    return added_ == pieces_ && opened_ == pieces_ && results_.empty();
  }
  struct Slot {
    Requests contributions, sends;
  };
  Stretch stretch(int rank, std::int64_t piece) const {
    return job_.stretch(rank, piece, piece_elements_);
  }
  std::byte* scratch(int rank, std::int64_t piece) const {
    const std::int64_t lane = rank < group_.rank ? rank : rank - 1;
    const auto lanes = static_cast<std::int64_t>(group_.size - 1);
    const auto stride = static_cast<std::int64_t>(device::aligned(job_.bytes(piece_elements_)));
    return scratch_ + (piece % static_cast<std::int64_t>(slots_.size()) * lanes + lane) * stride;
  }
  Slot& slot(std::int64_t piece) { return slots_[static_cast<std::size_t>(piece) % slots_.size()]; }
  template <class Visit>
  void for_each_peer(std::int64_t piece, const Visit& visit) const {
    // Everyone begins with its successor, so that no rank is everyone's first target.
    for (int step = 1; step < group_.size; ++step) {
      const int peer = (group_.rank + step) % group_.size;
      visit(peer, stretch(peer, piece));
    }
  }
  void post(std::int64_t piece);
  void reduce(std::int64_t piece);
  void publish(std::int64_t piece);
  void open(std::int64_t piece);
  bool step();

  SliceReduction job_;
  std::int64_t piece_elements_ = 1, pieces_ = 0;
  std::byte* scratch_ = nullptr;
  std::vector<Slot> slots_;
  std::deque<Requests> results_;
  std::deque<std::shared_ptr<device::Fence>> adding_;  // from piece added_ on
  // Pieces whose contributions are under way; are being added; are added; whose sends are over, so
  // that results may arrive in their place. Each is passed in order.
  std::int64_t posted_ = 0, reduced_ = 0, added_ = 0, opened_ = 0;
  std::uint64_t steps_ = 0;
};

void ReduceOperation::begin() {
  const std::int64_t longest = job_.longest();
  if (longest == 0) return;
  const auto limit = static_cast<std::int64_t>(reduce_piece_bytes(group_.size)) / job_.element();
  piece_elements_ = std::min(limit, longest);
  pieces_ = (longest + piece_elements_ - 1) / piece_elements_;
  const std::size_t slots = slots_for(static_cast<std::size_t>(pieces_));
  for (std::size_t i = 0; i < slots; ++i) {
    slots_.push_back({Requests(wire()), Requests(wire())});
  }
  scratch_ = group_.scratch(place_.device, reduce_scratch_bytes(group_.size, job_.bytes(longest)));
}

void ReduceOperation::post(std::int64_t piece) {
  const std::size_t own = job_.bytes(stretch(group_.rank, piece).count);
  for_each_peer(piece, [&](int peer, const Stretch&) {
    if (own > 0) {
      slot(piece).contributions.receive(scratch(peer, piece), own, peer, Tag::contribution);
    }
  });
  for_each_peer(piece, [&](int peer, const Stretch& theirs) {
    if (theirs.count == 0) return;
    slot(piece).sends.send(job_.at(theirs.begin), job_.bytes(theirs.count), peer,
                           Tag::contribution);
  });
}

void ReduceOperation::reduce(std::int64_t piece) {
  const Stretch own = stretch(group_.rank, piece);
  adding_.emplace_back();
  if (own.count == 0) return;
  std::vector<const std::byte*> contributions(static_cast<std::size_t>(group_.size));
  for (int rank = 0; rank < group_.size; ++rank) {
    contributions[rank] = rank == group_.rank ? job_.at(own.begin) : scratch(rank, piece);
  }
  place_.queue.reduce(job_.type(), job_.reduction, contributions,
                      job_.output_at(piece * piece_elements_), own.count);
  adding_.back() = place_.queue.fence();
}

void ReduceOperation::publish(std::int64_t piece) {
  const Stretch own = stretch(group_.rank, piece);
  if (own.count == 0 || !job_.gather) return;
  Requests& sends = results_.emplace_back(wire());
  for_each_peer(piece, [&](int peer, const Stretch&) {
    sends.send(job_.output_at(piece * piece_elements_), job_.bytes(own.count), peer, Tag::result);
  });
}

void ReduceOperation::open(std::int64_t piece) {
  if (!job_.gather) return;
  Requests& receives = results_.emplace_back(wire());
  for_each_peer(piece, [&](int peer, const Stretch& theirs) {
    if (theirs.count == 0) return;
    receives.receive(job_.at(theirs.begin), job_.bytes(theirs.count), peer, Tag::result);
  });
}

bool ReduceOperation::step() {
  bool moved = false;
  const auto slots = static_cast<std::int64_t>(slots_.size());
  while (posted_ < pieces_ && posted_ < std::min(added_, opened_) + slots) {
    post(posted_++);
    moved = true;
  }
  if (opened_ < posted_ && slot(opened_).sends.test()) {
    open(opened_++);
    moved = true;
  }
  if (reduced_ < posted_ && slot(reduced_).contributions.test()) {
    reduce(reduced_++);
    moved = true;
  }
  if (added_ < reduced_ && (!adding_.front() || adding_.front()->reached())) {
    adding_.pop_front();
    publish(added_++);
    moved = true;
  }
  while (!results_.empty() && results_.front().test()) {
    results_.pop_front();
    moved = true;
  }
  return moved;
}

/// An all-reduce of few bytes along the tree of add_pairwise: log2(size) messages a rank, where the
/// direct exchange has 2·(size − 1).
class TreeReduction final : public WireOperation {
 public:
  TreeReduction(const Group& group, const Place& place, SliceReduction job)
      : WireOperation(group, place, job.kind()),
        job_(std::move(job)),
        count_(job_.begins.back()),
        up_(wire()),
        down_(wire()) {
    for (int step = 1; step < group.size && parent_ < 0; step *= 2) {
      if ((group.rank & step) != 0) {
        parent_ = group.rank - step;
      } else if (group.rank + step < group.size) {
        children_.push_back(group.rank + step);
      }
    }
  }
  /// Whether the scratch that every reduction has is enough for it, it saves messages, and sums on
  /// the way need no rounding that the last one alone may have.
  static bool fits(const Group& group, const SliceReduction& job) {
    constexpr int few = 8;  // ranks, which reach each other in one step
    const std::size_t lanes = device::aligned(1) * static_cast<std::size_t>(group.size - 1);
    const bool rounds_once = job.type() == DType::bf16 || job.type() == DType::f16;
    return job.gather && !rounds_once && group.size > few && job.data.bytes() > 0 &&
           job.data.bytes() <= lanes;
  }
  std::uint64_t steps() const override { return steps_; }

 private:
  enum class Phase : std::uint8_t { receiving, adding, sending, waiting, spreading };
  void begin() override {
    scratch_ = group_.scratch(place_.device,
                              reduce_scratch_bytes(group_.size, job_.bytes(job_.longest())));
    next();
  }
  bool advance() override {
    while (step()) ++steps_;
    return phase_ == Phase::spreading && down_.test();
  }
  /// Takes the next child's contribution, or has the sum of this subtree.
  void next() {
    if (added_ < children_.size()) {
      phase_ = Phase::receiving;
      up_.receive(scratch_, job_.bytes(count_), children_[added_++], Tag::contribution);
    } else if (parent_ >= 0) {
      phase_ = Phase::sending;
      up_.send(job_.at(0), job_.bytes(count_), parent_, Tag::contribution);
    } else {
      spread();
    }
  }
  void reduce() {
    const std::vector<const std::byte*> both{job_.at(0), scratch_};
    place_.queue.reduce(job_.type(), job_.reduction, both, job_.at(0), count_);
    fence_ = place_.queue.fence();
  }
  void spread() {
    phase_ = Phase::spreading;
    for (auto child = children_.rbegin(); child != children_.rend(); ++child) {
      down_.send(job_.at(0), job_.bytes(count_), *child, Tag::result);
    }
  }
  bool step() {
    switch (phase_) {
      case Phase::receiving:
        if (!up_.test()) return false;
        reduce();
        phase_ = Phase::adding;
        return true;
      case Phase::adding:
        if (fence_ && !fence_->reached()) return false;
        next();
        return true;
      case Phase::sending:
        if (!up_.test()) return false;
        down_.receive(job_.at(0), job_.bytes(count_), parent_, Tag::result);
        phase_ = Phase::waiting;
        return true;
      case Phase::waiting:
        if (!down_.test()) return false;
        spread();
        return true;
      case Phase::spreading:
        return false;
    }
    no_case_for(phase_);
  }

  SliceReduction job_;
  std::int64_t count_;
  int parent_ = -1;  // −1 at rank 0
  std::vector<int> children_;
  std::size_t added_ = 0;
  std::byte* scratch_ = nullptr;
  std::shared_ptr<device::Fence> fence_;
  Requests up_, down_;
  Phase phase_ = Phase::receiving;
  std::uint64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<device::Operation> make_exchange(const Group& group, const Place& place,
                                                 OperationKind kind, std::vector<Part> parts,
                                                 std::vector<LocalCopy> copies) {
  return std::make_unique<ExchangeOperation>(group, place, kind, std::move(parts),
                                             std::move(copies));
}

std::unique_ptr<device::Operation> make_broadcast(const Group& group, const Place& place,
                                                  const Tensor& data, int root) {
  return std::make_unique<BroadcastOperation>(group, place, data, root);
}

std::unique_ptr<device::Operation> make_reduction(const Group& group, const Place& place,
                                                  SliceReduction job) {
  if (TreeReduction::fits(group, job)) {
    return std::make_unique<TreeReduction>(group, place, std::move(job));
  }
  return std::make_unique<ReduceOperation>(group, place, std::move(job));
}

std::size_t reduce_scratch_bytes(int size, std::size_t slice) {
  const std::size_t piece = reduce_piece_bytes(size);
  const std::size_t slots = slots_for((slice + piece - 1) / piece);
  return slots * static_cast<std::size_t>(size - 1) * device::aligned(std::min(piece, slice));
}

}  // namespace trireme::comm
