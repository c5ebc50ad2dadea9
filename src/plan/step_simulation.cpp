// Long because matching, computation and streams of one simulation share its state.
#include "trireme/plan/step_simulation.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <queue>
#include <set>
#include <tuple>

#include "trireme/core/error.hpp"

namespace trireme::plan {

namespace {

using comm::GroupKind;
using comm::OperationKind;

/// Something that several ranks do together: a collective, or one message.
struct Transfer {
  std::size_t sides = 0, arrived = 0;
  double seconds = 0;
  OperationKind kind = OperationKind::exchange;  // as the first side has it
  std::int64_t bytes = 0;                        // likewise
  std::vector<std::pair<std::size_t, int>>
      operations;                         // by side: class, and operation of its trace
  const std::string* sequence = nullptr;  // what it is one of
};

/// Transfers between the same classes, in the order in which each of them starts its side.
struct Sequence {
  std::string name;
  std::vector<std::size_t> transfers;
};

/// A rank's place in a sequence.
struct Cursor {
  Sequence* sequence = nullptr;
  std::size_t next = 0;
};

/// A rank's channel.
struct Peers {
  std::vector<int> members;  // world ranks
  std::size_t classes = 0;   // of members
  std::string name;
  Cursor collectives;
  std::map<std::pair<int, bool>, Cursor> messages;  // by member, and whether they are sent to it
};

/// An operation of a rank's stream.
struct Operation {
  std::vector<std::size_t> transfers;
  std::size_t left = 0;  // transfers under way
  bool released = false, begun = false, done = false;
  double end = 0;  // once done
};

struct Rank {
  const Trace* trace = nullptr;
  std::vector<Operation> operations;
  std::map<int, std::deque<int>> streams;  // begun or not, in order
  std::size_t next = 0;                    // instruction
  double host = 0;                         // when the host has made its calls so far
  std::size_t called_for = std::numeric_limits<std::size_t>::max();  // the last call it made
  bool computing = false, resuming = false;
  double left = 0, since = 0, began = 0;  // of the computation: seconds at full speed
  int work = -1;
  std::vector<double> seconds;  // by work of the trace
  int waits_for = -1;           // an operation
  double waits_since = 0;
  int under_way = 0;  // operations of groups
  std::uint64_t version = 0;
  bool ended = false;
  RankTimes times;
};

struct Event {
  enum class Kind : std::uint8_t { computed, resume, transferred } kind;
  double time = 0;
  std::uint64_t number = 0;  // of events of one time the first is the first
  std::size_t of = 0;        // rank or transfer
  std::uint64_t version = 0;
  bool operator>(const Event& other) const {
    return std::tie(time, number) > std::tie(other.time, other.number);
  }
};

class Simulation {
 public:
  Simulation(const comm::GridShape& shape, const std::vector<RankClass>& classes,
             const ClassOf& class_of, const Machine& machine)
      : shape_(shape), classes_(classes), class_of_(class_of), machine_(machine) {
    for (const RankClass& each : classes) {
      Rank& rank = ranks_.emplace_back();
      rank.trace = &each.trace;
      rank.operations.resize(each.trace.operations.size());
      rank.times.rank = each.rank;
      for (const Work& work : each.trace.works) rank.seconds.push_back(machine.seconds(work));
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) match(r);
    for (const Transfer& transfer : transfers_) {
      if (transfer.sides == transfer.operations.size()) continue;
      throw Error("plan: an operation of {}: {} of {} sides take part; their programs do not agree",
                  *transfer.sequence, transfer.operations.size(), transfer.sides);
    }
  }

  StepTimes run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) advance(r);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      switch (event.kind) {
        case Event::Kind::computed:
          if (event.version == ranks_[event.of].version) finish_computing(event.of);
          break;
        case Event::Kind::resume:
          ranks_[event.of].resuming = false;
          advance(event.of);
          break;
        case Event::Kind::transferred:
          finish_transfer(event.of);
          break;
      }
    }
    StepTimes result;
    for (Rank& rank : ranks_) {
      if (!rank.ended) refuse_wait(rank);
      result.seconds = std::max(result.seconds, rank.times.end);
      result.ranks.push_back(std::move(rank.times));
    }
    result.seconds += machine_.device.step_ms * 1e-3;
    return result;
  }

 private:
  [[noreturn]] void refuse_wait(const Rank& rank) const {
    if (rank.waits_for < 0) throw Error("plan: rank {} never ends", rank.times.rank);
    const auto& operation = rank.trace->operations[static_cast<std::size_t>(rank.waits_for)];
    throw Error(
        "plan: rank {} waits for operation {} of group {} forever; its peers never come to it",
        rank.times.rank, rank.waits_for, to_string(operation.channel));
  }

  int node_of(int rank) const { return rank / static_cast<int>(machine_.ranks_per_node); }

  Placement placement(GroupKind kind, const std::vector<int>& ranks) {
    const int first = ranks.front();
    const auto key = std::pair(kind, first);
    const auto known = placements_.find(key);
    if (known != placements_.end()) return known->second;
    std::set<int> nodes;
    for (const int rank : ranks) nodes.insert(node_of(rank));
    std::set<int> groups;  // of the first rank's node, by first rank
    const int node = node_of(first), per_node = static_cast<int>(machine_.ranks_per_node);
    for (int rank = node * per_node; rank < std::min(shape_.size(), (node + 1) * per_node);
         ++rank) {
      groups.insert(comm::members(shape_, kind, rank).front());
    }
    const Placement result{static_cast<int>(ranks.size()), static_cast<int>(nodes.size()),
                           static_cast<int>(groups.size())};
    placements_[key] = result;
    return result;
  }

  /// Ranks of this rank's node that send to another node along the pipeline.
  int sharing_messages(int rank, int step) const {
    const int node = node_of(rank), per_node = static_cast<int>(machine_.ranks_per_node);
    int count = 0;
    for (int r = node * per_node; r < std::min(shape_.size(), (node + 1) * per_node); ++r) {
      const std::vector<int> stages = comm::members(shape_, GroupKind::pipeline, r);
      const auto at = static_cast<int>(std::find(stages.begin(), stages.end(), r) - stages.begin());
      const int size = static_cast<int>(stages.size());
      if (node_of(stages[static_cast<std::size_t>((at + step + size) % size)]) != node) ++count;
    }
    return count;
  }

  Sequence& sequence_of(std::string name) {
    Sequence& sequence = sequences_[name];
    sequence.name = std::move(name);
    return sequence;
  }
  /// The next transfer of a rank's sequence, made by whichever side comes first.
  std::size_t next_of(Cursor& cursor, std::size_t sides) {
    std::vector<std::size_t>& known = cursor.sequence->transfers;
    if (cursor.next == known.size()) {
      known.push_back(transfers_.size());
      transfers_.push_back({.sides = sides, .sequence = &cursor.sequence->name});
    }
    return known[cursor.next++];
  }

  Peers peers_of(const Rank& rank, const StreamOperation& operation) {
    Peers peers;
    peers.members = comm::members(shape_, operation.channel.kind, rank.times.rank);
    peers.name = to_string(operation.channel) + (operation.planned.agreement ? " agreement" : "");
    std::set<std::size_t> classes;
    for (const int member : peers.members) classes.insert(class_of_(member));
    peers.classes = classes.size();
    std::string name = peers.name + " of";
    for (const std::size_t c : classes) name += fmt::format(" {}", classes_[c].rank);
    peers.collectives.sequence = &sequence_of(std::move(name));
    return peers;
  }

  /// Makes the transfers that a rank's operations take part in.
  void match(std::size_t r) {
    Rank& rank = ranks_[r];
    std::map<std::pair<Channel, bool>, Peers> channels;
    for (std::size_t o = 0; o < rank.operations.size(); ++o) {
      const StreamOperation& each = rank.trace->operations[o];
      if (each.local > 0) {
        static const std::string memory = "memory";
        transfers_.push_back({.sides = 1,
                              .seconds = machine_.local_seconds(each.local),
                              .operations = {{r, static_cast<int>(o)}},
                              .sequence = &memory});
        rank.operations[o].transfers.push_back(transfers_.size() - 1);
        continue;
      }
      const auto key = std::pair(each.channel, each.planned.agreement);
      auto found = channels.find(key);
      if (found == channels.end()) found = channels.emplace(key, peers_of(rank, each)).first;
      if (each.planned.kind == OperationKind::exchange ||
          each.planned.kind == OperationKind::all_to_all) {
        for (const auto& message : each.planned.messages) {
          match_message(r, o, message, found->second);
        }
      } else {
        match_collective(r, o, found->second);
      }
    }
  }

  void match_collective(std::size_t r, std::size_t o, Peers& peers) {
    Rank& rank = ranks_[r];
    const StreamOperation& each = rank.trace->operations[o];
    const comm::PlannedOperation& planned = each.planned;
    const std::size_t t = next_of(peers.collectives, peers.classes);
    Transfer& transfer = transfers_[t];
    if (transfer.operations.empty()) {
      transfer.kind = planned.kind;
      transfer.bytes = planned.bytes;
      transfer.seconds = machine_.seconds(planned, placement(each.channel.kind, peers.members));
    } else if (transfer.kind != planned.kind || transfer.bytes != planned.bytes) {
      throw Error("plan: {}: rank {} has {} of {} bytes, others {} of {}", *transfer.sequence,
                  rank.times.rank, comm::name_of(planned.kind), planned.bytes,
                  comm::name_of(transfer.kind), transfer.bytes);
    }
    transfer.operations.emplace_back(r, static_cast<int>(o));
    rank.operations[o].transfers.push_back(t);
  }

  void match_message(std::size_t r, std::size_t o, const comm::PlannedOperation::Message& message,
                     Peers& peers) {
    Rank& rank = ranks_[r];
    const int own = rank.times.rank, peer = peers.members[static_cast<std::size_t>(message.peer)];
    Cursor& cursor = peers.messages[{message.peer, message.send}];
    if (cursor.sequence == nullptr) {
      const int from = message.send ? own : classes_[class_of_(peer)].rank;
      const int to = message.send ? classes_[class_of_(peer)].rank : own;
      cursor.sequence = &sequence_of(fmt::format("{} from {} to {}", peers.name, from, to));
    }
    const std::size_t t = next_of(cursor, 2);
    Transfer& transfer = transfers_[t];
    if (transfer.operations.empty()) {
      const bool same = node_of(own) == node_of(peer);
      const auto place = [&](int member) {
        return std::find(peers.members.begin(), peers.members.end(), member);
      };
      const int step = static_cast<int>(place(peer) - place(own));
      transfer.seconds =
          machine_.message_seconds(message.bytes, same, same ? 1 : sharing_messages(own, step));
      transfer.bytes = message.bytes;
    } else if (transfer.bytes != message.bytes) {
      throw Error("plan: {}: {} bytes on one side, {} on the other", *transfer.sequence,
                  transfer.bytes, message.bytes);
    }
    transfer.operations.emplace_back(r, static_cast<int>(o));
    rank.operations[o].transfers.push_back(t);
  }

  void add_event(Event::Kind kind, double time, std::size_t of, std::uint64_t version = 0) {
    events_.push({kind, time, next_event_++, of, version});
  }

  void note(Rank& rank, std::string_view name, double begin, double end) {
    if (end <= begin) return;
    rank.times.parts[std::string(name)] += end - begin;
  }

  // Computation

  double speed(const Rank& rank) const {
    return rank.under_way > 0 ? 1 / machine_.links.slowdown : 1;
  }
  void schedule(std::size_t r) {
    Rank& rank = ranks_[r];
    add_event(Event::Kind::computed, now_ + rank.left / speed(rank), r, ++rank.version);
  }
  /// Before the number of operations under way changes by `change`.
  void change_load(std::size_t r, int change) {
    Rank& rank = ranks_[r];
    const double before = speed(rank);
    rank.under_way += change;
    if (!rank.computing || before == speed(rank)) return;
    rank.left = std::max(0.0, rank.left - (now_ - rank.since) * before);
    rank.since = now_;
    schedule(r);
  }
  void finish_computing(std::size_t r) {
    Rank& rank = ranks_[r];
    rank.computing = false;
    const Work& work = rank.trace->works[static_cast<std::size_t>(rank.work)];
    note(rank, name_of(work.kind), rank.began, now_);
    rank.times.busy += now_ - rank.began;
    ++rank.next;
    advance(r);
  }

  /// Does what the rank can do now.
  void advance(std::size_t r) {
    Rank& rank = ranks_[r];
    const auto& instructions = rank.trace->instructions;
    while (rank.next < instructions.size()) {
      const Instruction& instruction = instructions[rank.next];
      switch (instruction.kind) {
        case Instruction::Kind::compute:
          if (!called(r, machine_.device.launch_us)) return;
          rank.work = instruction.index;
          rank.left = rank.seconds[static_cast<std::size_t>(instruction.index)];
          rank.since = rank.began = now_;
          rank.computing = true;
          schedule(r);
          return;
        case Instruction::Kind::start: {
          const StreamOperation& started =
              rank.trace->operations[static_cast<std::size_t>(instruction.index)];
          const bool synchronous = machine_.links.synchronous && started.channel.direction;
          if ((started.blocking || synchronous) && rank.called_for != rank.next) {
            rank.host = std::max(rank.host, now_);
          }
          if (!called(r, started.channel.direction ? machine_.links.message_us
                                                   : machine_.links.launch_us))
            return;
          release(r, instruction.index);
          break;
        }
        case Instruction::Kind::wait: {
          const auto index = static_cast<std::size_t>(instruction.index);
          force(r, instruction.index);
          if (!rank.operations[index].done) {
            if (rank.waits_for < 0) rank.waits_since = now_;
            rank.waits_for = instruction.index;
            return;
          }
          if (rank.waits_for >= 0) {
            const StreamOperation& waited = rank.trace->operations[index];
            note(rank, waited.local > 0 ? "memory" : to_string(waited.channel), rank.waits_since,
                 now_);
            rank.waits_for = -1;
          }
          // Messages between stages are MPI's, for which the host waits itself.
          if (rank.trace->operations[index].blocking ||
              rank.trace->operations[index].channel.direction) {
            const double end = machine_.links.synchronous ? now_ : rank.operations[index].end;
            rank.host = std::max(rank.host, end);
          }
          break;
        }
        case Instruction::Kind::wait_for_device:
          rank.host = std::max(rank.host, now_);
          break;
      }
      ++rank.next;
    }
    if (rank.ended) return;
    rank.ended = true;
    rank.times.end = now_;
  }

  /// Whether the host has made the call by now, which takes it so long; if not, the rank continues
  /// when it has.
  bool called(std::size_t r, double microseconds) {
    Rank& rank = ranks_[r];
    const bool device = !machine_.on_host();
    if (!rank.resuming && rank.called_for != rank.next) {
      rank.called_for = rank.next;
      rank.host = device ? rank.host + microseconds * 1e-6 : now_;
    }
    if (!device || rank.host <= now_) return true;
    note(rank, "launches", now_, rank.host);
    rank.resuming = true;
    add_event(Event::Kind::resume, rank.host, r);
    return false;
  }

  // Streams

  static int stream_of(const StreamOperation& operation) {
    return operation.blocking ? -1 : operation.stream;
  }
  bool waits_for_its_rank(const Rank& rank, const StreamOperation& operation) const {
    if (operation.channel.direction || operation.blocking) return false;
    if (machine_.on_host() && !rank.trace->overlap) return true;
    const GroupKind kind = operation.channel.kind;
    const bool gradients =
        kind == GroupKind::data || kind == GroupKind::shard || kind == GroupKind::replica;
    return gradients && !machine_.links.overlap;
  }
  void release(std::size_t r, int o) {
    Rank& rank = ranks_[r];
    const StreamOperation& operation = rank.trace->operations[static_cast<std::size_t>(o)];
    rank.streams[stream_of(operation)].push_back(o);
    if (waits_for_its_rank(rank, operation)) return;
    rank.operations[static_cast<std::size_t>(o)].released = true;
    continue_stream(r, stream_of(operation));
  }
  /// The rank waits for operation `o`, and so works on all before it.
  void force(std::size_t r, int o) {
    Rank& rank = ranks_[r];
    if (rank.operations[static_cast<std::size_t>(o)].done) return;
    const StreamOperation& operation = rank.trace->operations[static_cast<std::size_t>(o)];
    for (const int each : rank.streams[stream_of(operation)]) {
      rank.operations[static_cast<std::size_t>(each)].released = true;
      if (each == o) break;
    }
    continue_stream(r, stream_of(operation));
  }
  void continue_stream(std::size_t r, int stream) {
    Rank& rank = ranks_[r];
    std::deque<int>& queue = rank.streams[stream];
    while (!queue.empty()) {
      Operation& front = rank.operations[static_cast<std::size_t>(queue.front())];
      if (!front.released) return;
      if (!front.begun) {
        front.begun = true;
        front.left = front.transfers.size();
        for (const std::size_t t : front.transfers) arrive(t);
      }
      if (front.left > 0) return;
      front.done = true;
      front.end = now_;
      queue.pop_front();
    }
  }
  void arrive(std::size_t t) {
    Transfer& transfer = transfers_[t];
    ++transfer.arrived;
    if (transfer.arrived < transfer.sides) return;
    for (const auto& [r, o] : transfer.operations) change_load(r, 1);
    add_event(Event::Kind::transferred, now_ + transfer.seconds, t);
  }
  void finish_transfer(std::size_t t) {
    const Transfer& transfer = transfers_[t];
    for (const auto& [r, o] : transfer.operations) {
      change_load(r, -1);
      --ranks_[r].operations[static_cast<std::size_t>(o)].left;
    }
    for (const auto& [r, o] : transfer.operations) {
      Rank& rank = ranks_[r];
      continue_stream(r, stream_of(rank.trace->operations[static_cast<std::size_t>(o)]));
      if (rank.waits_for >= 0 && rank.operations[static_cast<std::size_t>(rank.waits_for)].done) {
        advance(r);
      }
    }
  }

  const comm::GridShape& shape_;
  const std::vector<RankClass>& classes_;
  const ClassOf& class_of_;
  const Machine& machine_;
  std::vector<Rank> ranks_;
  std::vector<Transfer> transfers_;
  std::map<std::string, Sequence> sequences_;
  std::map<std::pair<GroupKind, int>, Placement> placements_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t next_event_ = 0;
  double now_ = 0;
};

}  // namespace

const RankTimes& StepTimes::longest() const {
  return *std::ranges::max_element(ranks, {}, &RankTimes::busy);
}

StepTimes simulate(const comm::GridShape& shape, const std::vector<RankClass>& classes,
                   const ClassOf& class_of, const Machine& machine) {
  return Simulation(shape, classes, class_of, machine).run();
}

}  // namespace trireme::plan
